//! Takes events out of the outbox to the sinks, at least once and in the order of each aggregate.
//!
//! A relay in every node; shares of the aggregates are leased among them, so that one that dies frees
//! its part within seconds. Each sink has a lane of its own, which reads what that sink has not got:
//! a sink that is down holds up no other. See docs/decisions/0010 for why it is built so.

mod landing;
mod lane;
mod shares;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use self::lane::Lane;
use self::shares::Shares;
use super::sinks::EventSink;
use crate::clock::Clock;
use crate::domain::outbox::LetterRules;
use crate::faults::Faults;
use crate::lifecycle::Lifecycle;
use crate::store::Store;

/// How long a share is a relay's after its last sign of life, and how often it gives one.
const LEASE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_secs(1);
/// The part of a lease in which a relay no longer trusts it.
const MARGIN: Duration = Duration::from_secs(1);
/// Rounds between two looks for events that only wait for sinks that are gone from the configuration.
const SETTLE_EVERY: u32 = 60;
/// What leaving in order may take; without it the lease ends by itself.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// Before a lane that panicked is set up again.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// `[outbox]` of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct RelaySettings {
    /// Between two looks at a quiet outbox.
    pub poll: Duration,
    /// Events read at once, at least 1.
    pub batch: u32,
    pub letters: LetterRules,
}

/// The relay of a node.
pub struct Relay {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    pub faults: Faults,
    pub settings: RelaySettings,
    /// Each with a name of its own; none: there is nothing to do.
    pub sinks: Vec<Arc<dyn EventSink>>,
}

/// What the lanes of a relay share.
struct Common {
    store: Store,
    clock: Clock,
    lifecycle: Lifecycle,
    faults: Faults,
    settings: RelaySettings,
    /// The names of all sinks.
    sinks: Vec<String>,
    shares: Shares,
}

impl Relay {
    /// Works until the process is over.
    pub fn start(self) {
        let Relay { store, clock, lifecycle, faults, settings, sinks } = self;
        if sinks.is_empty() {
            return;
        }
        let names: Vec<String> = sinks.iter().map(|sink| sink.name().to_owned()).collect();
        tracing::info!(event = "relay_started", sinks = names.join(" "), "events are relayed");
        let shares = Shares::new(clock.clone());
        let common = Arc::new(Common {
            store,
            clock: clock.clone(),
            lifecycle: lifecycle.clone(),
            faults,
            settings,
            sinks: names,
            shares,
        });
        lifecycle.spawn(async move {
            let lanes: Vec<_> = sinks
                .into_iter()
                .map(|sink| common.lifecycle.spawn(tended(common.clone(), sink)))
                .collect();
            let relay = common.clock.new_id();
            tokio::select! {
                () = common.lifecycle.over() => {}
                () = common.hold_shares(relay) => {}
            }
            for lane in lanes {
                // Its panic was logged where it happened.
                let _ = lane.await;
            }
            let leaving = common.store.leave_shares(relay);
            let _ = common.clock.timeout(LEAVE_LIMIT, leaving).await;
        });
    }
}

/// Keeps a lane going: a panic in it is a bug, but must not end the deliveries to its sink.
async fn tended(common: Arc<Common>, sink: Arc<dyn EventSink>) {
    loop {
        let lane = Lane::new(common.clone(), sink.clone());
        if common.lifecycle.spawn(lane.run()).await.is_ok() {
            return;
        }
        tracing::error!(
            event = "relay_failed",
            sink = sink.name(),
            "its lane panicked, and begins anew"
        );
        common.clock.sleep(AFTER_PANIC).await;
    }
}

impl Common {
    /// Renews the leases and tells how the outbox stands, round by round.
    async fn hold_shares(&self, relay: Uuid) {
        let (mut rounds, mut failed) = (0_u32, false);
        loop {
            let sent = self.clock.now();
            let back = self.shares.to_give_back();
            match self.store.keep_shares(relay, LEASE, back).await {
                Ok(round) => {
                    failed = false;
                    let (count, living) = (round.shares.len(), round.living);
                    if self.shares.held(round, sent + (LEASE - MARGIN)) {
                        tracing::info!(
                            event = "relay_shares",
                            shares = count,
                            living,
                            "shares of the outbox"
                        );
                        rounds = 0;
                    }
                }
                Err(error) if !failed => {
                    failed = true;
                    tracing::warn!(event = "relay_failed", %error, "the leases could not be renewed; deliveries pause");
                }
                Err(_) => {}
            }
            if !failed {
                self.tell_standing().await;
                if rounds.is_multiple_of(SETTLE_EVERY) {
                    self.settle().await;
                }
            }
            rounds = rounds.wrapping_add(1);
            self.clock.sleep_until(sent + ROUND).await;
        }
    }

    async fn tell_standing(&self) {
        if let Ok(standing) = self.store.outbox_standing().await {
            metrics::gauge!("oncekey_outbox_lag_seconds").set(standing.lag.as_secs_f64());
            metrics::gauge!("oncekey_outbox_dead").set(standing.dead as f64);
        }
    }

    async fn settle(&self) {
        match self.store.settle_events(self.sinks.clone(), self.shares.usable()).await {
            Ok(0) => {}
            Ok(events) => tracing::info!(
                event = "events_settled",
                events,
                "events that waited only for sinks that are gone from the configuration"
            ),
            Err(error) => tracing::warn!(event = "relay_failed", %error, "could not settle events"),
        }
    }
}
