//! The set of beating runs, and how long each may trust that it is still its own.
//!
//! A run has a [`Seat`] for as long as it works. To settle it must hand the seat in, so nobody can
//! write a verdict and go on beating. A seat counts from when its last beat was *sent*: past the trust
//! window the run stops itself before it can be replaced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::{Clock, Moment};
use crate::domain::ids::{RequestId, TenantId};
use crate::store::{Beat, BeatingRun, Claim};

/// Why a run must stop without writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The record is another run's now.
    Lost,
    /// Somebody asked for its end, which is written already.
    Cancelled,
    /// No beat got through for so long that somebody may have taken over.
    Untrusted,
}

/// Sorted as the beat locks its rows.
type SeatKey = (TenantId, Uuid, RequestId);

#[derive(Debug)]
struct Entry {
    run: BeatingRun,
    last_sent: Moment,
    stop: watch::Sender<Option<Stop>>,
}

/// All runs of this node that are at work.
#[derive(Debug, Clone)]
pub struct BeatingRuns {
    seats: Arc<Mutex<BTreeMap<SeatKey, Entry>>>,
    clock: Clock,
    trust: Duration,
}

/// A run's place in the set; dropping it leaves the set.
#[derive(Debug)]
pub struct Seat {
    key: SeatKey,
    runs: BeatingRuns,
    stop: watch::Receiver<Option<Stop>>,
}

/// What is known of a run that has left the set.
#[derive(Debug, Clone, Copy)]
pub struct LeftSeat {
    /// Until then the run may write.
    pub trusted_until: Moment,
}

impl BeatingRuns {
    /// `trust` is how long after a beat was sent a run may still write: `stale_after` less a margin.
    pub fn new(clock: Clock, trust: Duration) -> Self {
        Self { seats: Arc::default(), clock, trust }
    }

    /// Gives a claim its seat. `claimed` is the moment before the claim was sent.
    pub fn enter(&self, claim: &Claim, claimed: Moment) -> Seat {
        let key = (claim.at.tenant.clone(), claim.at.key, claim.guard.request_id);
        let run = BeatingRun { at: claim.at.clone(), guard: claim.guard };
        let (sender, stop) = watch::channel(None);
        self.lock().insert(key.clone(), Entry { run, last_sent: claimed, stop: sender });
        metrics::gauge!("oncekey_in_progress").increment(1.0);
        Seat { key, runs: self.clone(), stop }
    }

    /// What the next beat carries.
    pub fn beating(&self) -> Vec<BeatingRun> {
        self.lock().values().map(|entry| entry.run.clone()).collect()
    }

    /// Takes in the answers to a beat that was sent at `sent`. Whoever left meanwhile is passed over.
    pub fn beaten(&self, runs: &[BeatingRun], answers: &[Beat], sent: Moment) {
        let mut seats = self.lock();
        for (run, answer) in runs.iter().zip(answers) {
            let key = (run.at.tenant.clone(), run.at.key, run.guard.request_id);
            let Some(entry) = seats.get_mut(&key) else { continue };
            match answer {
                Beat::Landed => entry.last_sent = sent,
                Beat::Passed => {}
                Beat::Lost => drop(entry.stop.send_replace(Some(Stop::Lost))),
            }
        }
    }

    /// Stops every run: their node was declared dead.
    pub fn stop_all(&self) {
        for entry in self.lock().values() {
            entry.stop.send_replace(Some(Stop::Lost));
        }
    }

    /// Stops the run of a key, whichever it is.
    pub fn cancel(&self, tenant: &TenantId, key: Uuid) {
        for ((its_tenant, its_key, _), entry) in self.lock().iter() {
            if its_tenant == tenant && *its_key == key {
                entry.stop.send_replace(Some(Stop::Cancelled));
            }
        }
    }

    fn trusted_until(&self, key: &SeatKey) -> Option<Moment> {
        self.lock().get(key).map(|entry| entry.last_sent + self.trust)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SeatKey, Entry>> {
        // The map is whole between any two statements that hold the lock.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Ready once the run must stop without writing.
    pub async fn stopped(&self) -> Stop {
        let mut stop = self.stop.clone();
        loop {
            let Some(until) = self.runs.trusted_until(&self.key) else { return Stop::Lost };
            tokio::select! {
                told = stop.wait_for(Option::is_some) => {
                    // The sender lives in the set, which the seat is still in.
                    return told.ok().and_then(|stop| *stop).unwrap_or(Stop::Lost);
                }
                () = self.runs.clock.sleep_until(until) => {
                    // A beat may have landed while this slept.
                    if self.runs.trusted_until(&self.key) == Some(until) {
                        return Stop::Untrusted;
                    }
                }
            }
        }
    }

    /// Leaves the set, so that no beat lands on what is written next.
    pub fn leave(self) -> LeftSeat {
        let trusted_until =
            self.runs.trusted_until(&self.key).unwrap_or_else(|| self.runs.clock.now());
        LeftSeat { trusted_until }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.runs.lock().remove(&self.key).is_some() {
            metrics::gauge!("oncekey_in_progress").decrement(1.0);
        }
    }
}
