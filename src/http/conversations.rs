//! `GET /v1/conversations/{id}/turns`.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::Http;
use super::answer::{ProblemResponse, ok};
use super::auth::Caller;
use crate::domain::ids::ConversationId;
use crate::domain::problem::{ErrorCode, Problem};
use crate::operation::{Removal, database_problem};

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 1_000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// The `next` of the page before.
    #[param(nullable = false, minimum = 0, default = 0)]
    after: Option<i64>,
    /// Turns of a page.
    #[param(nullable = false, minimum = 1, maximum = 1_000, default = 100)]
    limit: Option<i64>,
}

/// A page of a conversation, oldest turn first.
#[derive(Serialize, ToSchema)]
#[schema(as = TurnPage)]
pub struct PageBody<'a> {
    turns: Vec<TurnBody<'a>>,
    /// What `after` of the next page is; null at the end.
    #[schema(required)]
    next: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Turn)]
pub struct TurnBody<'a> {
    /// Its place in the conversation, from 1 on without a gap.
    seq: i64,
    /// `user` or `assistant`.
    role: &'a str,
    content: &'a str,
    turn_id: Uuid,
    /// The run that wrote it.
    request_id: Uuid,
    created_at: DateTime<Utc>,
}

/// A page of a conversation, oldest turn first.
pub async fn get_turns(
    State(http): State<Http>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<Paging>, QueryRejection>,
) -> Result<Response, ProblemResponse> {
    let caller = caller.may_read()?;
    let id = caller.request_id;
    let invalid = |detail: String| Problem::new(ErrorCode::InvalidRequest, id, detail);
    let missing = || Problem::new(ErrorCode::NotFound, id, "There is no such conversation.");
    let Path(conversation) =
        path.map_err(|_| invalid("The conversation's id in the path is not UTF-8.".into()))?;
    let Query(paging) = query.map_err(|error| invalid(error.body_text()))?;
    let (after, limit) = (paging.after.unwrap_or(0), paging.limit.unwrap_or(DEFAULT_LIMIT));
    if after < 0 || !(1..=MAX_LIMIT).contains(&limit) {
        return Err(invalid("after must be at least 0, limit between 1 and 1,000.".into()).into());
    }
    if conversation.contains('\0') {
        return Err(missing().into());
    }
    let page = http
        .operations
        .turns(
            caller.bearer.tenant,
            ConversationId::new(conversation),
            caller.subject,
            after,
            limit,
        )
        .await
        .map_err(|error| database_problem(id, &error))?
        .ok_or_else(missing)?;
    let turns = page
        .turns
        .iter()
        .map(|turn| TurnBody {
            seq: turn.seq,
            role: &turn.role,
            content: &turn.content,
            turn_id: turn.turn_id,
            request_id: turn.request_id,
            created_at: turn.created_at,
        })
        .collect();
    ok(id, &PageBody { turns, next: page.next })
}

/// Deletes a conversation with its stored answers; its receipts stay.
pub async fn delete_conversation(
    State(http): State<Http>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ProblemResponse> {
    let caller = caller.may_read()?;
    let id = caller.request_id;
    let missing = || Problem::new(ErrorCode::NotFound, id, "There is no such conversation.");
    let conversation =
        path.ok().map(|Path(text)| text).filter(|text| !text.contains('\0')).ok_or_else(missing)?;
    let removal = http
        .operations
        .delete_conversation(
            caller.bearer.tenant,
            ConversationId::new(conversation),
            caller.subject,
        )
        .await
        .map_err(|error| database_problem(id, &error))?;
    match removal {
        Removal::Removed => Ok(StatusCode::NO_CONTENT.into_response()),
        Removal::Missing => Err(missing().into()),
        Removal::Busy { retry_after } => {
            let detail = "An operation runs in this conversation; ask again after retry_after_ms.";
            let busy = Problem::new(ErrorCode::ConversationBusy, id, detail);
            Err(busy.retry_after(Some(retry_after)).into())
        }
    }
}
