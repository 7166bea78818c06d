//! Model providers, each behind the same small door.
//!
//! A provider makes one call and says how it ended: a whole answer, or facts about a failure. It
//! never repeats a call, never takes another route by itself and never decides what a failure
//! means; all of that is the caller's, so that there is one retry layer. It writes no log: the
//! caller knows which operation a call belongs to.

mod anthropic;
mod errors;
mod exchange;
mod faulty;
mod http;
mod openai;
mod reading;
mod simulated;
mod sse;
mod text;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use faulty::with_faults;

use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::CallFailure;
use crate::domain::prompt::{Answer, CallRequest, Parameter};
use crate::domain::secret::Secret;

/// Answers longer than this end as an error (the contract names no number; a model's longest
/// output is a few hundred kilobytes).
pub const DEFAULT_MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// One model provider.
pub trait Provider: Send + Sync {
    /// The name in the configuration, and in `provider_calls.provider`.
    fn name(&self) -> &str;

    /// The ways to reach it, at least one, in the order of preference.
    fn routes(&self) -> &[Route];

    /// Whether a call is another one, and still complete, without this parameter: a model that
    /// refuses it can be asked again.
    fn can_leave_out(&self, parameter: Parameter) -> bool;

    /// One HTTP request, from its first byte to the end of the answer. `route` is a place in
    /// [`Provider::routes`]; one beyond the end means the last. `on_delta` gets the answer's text, or
    /// its tool's input, piece by piece as it comes; joined they are [`Answer::text`].
    ///
    /// Dropping the future ends the request.
    ///
    /// # Errors
    /// [`CallFailure`] for everything but a whole answer, with the tokens told until then.
    fn call<'a>(
        &'a self,
        request: &'a CallRequest,
        route: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<Answer, CallFailure>>;
}

/// A way to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub name: String,
    /// As the vendor's own SDK takes it: Anthropic's without `/v1`, OpenAI's with it.
    pub base_url: String,
}

/// What speaks at the other end, with the settings of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderKind {
    /// Anthropic's Messages API.
    Anthropic,
    /// OpenAI's Chat Completions, and the many gateways that speak it.
    OpenAi,
    /// Nobody: text made here, for trying things with no account.
    Simulated {
        first_byte_delay: Duration,
        /// 0: all at once.
        tokens_per_second: u32,
    },
}

/// Everything a provider is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    pub name: String,
    pub kind: ProviderKind,
    /// `None` sends no credential, for gateways that ask for none.
    pub api_key: Option<Secret>,
    /// The simulated provider needs none.
    pub routes: Vec<Route>,
    /// Until the first event of the answer, or the first byte of a body that is no stream.
    pub first_byte_timeout: Duration,
    /// Between two events that carry content; keep-alives do not count.
    pub idle_timeout: Duration,
    /// The whole call.
    pub call_timeout: Duration,
    pub max_answer_bytes: usize,
}

/// Settings that no call could be made with.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("provider {provider}: needs at least one route")]
    NoRoutes { provider: String },
    #[error("provider {provider}, route {route}: base_url {reason}")]
    BaseUrl { provider: String, route: String, reason: String },
    #[error("provider {provider}: the API key has characters that no header can carry")]
    ApiKey { provider: String },
    #[error("provider {provider}: no HTTP client: {reason}")]
    Client { provider: String, reason: String },
}

/// Makes a provider ready to be called.
///
/// # Errors
/// [`SettingsError`] says which setting is at fault; credentials are not in it.
pub fn build(settings: ProviderSettings, clock: Clock) -> Result<Arc<dyn Provider>, SettingsError> {
    Ok(match settings.kind {
        ProviderKind::Anthropic => Arc::new(anthropic::Anthropic::new(settings, clock)?),
        ProviderKind::OpenAi => Arc::new(openai::OpenAi::new(settings, clock)?),
        ProviderKind::Simulated { first_byte_delay, tokens_per_second } => Arc::new(
            simulated::Simulated::new(settings.name, clock, first_byte_delay, tokens_per_second),
        ),
    })
}
