//! Every arrival has an id, and every answer says it, also where its handler panicked.

use std::panic::AssertUnwindSafe;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use super::Http;
use super::answer::ProblemResponse;
use crate::domain::problem::{ErrorCode, Problem};

const HEADER: &str = "x-request-id";

/// Gives the arrival its id, for handlers by extension and for the client by header.
pub async fn mark(State(http): State<Http>, mut request: Request, next: Next) -> Response {
    let id = http.operations.new_request_id();
    request.extensions_mut().insert(id);
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        // What it was stands in the line of the panic itself.
        tracing::error!(event = "internal", request_id = %id, "a handler panicked");
        let detail = "Something went wrong in this service; it is logged under the request id.";
        ProblemResponse(Problem::new(ErrorCode::Internal, id, detail)).into_response()
    });
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}
