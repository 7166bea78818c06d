//! Arrivals that wait for somebody else's run.
//!
//! Those of a run in this node are woken when it ends. Runs of other nodes are looked at by one poll
//! per node, however many wait: a notification in every commit would cost all of them more. Whoever is
//! woken by a verdict is handed it: thousands that read it for themselves would stand before the
//! database for seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::clock::Clock;
use crate::domain::hash::RequestHash;
use crate::domain::ids::TenantId;
use crate::domain::record::{Guard, Record, State, StoredAnswer};
use crate::lifecycle::Lifecycle;
use crate::store::Store;

/// Between two looks at what is waited for.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// Keys of one look; more take several, one after the other.
const AT_ONCE: usize = 1_000;

type WaitKey = (TenantId, Uuid);

/// How an operation ended, for whoever asked the same.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The meaning of the request that it answers.
    pub hash: RequestHash,
    pub answer: Arc<StoredAnswer>,
    /// Of the run that produced it.
    pub guard: Guard,
}

impl Verdict {
    fn of(record: Record) -> Option<Self> {
        let (hash, guard) = (record.request_hash, record.guard);
        match record.state {
            State::Committed(Some(answer)) | State::FailedFinal(Some(answer)) => {
                Some(Self { hash, guard, answer: Arc::new(answer) })
            }
            _ => None,
        }
    }
}

/// What those who wait for a run are told, and how often they were.
#[derive(Debug, Clone, Default)]
struct Told {
    times: u64,
    verdict: Option<Verdict>,
}

/// Who waits for which run. Clones are one and the same.
#[derive(Debug, Clone, Default)]
pub struct Waiting(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waited: Mutex<HashMap<WaitKey, watch::Sender<Told>>>,
    somebody: Notify,
}

/// A place among those who wait; what happens after it was taken is not missed.
#[derive(Debug)]
pub struct Ticket {
    key: WaitKey,
    woken: watch::Receiver<Told>,
    waiting: Waiting,
}

impl Waiting {
    /// Takes a place. Look at the record again after this and before the wait.
    pub fn take_ticket(&self, tenant: &TenantId, key: Uuid) -> Ticket {
        let key = (tenant.clone(), key);
        let woken = {
            let mut waited = self.lock();
            waited.entry(key.clone()).or_default().subscribe()
        };
        self.0.somebody.notify_one();
        Ticket { key, woken, waiting: self.clone() }
    }

    /// The run under this key has ended, with this verdict if with any, or has nobody any more.
    pub fn wake(&self, tenant: &TenantId, key: Uuid, verdict: Option<Verdict>) {
        if let Some(sender) = self.lock().get(&(tenant.clone(), key)) {
            sender.send_modify(|told| *told = Told { times: told.times + 1, verdict });
        }
    }

    /// Looks at everything that is waited for, until the process is over.
    pub fn start_polling(&self, store: Store, clock: Clock, lifecycle: Lifecycle) {
        let this = self.clone();
        lifecycle.clone().spawn(async move {
            loop {
                tokio::select! {
                    () = lifecycle.over() => return,
                    () = this.poll(&store, &clock) => {}
                }
            }
        });
    }

    async fn poll(&self, store: &Store, clock: &Clock) {
        let waited: Vec<WaitKey> = self.lock().keys().cloned().collect();
        if waited.is_empty() {
            self.0.somebody.notified().await;
            return;
        }
        for keys in waited.chunks(AT_ONCE) {
            match store.no_longer_running(keys.to_vec()).await {
                Ok(ended) => {
                    for (tenant, key) in ended {
                        // Read once for all who wait; where that fails, each looks for itself.
                        let record = store.record(tenant.clone(), key).await.ok().flatten();
                        self.wake(&tenant, key, record.and_then(Verdict::of));
                    }
                }
                Err(error) => tracing::warn!(
                    event = "waiting_blind",
                    %error,
                    "what is waited for could not be looked at"
                ),
            }
        }
        clock.sleep(POLL_EVERY).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WaitKey, watch::Sender<Told>>> {
        // The map is whole between any two statements that hold the lock.
        self.0.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Whether this is a place at that key.
    pub fn is_for(&self, key: Uuid) -> bool {
        self.key.1 == key
    }

    /// Ready once the run has ended or has nobody any more, counted from the last wait; with its
    /// verdict, where there is one.
    pub async fn woken(&mut self) -> Option<Verdict> {
        // The sender lives in the map as long as anybody waits.
        drop(self.woken.changed().await);
        self.woken.borrow_and_update().verdict.clone()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut waited = self.waiting.lock();
        if waited.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            waited.remove(&self.key);
        }
    }
}
