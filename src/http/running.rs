//! What every request that runs something has: who asks, under which key, and how the answer is wanted.

use axum::extract::{FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::response::Response;

use super::answer::{ProblemResponse, of_reply, of_streamed};
use super::auth::Caller;
use super::{Http, event_stream, prefer};
use crate::domain::ids::RequestId;
use crate::domain::key::{IdempotencyKey, KeyError};
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::Record;
use crate::domain::request::RunRequest;
use crate::domain::trace_parent::TraceParent;
use crate::operation::Arrival;
use crate::streams::Begin;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const TRACE_PARENT: &str = "traceparent";

/// A request that may run something, as far as its head tells.
pub struct Asking {
    pub id: RequestId,
    pub caller: Caller,
    key: Option<IdempotencyKey>,
    verdict: Option<Box<Record>>,
    wait: Option<std::time::Duration>,
    trace_parent: Option<TraceParent>,
    begin: Begin,
    stream_preferred: bool,
}

impl Asking {
    /// Reads the head, and authenticates. The request comes back for its body.
    pub async fn of(
        http: &Http,
        id: RequestId,
        request: Request,
    ) -> Result<(Self, Request), ProblemResponse> {
        let key = header_key(request.headers(), id);
        let (mut parts, body) = request.into_parts();
        let (caller, verdict) = match &key {
            Ok(Some(key)) => Caller::of_operation(http, &parts.headers, id, key.id).await?,
            // Who asks is asked first, also where the key is wrong.
            Ok(None) | Err(_) => (Caller::from_request_parts(&mut parts, http).await?, None),
        };
        let asking = Self {
            id,
            caller: caller.may_run()?,
            key: key?,
            verdict,
            wait: prefer::wait(&parts.headers, http.max_wait),
            trace_parent: trace_parent(&parts.headers),
            begin: event_stream::begin(&parts.headers),
            stream_preferred: event_stream::are_preferred(&parts.headers),
        };
        Ok((asking, Request::from_parts(parts, body)))
    }

    /// Runs it, or answers from what is there, in the form that is wanted.
    pub async fn answer(self, http: &Http, request: RunRequest, stream: bool) -> Response {
        let arrival = Arrival {
            request_id: self.id,
            tenant: self.caller.bearer.tenant,
            subject: self.caller.subject,
            key: self.key,
            request,
            wait: self.wait.unwrap_or_default(),
            verdict: self.verdict,
            trace_parent: self.trace_parent,
            door: None,
        };
        let response = if stream || self.stream_preferred {
            of_streamed(&http.clock, http.operations.run_stream(arrival, self.begin).await)
        } else {
            of_reply(http.operations.run(arrival).await)
        };
        prefer::say_applied(response, self.wait)
    }
}

/// The client's span, where it tells one.
fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACE_PARENT).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    TraceParent::parse(value.as_bytes())
}

/// The one key header, if there is any.
fn header_key(headers: &HeaderMap, id: RequestId) -> Result<Option<IdempotencyKey>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = if values.next().is_some() {
        Err(KeyError::Doubled)
    } else {
        IdempotencyKey::parse(value.as_bytes())
    };
    key.map(Some)
        .map_err(|error| Problem::new(ErrorCode::IdempotencyKeyInvalid, id, error.to_string()))
}
