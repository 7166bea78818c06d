//! What an operator decides: one TOML file, variables over it, flags over both.
//!
//! Everything is read and checked once, before anything starts, and every error is one line that
//! names where the value stands and what would be right. Nothing here reads the process: the
//! variables come in as a value, so a test hands over its own.
//!
//! Precedence, highest first: a flag; a variable `ONCEKEY_…`; the file; for the database alone
//! `DATABASE_URL`, which other programs use too, and which therefore never moves a server that was
//! told where its database is; the default.

mod check;
mod file;
mod layers;
mod models;
mod profiles;
mod secret;
mod sections;
mod sinks;
#[cfg(test)]
mod tests;
mod values;
mod wrong;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use secret::{DatabaseUrl, Secret, SecretVariable};
pub use sections::{Chat, Idempotency, Limits, MissingKey, Parse, Retention, Retry};

use crate::domain::parse::Profile;
use crate::domain::rules::AnswerRules;
use crate::domain::usage::Prices;

/// The whole configuration, checked. Its `Debug` shows no secret.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where `serve` listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// How other nodes reach this one, without a slash at its end. `None`: not at all.
    pub advertise: Option<String>,
    pub database: Database,
    pub idempotency: Idempotency,
    pub limits: Limits,
    pub retry: Retry,
    /// By the name that models refer to. At least one.
    pub providers: BTreeMap<String, Provider>,
    /// By the name that clients ask for. At least one; each refers to a provider that exists.
    pub models: BTreeMap<String, Model>,
    pub parse: Parse,
    /// What a parse can produce, by the name that clients ask for; the built-in one is among them.
    pub profiles: BTreeMap<String, Profile>,
    pub captures: Captures,
    pub chat: Chat,
    pub retention: Retention,
    pub outbox: Outbox,
    /// What is allowed and probably not meant, a sentence each, for the log at start.
    pub warnings: Vec<String>,
}

/// Where the data lives.
#[derive(Debug, Clone)]
pub struct Database {
    /// `None`: the private cluster under `data_dir`.
    pub url: Option<DatabaseUrl>,
    /// For the heartbeat and the node lock, where `url` goes through a pooler. `None`: `url`.
    pub url_direct: Option<DatabaseUrl>,
    /// Connections in the pool, at least 1; the heartbeat has one of its own beside them.
    pub pool: u32,
    /// Whether claims, commits and look-ups that come at once share a statement.
    pub coalesce: bool,
    /// What the server keeps on disk itself: the private cluster, captures.
    pub data_dir: PathBuf,
}

/// Where uploads are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captures {
    /// A folder, or `s3://bucket/prefix`.
    pub location: String,
}

/// One account at a model provider, with the limits of its calls.
#[derive(Debug, Clone)]
pub struct Provider {
    pub kind: ProviderKind,
    /// Calls at once, at least 1.
    pub max_concurrency: u32,
    /// How long a call waits for a slot. Zero: refused at once.
    pub slot_wait: Duration,
    /// From sending a call to the first byte of its answer.
    pub first_byte_timeout: Duration,
    /// Between two events with content of a stream; pings do not count.
    pub idle_timeout: Duration,
    /// The whole call.
    pub call_timeout: Duration,
}

#[derive(Debug, Clone)]
pub enum ProviderKind {
    Anthropic(Upstream),
    OpenAi(Upstream),
    Simulated(Simulated),
}

/// How a real provider is reached.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// `None` (`api_key_env = ""`): calls carry no key, as servers in one's own network want it.
    pub api_key: Option<SecretVariable>,
    /// At least one; tried in this order when a region is refused.
    pub routes: Vec<Route>,
}

/// One way to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// For logs and `provider_calls.route`; unique within the provider.
    pub name: String,
    /// As the vendor's own SDK takes it, without a slash at its end.
    pub base_url: String,
}

/// A provider without an account, so that everything can be tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulated {
    pub first_byte_delay: Duration,
    /// At least 1.
    pub tokens_per_second: u32,
}

/// What clients call a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// A key of [`Config::providers`].
    pub provider: String,
    /// The vendor's name of the model.
    pub upstream: String,
    pub max_output_tokens: u32,
    /// Whether the model takes a temperature.
    pub temperature: bool,
    /// Whether the model takes pictures.
    pub images: bool,
    pub prices: Prices,
    /// The system prompt; empty for none.
    pub system: String,
    /// The models to ask in turn where a filter stopped this one's answer, each a key of
    /// [`Config::models`].
    pub tiers: Vec<String>,
    /// What its answers must keep.
    pub rules: AnswerRules,
}

/// `[outbox]`: how events leave the table.
#[derive(Debug, Clone)]
pub struct Outbox {
    /// Whether this node relays events.
    pub relay: bool,
    /// Between two looks at a quiet outbox.
    pub poll: Duration,
    /// Events read at once, at least 1.
    pub batch: u32,
    /// Refusals, at least 1, and the time since the first of them: with both over, an event is given
    /// up.
    pub max_attempts: u32,
    pub give_up_after: Duration,
    /// Where events go. Empty: they stay in the table.
    pub sinks: Vec<Sink>,
}

/// Where the outbox relay delivers events.
#[derive(Debug, Clone)]
pub struct Sink {
    /// Under which acknowledgements are kept; unique.
    pub name: String,
    pub place: SinkPlace,
}

/// The kinds of sinks.
#[derive(Debug, Clone)]
pub enum SinkPlace {
    Webhook {
        url: String,
        /// Signs every delivery; several, separated by blanks, sign it each.
        secret: SecretVariable,
        /// Whether the address may lie in a private network.
        allow_private: bool,
        /// Of a whole delivery.
        timeout: Duration,
    },
    Nats {
        url: String,
        /// The server's token, where it wants one.
        secret: Option<SecretVariable>,
        /// `{type}` in it stands for the event's type.
        subject: String,
        /// Of a whole delivery.
        timeout: Duration,
    },
    Stdout,
}

/// The variables of a process. No `Debug`: there are secrets among them.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

/// What the command line says. `None`: nothing.
#[derive(Clone, Default)]
pub struct Overrides {
    /// `--listen`
    pub listen: Option<String>,
    /// `--database-url`
    pub database_url: Option<String>,
}

/// Why there is no configuration; one line each, and none shows a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{at}: {message}")]
    Syntax { at: String, message: String },
    #[error("{at}: there is no such setting; the nearest one is {nearest}")]
    Unknown { at: String, nearest: String },
    /// `at` is the flag, the variable, or the file and the setting in it.
    #[error("{at}: {message}")]
    Invalid { at: String, message: String },
    #[error("the variable {variable} is not set: it holds {holds}")]
    SecretMissing { variable: String, holds: &'static str },
}

impl Config {
    /// Reads the file (`path`, or else the one that `ONCEKEY_CONFIG` names; neither: no file), lays
    /// the variables and the flags over it, and checks the result.
    pub fn load(
        path: Option<&Path>,
        environment: &Environment,
        overrides: &Overrides,
    ) -> Result<Config, ConfigError> {
        let named = environment.get("ONCEKEY_CONFIG").filter(|name| !name.is_empty());
        let path = path.or(named.map(Path::new));
        let text = match path {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?,
            None => String::new(),
        };
        let file_name = path.map(|path| path.display().to_string());
        let layers = layers::Layers::merge(file_name, &text, environment, overrides)?;
        check::config(layers, environment)
    }
}

impl Environment {
    /// The variables of this process that are text; what is not cannot be a setting.
    pub fn of_process() -> Environment {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let owned = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Environment(owned.collect())
    }
}
