//! Attaching to a stream: for clients, and for the other nodes.

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use uuid::Uuid;

use super::Http;
use super::answer::ProblemResponse;
use super::auth::Caller;
use super::event_stream::{begin, of_feed};
use super::requests::{missing, path_key};
use crate::domain::ids::{RequestId, TenantId};
use crate::domain::problem::{ErrorCode, Problem};
use crate::operation::database_problem;

const PROOF: &str = crate::operation::PEER_PROOF;

/// The stream of a run in progress, or of what it left.
pub async fn get_events(
    State(http): State<Http>,
    caller: Caller,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ProblemResponse> {
    let caller = caller.may_read()?;
    let id = caller.request_id;
    let key = path_key(path, id)?;
    let record = http
        .operations
        .record(caller.bearer.tenant, key.id, caller.subject.as_ref())
        .await
        .map_err(|error| database_problem(id, &error))?
        .ok_or_else(|| missing(id))?;
    if record.erased {
        let detail = "The answer of this operation was erased.";
        return Err(Problem::new(ErrorCode::Erased, id, detail).into());
    }
    let feed = http.operations.events(id, record, begin(&headers)).await?;
    Ok(of_feed(&http.clock, feed))
}

/// What another node asks for.
#[derive(Debug, Deserialize)]
pub struct PeerQuery {
    tenant: String,
    key: Uuid,
    run: Uuid,
    /// A verdict is stored: a stream that ended without one is not wanted.
    #[serde(default)]
    decided: bool,
}

/// The stream of a run at this node, for another node. Whatever is wrong looks the same from outside.
pub async fn get_for_peer(
    State(http): State<Http>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    query: Result<Query<PeerQuery>, QueryRejection>,
) -> Result<Response, ProblemResponse> {
    let feed = query.ok().and_then(|Query(PeerQuery { tenant, key, run, decided })| {
        let proof = headers.get(PROOF)?.to_str().ok()?;
        let (tenant, run) = (TenantId::new(tenant), RequestId(run));
        let begin = begin(&headers);
        http.operations.events_for_peer(proof, &tenant, (key, run), decided, begin)
    });
    match feed {
        Some(feed) => Ok(of_feed(&http.clock, feed)),
        None => Err(Problem::new(ErrorCode::NotFound, id, "There is no such path.").into()),
    }
}
