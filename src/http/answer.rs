//! From an outcome to a response: the only place that knows both.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::event_stream;
use crate::clock::Clock;
use crate::domain::ids::RequestId;
use crate::domain::key::{IdempotencyKey, KeySource};
use crate::domain::problem::{ErrorCode, Problem};
use crate::operation::{Outcome, Reply, Streamed};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const CSV: HeaderValue = HeaderValue::from_static("text/csv; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const REPLAY_OF: HeaderName = HeaderName::from_static("x-idempotent-replay");
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEY_SOURCE: HeaderName = HeaderName::from_static("idempotency-key-source");

/// A problem as the error half of a handler's result.
#[derive(Debug)]
pub struct ProblemResponse(pub Problem);

impl From<Problem> for ProblemResponse {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let problem = self.0;
        let mut response = with_body(problem.status(), PROBLEM, problem.to_json());
        if let Some(seconds) = problem.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if problem.code == ErrorCode::Unauthorized {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The response to an operation.
pub fn of_reply(reply: Reply) -> Response {
    let response = match reply.outcome {
        Outcome::Refused(problem) => ProblemResponse(problem).into_response(),
        Outcome::Stored { answer, replay_of, .. } => {
            let kind = if answer.status == 200 { JSON } else { PROBLEM };
            let response = with_body(answer.status, kind, answer.body.clone());
            say_replayed(response, replay_of)
        }
    };
    say_key(response, reply.made_key)
}

/// The response to an operation whose client asked for a stream.
pub fn of_streamed(clock: &Clock, streamed: Streamed) -> Response {
    match streamed {
        Streamed::Plain(reply) => of_reply(reply),
        Streamed::Events { made_key, replay_of, feed } => {
            let response = say_replayed(event_stream::of_feed(clock, *feed), replay_of);
            say_key(response, made_key)
        }
    }
}

fn say_replayed(mut response: Response, replay_of: Option<RequestId>) -> Response {
    if let Some(run) = replay_of {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        insert(&mut response, REPLAY_OF, &run.to_string());
    }
    response
}

fn say_key(mut response: Response, made_key: Option<IdempotencyKey>) -> Response {
    if let Some(key) = made_key {
        let source = match key.source {
            KeySource::Client => "client",
            KeySource::Opaque => "opaque",
            KeySource::Derived => "derived",
            KeySource::Absent => "absent",
        };
        insert(&mut response, KEY_SOURCE, source);
        insert(&mut response, KEY, &key.shown());
    }
    response
}

/// A 200 with a JSON body.
pub fn ok(request_id: RequestId, body: &impl Serialize) -> Result<Response, ProblemResponse> {
    let body = serde_json::to_vec(body).map_err(|error| {
        tracing::error!(event = "internal", %request_id, %error, "a response could not be written as JSON");
        Problem::new(ErrorCode::Internal, request_id, "The answer could not be written.")
    })?;
    Ok(with_body(200, JSON, body))
}

/// A 200 with rows under their heads.
pub fn csv<R: IntoIterator<Item = String>>(
    request_id: RequestId,
    heads: &[&str],
    rows: impl Iterator<Item = R>,
) -> Result<Response, ProblemResponse> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = writer
        .write_record(heads)
        .and_then(|()| rows.into_iter().try_for_each(|row| writer.write_record(row)));
    let body = written
        .map_err(|error| error.to_string())
        .and_then(|()| writer.into_inner().map_err(|error| error.to_string()));
    let body = body.map_err(|error| {
        tracing::error!(event = "internal", %request_id, %error, "a response could not be written as CSV");
        Problem::new(ErrorCode::Internal, request_id, "The answer could not be written.")
    })?;
    Ok(with_body(200, CSV, body))
}

fn with_body(status: u16, kind: HeaderValue, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn insert(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
