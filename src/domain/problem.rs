//! What an answer that is no success says. A status is a promise about retrying by machine:
//! 502, 503, 504, and 409 with `retry_after_ms`, ask for the same request again; all others say stop.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::ids::RequestId;

/// The longest `detail`; a person reads it.
const MAX_DETAIL_CHARS: usize = 500;

/// Every `error` code of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    InvalidRequest,
    IdempotencyKeyInvalid,
    IdempotencyKeyRequired,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    InProgress,
    ConversationBusy,
    Cancelled,
    Erased,
    TooLarge,
    UnsupportedMediaType,
    IdempotencyKeyReuse,
    ContentFiltered,
    InputRejected,
    NothingFound,
    UnreadableInput,
    OutputLimit,
    GaveUp,
    QuotaExhausted,
    ProviderAuth,
    ProviderConfig,
    Internal,
    ProviderFailed,
    MalformedOutput,
    ProviderTimeout,
    ProviderBusy,
    RegionRefused,
    SlotTimeout,
    WaitTimeout,
    Draining,
    DatabaseUnavailable,
    OutcomeUnknown,
    RunLost,
}

impl ErrorCode {
    /// Every code once, in the order of declaration.
    pub const ALL: [ErrorCode; 35] = [
        Self::InvalidRequest,
        Self::IdempotencyKeyInvalid,
        Self::IdempotencyKeyRequired,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::InProgress,
        Self::ConversationBusy,
        Self::Cancelled,
        Self::Erased,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::IdempotencyKeyReuse,
        Self::ContentFiltered,
        Self::InputRejected,
        Self::NothingFound,
        Self::UnreadableInput,
        Self::OutputLimit,
        Self::GaveUp,
        Self::QuotaExhausted,
        Self::ProviderAuth,
        Self::ProviderConfig,
        Self::Internal,
        Self::ProviderFailed,
        Self::MalformedOutput,
        Self::ProviderTimeout,
        Self::ProviderBusy,
        Self::RegionRefused,
        Self::SlotTimeout,
        Self::WaitTimeout,
        Self::Draining,
        Self::DatabaseUnavailable,
        Self::OutcomeUnknown,
        Self::RunLost,
    ];

    /// The status that carries this code.
    pub fn status(self) -> u16 {
        self.row().0
    }

    /// The word in `error`.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// The `title`: the same for every occurrence.
    pub fn title(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (400, "invalid_request", "The request was not understood"),
            Self::IdempotencyKeyInvalid => {
                (400, "idempotency_key_invalid", "The idempotency key cannot be used")
            }
            Self::IdempotencyKeyRequired => {
                (400, "idempotency_key_required", "An idempotency key is required")
            }
            Self::Unauthorized => (401, "unauthorized", "No valid API key"),
            Self::Forbidden => (403, "forbidden", "This API key may not do that"),
            Self::NotFound => (404, "not_found", "Not found"),
            Self::MethodNotAllowed => (405, "method_not_allowed", "Method not allowed"),
            Self::InProgress => (409, "in_progress", "This operation is still running"),
            Self::ConversationBusy => {
                (409, "conversation_busy", "Another operation runs in this conversation")
            }
            Self::Cancelled => (409, "cancelled", "The run was cancelled"),
            Self::Erased => (410, "erased", "The stored answer was erased"),
            Self::TooLarge => (413, "too_large", "Too large"),
            Self::UnsupportedMediaType => (415, "unsupported_media_type", "Unsupported media type"),
            Self::IdempotencyKeyReuse => {
                (422, "idempotency_key_reuse", "This key belongs to another request")
            }
            Self::ContentFiltered => (422, "content_filtered", "The content was filtered"),
            Self::InputRejected => (422, "input_rejected", "The model rejected the input"),
            Self::NothingFound => (422, "nothing_found", "Nothing was found in the input"),
            Self::UnreadableInput => (422, "unreadable_input", "The input cannot be read"),
            Self::OutputLimit => (422, "output_limit", "The answer does not fit its limit"),
            Self::GaveUp => (422, "gave_up", "Gave up on this operation"),
            Self::QuotaExhausted => {
                (429, "quota_exhausted", "The account at the provider is out of credit")
            }
            Self::ProviderAuth => {
                (500, "provider_auth", "The provider refuses this service's credentials")
            }
            Self::ProviderConfig => {
                (500, "provider_config", "The provider does not know the configured model")
            }
            Self::Internal => (500, "internal", "Something went wrong here"),
            Self::ProviderFailed => (502, "provider_failed", "The provider failed"),
            Self::MalformedOutput => (502, "malformed_output", "The model's answer was malformed"),
            Self::ProviderTimeout => {
                (504, "provider_timeout", "The provider did not answer in time")
            }
            Self::ProviderBusy => (503, "provider_busy", "The provider is busy"),
            Self::RegionRefused => (503, "region_refused", "The provider refuses this region"),
            Self::SlotTimeout => (503, "slot_timeout", "No place became free"),
            Self::WaitTimeout => (503, "wait_timeout", "The operation took longer than the wait"),
            Self::Draining => (503, "draining", "This server is shutting down"),
            Self::DatabaseUnavailable => {
                (503, "database_unavailable", "The database cannot be reached")
            }
            Self::OutcomeUnknown => (503, "outcome_unknown", "The outcome is not known yet"),
            Self::RunLost => (503, "run_lost", "The run was lost with its server"),
        }
    }

    /// Whether the same request may be sent again at all, by a machine or, after 429, by a person.
    pub fn may_name_a_time(self) -> bool {
        matches!(self.status(), 409 | 429 | 502..=504)
    }

    /// How long a client should wait where nothing better is known. The contract promises
    /// `Retry-After` on every 503; a 502 or 504 may be repeated at the client's own pace.
    fn usual_wait(self) -> Option<Duration> {
        match self.status() {
            503 => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// An `application/problem+json` body (RFC 9457) with the contract's members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub code: ErrorCode,
    pub detail: String,
    pub request_id: RequestId,
    pub retry_after: Option<Duration>,
    /// What exactly, where one code has several causes.
    pub reason: Option<&'static str>,
}

/// Why there is no success (RFC 9457). The same shape for everything that is refused or fails.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Wire<'a> {
    /// `urn:oncekey:problem:` and the code.
    #[schema(value_type = String, example = "urn:oncekey:problem:in_progress")]
    r#type: String,
    /// The same for every occurrence of the code.
    title: &'a str,
    /// That of the answer.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened here, for a person.
    detail: &'a str,
    /// A stable code, which decides what a program does.
    error: &'a str,
    /// What exactly, of `unreadable_input`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<&'a str>,
    /// The arrival; of a stored verdict the run that came to it.
    #[schema(value_type = uuid::Uuid)]
    request_id: RequestId,
    /// Whether a machine should send the same request again, with the same key.
    retryable: bool,
    /// When, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
}

