//! `POST /v1/chat`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::answer::{ProblemResponse, of_reply, of_streamed};
use super::auth::Caller;
use super::{Http, body, event_stream, prefer};
use crate::domain::chat::ChatRequest;
use crate::domain::ids::RequestId;
use crate::domain::key::{IdempotencyKey, KeyError};
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::trace_parent::TraceParent;
use crate::operation::ChatArrival;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const TRACE_PARENT: &str = "traceparent";

/// Runs a chat, or answers from what is there.
pub async fn post_chat(
    State(http): State<Http>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ProblemResponse> {
    let key = header_key(request.headers(), id);
    let (mut parts, body) = request.into_parts();
    let (caller, verdict) = match &key {
        Ok(Some(key)) => Caller::of_operation(&http, &parts.headers, id, key.id).await?,
        // Who asks is asked first, also where the key is wrong.
        Ok(None) | Err(_) => (Caller::from_request_parts(&mut parts, &http).await?, None),
    };
    let caller = caller.may_run()?;
    let key = key?;
    let request = Request::from_parts(parts, body);
    let wait = prefer::wait(request.headers(), http.max_wait);
    let trace_parent = trace_parent(request.headers());
    let (begin, preferred) =
        (event_stream::begin(request.headers()), event_stream::are_preferred(request.headers()));
    let text = body::json_text(&http, request, id).await?;
    let request = ChatRequest::read(&text)
        .map_err(|error| Problem::new(ErrorCode::InvalidRequest, id, error.to_string()))?;
    let streams = request.stream || preferred;
    let arrival = ChatArrival {
        request_id: id,
        tenant: caller.bearer.tenant,
        subject: caller.subject,
        key,
        request: Arc::new(request),
        wait: wait.unwrap_or_default(),
        verdict,
        trace_parent,
        door: None,
    };
    let response = if streams {
        of_streamed(&http.clock, http.operations.chat_stream(arrival, begin).await)
    } else {
        of_reply(http.operations.chat(arrival).await)
    };
    Ok(prefer::say_applied(response, wait))
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
