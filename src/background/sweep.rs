//! Ends runs that nobody owns and that no arrival took over, so that no record stays in progress and
//! no conversation stays held.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::domain::failure::FailureKind;
use crate::lifecycle::Lifecycle;
use crate::store::{Store, StoreError};

/// Runs ended in one look; more wait for the next.
const AT_ONCE: i64 = 100;

/// The sweep of a node. Several may run on one database: each run is ended once, under its lock.
pub struct Sweep {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
}

impl Sweep {
    /// Looks until the process is over, a dozen times within `stale_after`.
    pub fn start(self) {
        let every = (self.store.liveness_rules().stale_after / 12).max(Duration::from_millis(100));
        self.lifecycle.clone().spawn(async move {
            loop {
                tokio::select! {
                    () = self.lifecycle.over() => return,
                    () = self.clock.sleep(every) => {}
                }
                if let Err(error) = sweep(&self.store).await {
                    tracing::warn!(event = "sweep_failed", %error, "the sweep could not look; it will again");
                }
            }
        });
    }
}

/// One look. Returns how many runs were ended.
pub async fn sweep(store: &Store) -> Result<usize, StoreError> {
    let mut ended = 0;
    for record in store.ownerless_runs(AT_ONCE).await? {
        let (tenant, run) = (record.at.tenant.clone(), record.guard.request_id);
        let (fence, owner) = (record.guard.fence, record.liveness.owner);
        if store.abandon(Arc::new(record), FailureKind::Abandoned.as_str()).await? {
            ended += 1;
            tracing::warn!(
                event = "abandoned",
                tenant_id = %tenant,
                request_id = %run,
                %fence,
                ?owner,
                "a run without a live owner was ended; its next arrival runs again"
            );
        }
    }
    store.forget_dead_nodes().await?;
    Ok(ended)
}
