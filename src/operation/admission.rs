//! What must hold before anything begins, and how an arrival is refused.

use std::time::Duration;

use super::{Arrival, Inner, Model, parse};
use crate::domain::failure::FailureKind;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::request::RunRequest;
use crate::domain::verdict::detail_of;

impl Inner {
    /// The model that is asked for, where everything else that the request names is here as well.
    pub(super) fn acceptable(&self, arrival: &Arrival) -> Result<&Model, Problem> {
        if let RunRequest::Parse(request) = &arrival.request {
            parse::acceptable(self, request, arrival.request_id)?;
        }
        self.model_of(arrival)
    }

    fn model_of(&self, arrival: &Arrival) -> Result<&Model, Problem> {
        let wanted = arrival.request.model();
        self.models.get(wanted).ok_or_else(|| {
            let known = self.models.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let detail = format!("The models here are: {known}; {wanted:?} is none of them.");
            Problem::new(ErrorCode::InvalidRequest, arrival.request_id, detail)
        })
    }

    /// The model that a run would call. The error says why nothing may begin here; what is known
    /// already can still be told.
    pub(super) fn may_begin(&self, arrival: &Arrival) -> Result<&Model, Problem> {
        let model = self.acceptable(arrival)?;
        if self.lifecycle.is_draining() {
            return Err(refusal(arrival, ErrorCode::Draining, None));
        }
        if let Some(left) = model.slots.closed_for() {
            // No run, so that the operation's runs and quota hits stay those that a call was made for.
            let detail = detail_of(FailureKind::Quota);
            let problem = Problem::new(ErrorCode::QuotaExhausted, arrival.request_id, detail);
            return Err(problem.retry_after(Some(left)));
        }
        Ok(model)
    }
}

/// The problem that says why, in words.
pub(super) fn refusal(arrival: &Arrival, code: ErrorCode, wait: Option<Duration>) -> Problem {
    let detail = match code {
        ErrorCode::IdempotencyKeyReuse => {
            "Another request was sent under this Idempotency-Key; mint one key per operation."
        }
        ErrorCode::InProgress => "Ask again with the same key after retry_after_ms.",
        ErrorCode::ConversationBusy => {
            "Wait for the other operation; send the same request again after retry_after_ms."
        }
        ErrorCode::WaitTimeout => "It still runs; send the same request again.",
        ErrorCode::Erased => "The answer of this operation was erased.",
        ErrorCode::NotFound => "There is no such conversation.",
        ErrorCode::Draining => {
            "This server takes no new work; send the same request again, elsewhere if you can."
        }
        _ => code.title(),
    };
    Problem::new(code, arrival.request_id, detail).retry_after(wait)
}
