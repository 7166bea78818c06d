//! What an answer that is no success says.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// The members of an `application/problem+json` body. Where something between us and the server answered,
/// `error` is empty and `detail` says what is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problem {
    pub status: u16,
    /// The stable code, such as `nothing_found`.
    pub error: String,
    pub title: String,
    /// For a person.
    pub detail: String,
    /// What exactly, where one code has several causes.
    pub reason: Option<String>,
    pub request_id: Option<String>,
    pub retryable: Option<bool>,
    /// When to ask again, where that helps.
    pub retry_after: Option<Duration>,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    status: Option<u16>,
    error: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
    reason: Option<String>,
    request_id: Option<String>,
    retryable: Option<bool>,
    retry_after_ms: Option<u64>,
}

impl Problem {
    /// Of a body; `status` is that of the answer (in a stream it stands in the body alone).
    pub(super) fn read(status: Option<u16>, body: &[u8]) -> Problem {
        let Ok(wire) = serde_json::from_slice::<Wire>(body) else {
            let status = status.unwrap_or_default();
            let detail = match status {
                0 => "a stream ended with something that is no verdict".to_owned(),
                200..=299 => {
                    "the answer is not one of this service; is the address right?".to_owned()
                }
                _ => format!("status {status} of something that is not this service"),
            };
            return Problem { status, detail, ..Problem::default() };
        };
        Problem {
            status: status.or(wire.status).unwrap_or_default(),
            error: wire.error,
            title: wire.title,
            detail: wire.detail,
            reason: wire.reason,
            request_id: wire.request_id,
            retryable: wire.retryable,
            retry_after: wire.retry_after_ms.map(Duration::from_millis),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = if self.detail.is_empty() { &self.title } else { &self.detail };
        write!(out, "{} (", detail.trim_end_matches('.'))?;
        if self.error.is_empty() {
            write!(out, "status {}", self.status)?;
        } else {
            write!(out, "{} {}", self.status, self.error)?;
        }
        if let Some(reason) = &self.reason {
            write!(out, ", {reason}")?;
        }
        if let Some(id) = &self.request_id {
            write!(out, ", request {id}")?;
        }
        out.write_str(")")
    }
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
