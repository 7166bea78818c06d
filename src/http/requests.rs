//! `GET /v1/requests/{key}`: what became of an operation.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::Http;
use super::answer::{ProblemResponse, ok};
use super::auth::Caller;
use crate::domain::api_key::ApiRole;
use crate::domain::failure::FailureKind;
use crate::domain::ids::{OperationId, RequestId};
use crate::domain::key::IdempotencyKey;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{Record, State as RecordState};
use crate::domain::usage::Usage;
use crate::domain::verdict::code_of;
use crate::operation::{KeptCall, database_problem};

/// What became of an operation.
#[derive(Serialize, ToSchema)]
#[schema(as = RequestRecord)]
pub struct RecordBody<'a> {
    /// Stays with the operation over all its runs.
    #[schema(value_type = uuid::Uuid)]
    operation_id: OperationId,
    /// The run that holds it, or held it last.
    #[schema(value_type = uuid::Uuid)]
    request_id: RequestId,
    /// `in_progress`, `committed` or `failed`.
    state: &'static str,
    /// `chat` or `parse`.
    endpoint: &'a str,
    /// Runs so far.
    attempts: u32,
    /// `client`, `opaque`, `derived` or `absent`: where its key is from.
    key_source: &'a str,
    claimed_at: DateTime<Utc>,
    #[schema(required)]
    completed_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    failure: Option<FailureBody<'a>>,
    /// For operators: its calls of providers, of all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    calls: Option<Vec<CallBody<'a>>>,
}

/// One provider call of the operation, of whatever run.
#[derive(Serialize, ToSchema)]
#[schema(as = ProviderCall)]
pub struct CallBody<'a> {
    #[schema(value_type = uuid::Uuid)]
    request_id: RequestId,
    call_no: i32,
    /// Whether its output is in the answer.
    counted: bool,
    provider: &'a str,
    model: &'a str,
    route: &'a str,
    #[schema(required)]
    status: Option<i32>,
    #[schema(required)]
    failure_kind: Option<&'a str>,
    /// What this call changed against the one before.
    #[schema(required)]
    changed: Option<&'a str>,
    waited_ms: i64,
    usage: Usage,
    /// A decimal number.
    #[schema(required)]
    cost_usd: Option<String>,
    started_at: DateTime<Utc>,
    ended_at: DateTime<Utc>,
}

/// Why the last run ended without an answer.
#[derive(Serialize, ToSchema)]
#[schema(as = Failure)]
pub struct FailureBody<'a> {
    kind: &'a str,
    /// The code that its client was told.
    error: &'static str,
    /// Whether it is stored and replayed.
    r#final: bool,
}

/// The record, for whoever may read it.
pub async fn get_request(
    State(http): State<Http>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ProblemResponse> {
    let caller = caller.may_read()?;
    let id = caller.request_id;
    let key = path_key(path, id)?;
    let (tenant, role) = (caller.bearer.tenant.clone(), caller.bearer.role);
    let record = http
        .operations
        .record(caller.bearer.tenant, key.id, caller.subject.as_ref())
        .await
        .map_err(|error| database_problem(id, &error))?
        .ok_or_else(|| missing(id))?;
    let calls = match role {
        ApiRole::Operator => {
            let calls = http.operations.calls(tenant, record.operation_id).await;
            Some(calls.map_err(|error| database_problem(id, &error))?)
        }
        ApiRole::Client | ApiRole::Finance => None,
    };
    ok(id, &body_of(&record, calls.as_deref()))
}

/// Ends a run in progress; the record as it is then.
pub async fn cancel_request(
    State(http): State<Http>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ProblemResponse> {
    let caller = caller.may_read()?;
    let id = caller.request_id;
    let key = path_key(path, id)?;
    let record = http
        .operations
        .cancel(caller.bearer.tenant, key.id, caller.subject)
        .await
        .map_err(|error| database_problem(id, &error))?
        .ok_or_else(|| missing(id))?;
    ok(id, &body_of(&record, None))
}

pub(super) fn path_key(
    path: Result<Path<String>, PathRejection>,
    id: RequestId,
) -> Result<IdempotencyKey, Problem> {
    let invalid = |detail: String| Problem::new(ErrorCode::IdempotencyKeyInvalid, id, detail);
    let Path(text) = path.map_err(|_| invalid("The key in the path is not UTF-8.".into()))?;
    IdempotencyKey::parse(text.as_bytes()).map_err(|error| invalid(error.to_string()))
}

pub(super) fn missing(id: RequestId) -> Problem {
    Problem::new(ErrorCode::NotFound, id, "There is no request with this key.")
}

fn body_of<'a>(record: &'a Record, calls: Option<&'a [KeptCall]>) -> RecordBody<'a> {
    let failure = record.failure_kind.as_deref().map(|kind| FailureBody {
        kind,
        error: FailureKind::parse(kind).map_or("internal", |kind| code_of(kind).as_str()),
        r#final: matches!(record.state, RecordState::FailedFinal(_)),
    });
    RecordBody {
        operation_id: record.operation_id,
        request_id: record.guard.request_id,
        state: record.state.as_str(),
        endpoint: &record.endpoint,
        attempts: record.attempts,
        key_source: &record.key_source,
        claimed_at: record.claimed_at,
        completed_at: record.completed_at,
        failure,
        calls: calls.map(|calls| calls.iter().map(call_body).collect()),
    }
}

fn call_body(call: &KeptCall) -> CallBody<'_> {
    CallBody {
        request_id: call.request_id,
        call_no: call.call_no,
        counted: call.counted,
        provider: &call.provider,
        model: &call.model,
        route: &call.route,
        status: call.status,
        failure_kind: call.failure_kind.as_deref(),
        changed: call.changed.as_deref(),
        waited_ms: call.waited_ms,
        usage: call.usage,
        cost_usd: call.cost.map(|cost| cost.to_string()),
        started_at: call.started_at,
        ended_at: call.ended_at,
    }
}
