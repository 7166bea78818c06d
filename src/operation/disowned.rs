//! Claims whose answer never came, though it was asked for again.
//!
//! Such a claim may stand all the same, without a run: its key and its conversation would be taken
//! until it goes stale. It is looked for until the database answers, and released.

use std::time::Duration;

use tracing::Instrument;
use uuid::Uuid;

use super::Inner;
use crate::domain::failure::FailureKind;
use crate::domain::ids::{RequestId, TenantId};
use crate::domain::record::State;
use crate::store::{CommitOutcome, Failure, Store, StoreError};

/// Between two looks while the database is away.
const PAUSE: Duration = Duration::from_millis(250);

/// Releases what `arrival` may have claimed, in the background, for as long as nobody else may.
pub(super) fn release(inner: &Inner, tenant: TenantId, key: Uuid, arrival: RequestId) {
    let (store, clock, lifecycle) =
        (inner.store.clone(), inner.clock.clone(), inner.lifecycle.clone());
    let until = clock.now() + store.liveness_rules().stale_after;
    let work = async move {
        while clock.now() < until {
            tokio::select! {
                () = clock.sleep(PAUSE) => {}
                () = lifecycle.cut() => return,
            }
            match release_once(&store, tenant.clone(), key, arrival).await {
                Ok(false) => return,
                Ok(true) => {
                    tracing::warn!(event = "released", "a claim without a run is released");
                    return;
                }
                Err(error) if error.is_unavailable() || error.is_conflict() => {}
                Err(error) => {
                    tracing::error!(%error, "a claim without a run goes stale");
                    return;
                }
            }
        }
    };
    inner.lifecycle.spawn_run(work.in_current_span());
}

/// `false`: this arrival has claimed nothing, or no longer.
async fn release_once(
    store: &Store,
    tenant: TenantId,
    key: Uuid,
    arrival: RequestId,
) -> Result<bool, StoreError> {
    let Some(record) = store.record(tenant, key).await? else { return Ok(false) };
    if record.guard.request_id != arrival || record.state != State::InProgress {
        return Ok(false);
    }
    let failure = Failure {
        at: record.at,
        guard: record.guard,
        operation_id: record.operation_id,
        kind: FailureKind::Released.as_str(),
        answer: None,
        quota_hit: false,
        refused_by: None,
        calls: Vec::new(),
    };
    Ok(store.fail(failure).await? == CommitOutcome::Committed)
}