impl Problem {
    pub fn new(code: ErrorCode, request_id: RequestId, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        // It may name what the client sent, which may be of any length.
        if let Some((end, _)) = detail.char_indices().nth(MAX_DETAIL_CHARS) {
            detail.truncate(end);
            detail.push('…');
        }
        Self { code, detail, request_id, retry_after: code.usual_wait(), reason: None }
    }

    /// Sets when to ask again; `None` keeps the code's usual wait. Where asking again does not help no
    /// time is named, whatever the provider said.
    pub fn retry_after(mut self, wait: Option<Duration>) -> Self {
        if self.code.may_name_a_time() {
            self.retry_after = wait.or(self.retry_after);
        }
        self
    }

    /// Sets the `reason`.
    pub fn because(self, reason: Option<&'static str>) -> Self {
        Self { reason, ..self }
    }

    pub fn status(&self) -> u16 {
        self.code.status()
    }

    /// Whether a machine may send the same request again.
    pub fn retryable(&self) -> bool {
        match self.status() {
            502..=504 => true,
            409 => self.retry_after.is_some(),
            _ => false,
        }
    }

    /// `Retry-After` in whole seconds, rounded up.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX))
    }

    /// The body.
    pub fn to_json(&self) -> Vec<u8> {
        let wire = Wire {
            r#type: format!("urn:oncekey:problem:{}", self.code.as_str()),
            title: self.code.title(),
            status: self.status(),
            detail: &self.detail,
            error: self.code.as_str(),
            reason: self.reason,
            request_id: self.request_id,
            retryable: self.retryable(),
            retry_after_ms: self
                .retry_after
                .map(|wait| wait.as_millis().try_into().unwrap_or(u64::MAX)),
        };
        // Strings, integers and a bool under fixed names: serde_json has no way to fail on them,
        // and an empty body would only hide a text.
        serde_json::to_vec(&wire).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn seconds_are_rounded_up_and_409_is_retryable_only_with_a_time() {
        let id = RequestId(Uuid::nil());
        let busy = Problem::new(ErrorCode::InProgress, id, "x")
            .retry_after(Some(Duration::from_millis(1_001)));
        assert_eq!(busy.retry_after_seconds(), Some(2));
        assert!(busy.retryable());
        assert!(!Problem::new(ErrorCode::Cancelled, id, "x").retryable());
        assert!(!Problem::new(ErrorCode::Internal, id, "x").retryable());
        let body: serde_json::Value = serde_json::from_slice(&busy.to_json()).unwrap();
        assert_eq!(body["retry_after_ms"], 1_001);
        assert_eq!(body["error"], "in_progress");
        assert_eq!(body["status"], 409);
    }

    #[test]
    fn the_list_of_codes_is_whole() {
        let (_, declared) = include_str!("problem.rs").split_once("pub enum ErrorCode {").unwrap();
        let (declared, _) = declared.split_once('}').unwrap();
        let declared: Vec<&str> = declared.split_whitespace().collect();
        assert_eq!(ErrorCode::ALL.map(|code| format!("{code:?},")).as_slice(), declared);
    }

    #[test]
    fn every_503_says_when() {
        let problem = Problem::new(ErrorCode::Draining, RequestId(Uuid::nil()), "x");
        assert_eq!(problem.retry_after_seconds(), Some(1));
    }
}
