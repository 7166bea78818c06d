//! How a client is made.

use std::sync::Arc;
use std::time::Duration;

use super::error::ClientError;
use super::inner::{Client, Inner, OnRepeat};
use super::journal::Journal;
use super::policy::{Repeat, RetryPolicy};
use super::transport::Transport;
use crate::clock::Clock;

/// How long an operation is waited for, all its repeats included. Above the longest honest run of a
/// server with its settings at their defaults: 4 calls of 10 minutes each, 30 s of waiting for a place
/// before each, 8 s between them.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2_700);
/// A stream that says nothing for so long is broken: a server says something every 15 s.
pub const DEFAULT_SILENCE: Duration = Duration::from_secs(45);

/// Makes a [`Client`].
///
/// ```no_run
/// use std::time::Duration;
/// use oncekey::client::{Client, ClientError, RetryPolicy};
///
/// # fn build() -> Result<Client, ClientError> {
/// Client::builder("https://oncekey.example", "ok_…")
///     .end_user("user-17")
///     .retry(RetryPolicy { waits: vec![Duration::from_secs(2); 5], ..RetryPolicy::default() })
///     .timeout(Duration::from_secs(3_600))
///     .on_repeat(|repeat| eprintln!("sending again in {:?}", repeat.after))
///     .build()
/// # }
/// ```
pub struct ClientBuilder {
    server: String,
    api_key: String,
    end_user: Option<String>,
    policy: RetryPolicy,
    timeout: Duration,
    silence: Duration,
    journal: Option<Arc<dyn Journal>>,
    on_repeat: Option<OnRepeat>,
    clock: Clock,
}

impl ClientBuilder {
    /// When and how often to send again.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How long an operation is waited for, all its repeats included; see [`DEFAULT_TIMEOUT`]. A shorter
    /// one gives up on answers that are on their way.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a stream may say nothing; see [`DEFAULT_SILENCE`].
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// On behalf of whom a tenant's server asks (`X-End-User`).
    #[must_use]
    pub fn end_user(mut self, id: &str) -> Self {
        self.end_user = Some(id.to_owned());
        self
    }

    /// Keeps operations over the end of the process.
    #[must_use]
    pub fn journal(mut self, journal: impl Journal + 'static) -> Self {
        self.journal = Some(Arc::new(journal));
        self
    }

    /// Called before a request is sent again.
    #[must_use]
    pub fn on_repeat(mut self, told: impl Fn(&Repeat) + Send + Sync + 'static) -> Self {
        self.on_repeat = Some(Arc::new(told));
        self
    }

    /// Another clock than the machine's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// # Errors
    /// [`ClientError::NotSent`] names a setting that nothing could be sent with.
    pub fn build(self) -> Result<Client, ClientError> {
        let transport = Transport::new(&self.server, &self.api_key, self.end_user.as_deref())
            .map_err(ClientError::NotSent)?;
        Ok(Client(Arc::new(Inner {
            transport,
            policy: self.policy,
            timeout: self.timeout,
            silence: self.silence,
            journal: self.journal,
            on_repeat: self.on_repeat,
            clock: self.clock,
        })))
    }
}

impl Client {
    /// For a server, as in `https://oncekey.example`, and an API key of role `client`.
    pub fn builder(server: &str, api_key: &str) -> ClientBuilder {
        ClientBuilder {
            server: server.to_owned(),
            api_key: api_key.to_owned(),
            end_user: None,
            policy: RetryPolicy::default(),
            timeout: DEFAULT_TIMEOUT,
            silence: DEFAULT_SILENCE,
            journal: None,
            on_repeat: None,
            clock: Clock::system(),
        }
    }
}
