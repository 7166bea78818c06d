//! Makes partitions days before they are needed, so that one missed round costs nothing.

use std::time::Duration;

use crate::clock::Clock;
use crate::lifecycle::Lifecycle;
use crate::store::{Store, StoreError};

/// Between two rounds, and after one that failed.
const ROUND: Duration = Duration::from_secs(600);
const AFTER_FAILURE: Duration = Duration::from_secs(15);

/// The keeper of a node. An advisory lock lets one of them work at a time.
pub struct Keeper {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
}

impl Keeper {
    /// Works until the process is over.
    pub fn start(self) {
        self.lifecycle.clone().spawn(async move {
            loop {
                let pause = match self.round().await {
                    Ok(()) => ROUND,
                    Err(error) => {
                        tracing::error!(event = "partitions_failed", %error, "partitions could not be made");
                        AFTER_FAILURE
                    }
                };
                tokio::select! {
                    () = self.lifecycle.over() => return,
                    () = self.clock.sleep(pause) => {}
                }
            }
        });
    }

    async fn round(&self) -> Result<(), StoreError> {
        let made = self.store.ensure_partitions().await?;
        if !made.is_empty() {
            tracing::info!(event = "partitions_made", ?made, "partitions made");
        }
        let runway = self.store.runway().await?;
        metrics::gauge!("oncekey_partition_runway_days").set(f64::from(runway.days_ahead));
        Ok(())
    }
}
