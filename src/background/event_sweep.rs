//! Deletes events that were published longer ago than they are kept. In small pieces with a pause
//! between them, so that nobody who claims or commits feels it. What was never published stays.

use std::time::Duration;

use crate::clock::Clock;
use crate::lifecycle::Lifecycle;
use crate::store::Store;

/// Rows of one transaction.
const PIECE: i64 = 500;
/// Between two pieces: 5,000 rows a second, several times what a node writes.
const BETWEEN: Duration = Duration::from_millis(100);
const ROUND: Duration = Duration::from_secs(60);

/// The sweep of a node. Several may run on one database: rows that one has locked the others pass.
pub struct EventSweep {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    /// How long events are kept after they were published.
    pub kept: Duration,
}

impl EventSweep {
    /// Works until the process is over.
    pub fn start(self) {
        self.lifecycle.clone().spawn(async move {
            loop {
                tokio::select! {
                    () = self.lifecycle.over() => return,
                    () = self.round() => {}
                }
            }
        });
    }

    async fn round(&self) {
        let mut swept = 0;
        loop {
            match self.store.sweep_events(self.kept, PIECE).await {
                Ok(rows) => {
                    swept += rows;
                    if rows < PIECE.unsigned_abs() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(event = "events_unswept", %error, "old events could not be deleted; the next round goes on");
                    break;
                }
            }
            self.clock.sleep(BETWEEN).await;
        }
        if swept > 0 {
            tracing::info!(event = "events_swept", events = swept, "old events deleted");
        }
        self.clock.sleep(ROUND).await;
    }
}
