//! For load balancers and Prometheus: no key needed, nothing of any tenant told.

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Http;
use super::answer::{ProblemResponse, ok};
use crate::domain::ids::RequestId;
use crate::domain::problem::{ErrorCode, Problem};
use crate::operation::Readiness;

#[derive(Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `ready`.
    status: &'static str,
    /// What an operator should look at before it is too late.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Alive as long as it answers.
pub async fn healthz(Extension(id): Extension<RequestId>) -> Result<Response, ProblemResponse> {
    ok(id, &Health { status: "ok", warnings: Vec::new() })
}

/// Ready while the database answers, today has a partition and the node is not draining.
pub async fn readyz(
    State(http): State<Http>,
    Extension(id): Extension<RequestId>,
) -> Result<Response, ProblemResponse> {
    let (code, detail) = match http.operations.readiness().await {
        Readiness::Ready { warnings } => return ok(id, &Health { status: "ready", warnings }),
        Readiness::Draining => (ErrorCode::Draining, "This server is shutting down."),
        Readiness::NoDatabase => (ErrorCode::DatabaseUnavailable, "The database does not answer."),
        Readiness::NoPartition => (
            ErrorCode::DatabaseUnavailable,
            "There is no partition for today; run `oncekey partitions ensure`.",
        ),
    };
    Err(Problem::new(code, id, detail).into())
}

/// Prometheus text.
pub async fn metrics(State(http): State<Http>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (http.render_metrics)())
        .into_response()
}
