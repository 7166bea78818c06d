//! What no route knows, answered in the shape of every other problem.

use axum::extract::{FromRequestParts, Request, State};

use super::Http;
use super::answer::ProblemResponse;
use super::auth::{Caller, request_id};
use crate::domain::problem::{ErrorCode, Problem};

/// For paths that no route knows. Under `/v1` only who may come in at all is told what is there.
pub async fn not_found(State(http): State<Http>, request: Request) -> ProblemResponse {
    refuse(&http, request, ErrorCode::NotFound).await
}

/// For methods that a route does not take.
pub async fn method_not_allowed(State(http): State<Http>, request: Request) -> ProblemResponse {
    refuse(&http, request, ErrorCode::MethodNotAllowed).await
}

async fn refuse(http: &Http, request: Request, code: ErrorCode) -> ProblemResponse {
    let (mut parts, _) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if (path == "/v1" || path.starts_with("/v1/"))
        && let Err(refused) = Caller::from_request_parts(&mut parts, http).await
    {
        return refused;
    }
    let detail = match code {
        ErrorCode::MethodNotAllowed => format!("{path} does not take {}.", parts.method),
        _ => format!("There is nothing at {path}."),
    };
    Problem::new(code, request_id(&parts), detail).into()
}
