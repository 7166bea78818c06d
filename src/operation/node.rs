//! This process among the others: registered, locked, beating, and watching who else is gone.
//!
//! One task owns the session. Any error closes it, and opening it anew, at once, takes the lock back
//! well within the second that a detector waits.

use std::sync::OnceLock;
use std::time::Duration;

use super::heartbeat::BeatingRuns;
use crate::clock::{Clock, Moment};
use crate::domain::ids::NodeId;
use crate::faults::{Fault, Faults};
use crate::lifecycle::Lifecycle;
use crate::store::{Beat, BeatingRun, NodeSession, Registration, Store, StoreError};

/// How often other nodes' locks are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// From one try to open a session to the next.
const REOPEN_AFTER: Duration = Duration::from_millis(200);

/// What the node's task needs.
pub struct Node {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    pub runs: BeatingRuns,
    pub advertised: String,
    pub heartbeat: Duration,
    pub stall: Stall,
}

impl Node {
    /// Registers once, so that claims have an owner, and goes on in the background.
    pub async fn start(self) -> Result<(), StoreError> {
        let mut id = self.store.new_node_id().await?;
        let session = self.open(&mut id).await?;
        let lifecycle = self.lifecycle.clone();
        lifecycle.clone().spawn(async move {
            tokio::select! {
                // Whatever the session is about: a database that does not answer holds no exit up,
                // and a socket that closes gives the lock back.
                () = lifecycle.over() => {}
                () = self.live(id, session) => {}
            }
        });
        Ok(())
    }

    async fn live(self, mut id: NodeId, first: NodeSession) {
        let mut session = Some(first);
        loop {
            let begun = self.clock.now();
            let opened = match session.take() {
                Some(session) => Ok(session),
                None => self.open(&mut id).await,
            };
            let ended = match opened {
                Ok(mut session) => self.beat_until_it_fails(id, &mut session).await,
                Err(error) => Err(error),
            };
            match ended {
                Ok(Ended::Dead) => {
                    tracing::error!(
                        event = "node_replaced",
                        node = %id,
                        "declared dead by another node; its runs are dropped"
                    );
                    self.runs.stop_all();
                }
                Ok(Ended::Unregistered) => {}
                Err(error) => {
                    tracing::warn!(
                        event = "node_session_lost",
                        node = %id,
                        %error,
                        "the node's session is opened anew"
                    );
                }
            }
            // None after a session that stood: others are about to find its lock free.
            self.clock.sleep_until(begun + REOPEN_AFTER).await;
        }
    }

    /// Opens a session and registers; under a new id where the old one was declared dead.
    async fn open(&self, id: &mut NodeId) -> Result<NodeSession, StoreError> {
        let mut session = self.store.open_node_session().await?;
        while session.register(*id, &self.advertised).await? == Registration::Dead {
            self.runs.stop_all();
            *id = self.store.new_node_id().await?;
        }
        self.store.set_node(*id);
        tracing::info!(event = "node_registered", node = %id, "registered and locked");
        Ok(session)
    }

    async fn beat_until_it_fails(
        &self,
        id: NodeId,
        session: &mut NodeSession,
    ) -> Result<Ended, StoreError> {
        let mut next_beat = self.clock.now();
        let mut next_look = next_beat;
        loop {
            let due = next_beat.min(next_look);
            self.clock.sleep_until(due).await;
            if self.clock.now() >= next_look {
                if let Some(ended) = self.look(id, session).await? {
                    return Ok(ended);
                }
                next_look = self.clock.now() + LOOK_EVERY;
            }
            if self.clock.now() >= next_beat {
                next_beat = self.clock.now() + self.heartbeat;
                self.beat(session).await?;
            }
        }
    }

    /// How this node stands, and who else is gone. What a node that stands as dead claims is taken
    /// over at once, so it has to learn of it soon.
    async fn look(
        &self,
        id: NodeId,
        session: &mut NodeSession,
    ) -> Result<Option<Ended>, StoreError> {
        match session.own_standing(id).await? {
            Some(Registration::Registered) => {}
            Some(Registration::Dead) => return Ok(Some(Ended::Dead)),
            None => return Ok(Some(Ended::Unregistered)),
        }
        session.hold_lock(id).await?;
        for dead in session.detect_dead(id).await? {
            tracing::warn!(event = "node_dead", node = %dead, "a node is gone");
        }
        Ok(None)
    }

    async fn beat(&self, session: &mut NodeSession) -> Result<(), StoreError> {
        let runs = self.runs.beating();
        if !runs.is_empty() {
            let sent: Moment = self.clock.now();
            let answers = match self.stall.withheld(&runs, sent) {
                Some(answers) => answers,
                None => session.beat(&runs).await?,
            };
            self.runs.beaten(&runs, &answers, sent);
        }
        Ok(())
    }
}

enum Ended {
    Dead,
    Unregistered,
}

/// Beats that are not sent because a fault was asked for. The node takes them for landed, as one that
/// sleeps would: so only the others, who see it silent, and the fence stand against what it does next.
#[derive(Default)]
pub struct Stall {
    faults: Faults,
    /// Known with the first run.
    over: OnceLock<Moment>,
}

impl Stall {
    pub fn new(faults: Faults) -> Self {
        Self { faults, over: OnceLock::new() }
    }

    /// What the node believes instead of asking; `None`: it beats.
    fn withheld(&self, runs: &[BeatingRun], now: Moment) -> Option<Vec<Beat>> {
        let time = self.faults.duration(Fault::HeartbeatStall)?;
        let over = *self.over.get_or_init(|| now + time);
        let stalled = now < over && self.faults.take(Fault::HeartbeatStall);
        stalled.then(|| runs.iter().map(|_| Beat::Landed).collect())
    }
}
