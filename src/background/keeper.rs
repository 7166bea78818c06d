//! Makes partitions days before they are needed, so that one missed round costs nothing, and lets old
//! ones go when nothing in them is promised any more.

use std::time::Duration;

use super::retention::{Retention, RetentionError, RetentionPass, RetentionRules, TakenAway};
use super::retirement::{Cleared, Retired, clear_keys, drop_old, named};
use crate::captures::Captures;
use crate::clock::{Clock, Moment};
use crate::domain::partition::DropRule;
use crate::lifecycle::Lifecycle;
use crate::store::{Partition, PartitionSession, Store, StoreError};

/// Between two rounds, and after one that failed.
const ROUND: Duration = Duration::from_secs(600);
const AFTER_FAILURE: Duration = Duration::from_secs(15);
/// A round that takes longer hangs: its connection has gone silent.
const ROUND_LIMIT: Duration = Duration::from_secs(3_600);
/// Chunks of parses that are deleted in one transaction.
const CHUNKS_AT_ONCE: i64 = 200;
/// How long a round waits for a partition that somebody reads; the next one goes on.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a round takes away what is over its time; the next one goes on.
const TAKING_AWAY: Duration = Duration::from_secs(120);

/// The keeper of a node. Making is done by whoever comes first; for dropping and cleaning a lock lets
/// one of them work at a time.
pub struct Keeper {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    /// How long an answer can be replayed, from its completion.
    pub retention: Duration,
    /// How long an equal request without a key is the same operation.
    pub derive_window: Duration,
    /// How long everything else is kept.
    pub rules: RetentionRules,
    pub captures: Captures,
}

/// What a keeper knows from one round to the next.
#[derive(Default)]
struct Memory {
    /// What was attached when the keys were last cleared away: they are read through only where that has
    /// changed, by us or by hand.
    cleaned: Option<Vec<Partition>>,
    pass: RetentionPass,
    /// When the next pass over what is kept for a time begins.
    next_pass: Option<Moment>,
}

impl Keeper {
    /// Works until the process is over. A round that is then under way is left where it is: its
    /// session ends, and a detaching is finished by whoever comes next.
    pub fn start(self) {
        self.lifecycle.clone().spawn(async move {
            let mut memory = Memory::default();
            loop {
                let round = async {
                    let round = self.clock.timeout(ROUND_LIMIT, self.round(&mut memory)).await;
                    let silent = || StoreError::Unavailable("it did not answer in time".into());
                    let pause = match round.map_err(|_| silent()).flatten() {
                        Ok(()) => ROUND,
                        Err(error) => {
                            tracing::error!(event = "partitions_failed", %error, "partitions could not be looked after");
                            AFTER_FAILURE
                        }
                    };
                    self.clock.sleep(pause).await;
                };
                tokio::select! {
                    () = self.lifecycle.over() => return,
                    () = round => {}
                }
            }
        });
    }

    async fn round(&self, memory: &mut Memory) -> Result<(), StoreError> {
        let made = self.store.ensure_partitions().await;
        let runway = self.store.runway().await?;
        metrics::gauge!("oncekey_partition_runway_days").set(f64::from(runway.days_ahead));
        let made = made?;
        if !made.is_empty() {
            tracing::info!(event = "partitions_made", ?made, "partitions made");
        }
        let mut session = self.store.partition_session().await?;
        if !session.alone().await? {
            return session.close().await;
        }
        let inputs = self.store.forget_refused_inputs().await?;
        if inputs > 0 {
            tracing::info!(event = "refused_inputs_forgotten", inputs, "refused inputs forgotten");
        }
        self.forget_chunks().await?;
        drop_old(&mut session, &DropRule::of(self.retention), PATIENCE, &self.clock, log).await?;
        let partitions = session.partitions().await?;
        if memory.cleaned.as_ref() != Some(&partitions) {
            let age = self.retention.saturating_add(self.derive_window);
            let Cleared { keys, derived_keys } = clear_keys(&mut session, age).await?;
            tracing::info!(event = "keys_cleared", keys, derived_keys, "old keys cleared away");
            memory.cleaned = Some(partitions);
        }
        self.take_away(&mut session, memory).await?;
        session.close().await
    }
}

impl Keeper {
    /// A part of a pass over what is kept for a time, where one is due.
    async fn take_away(
        &self,
        session: &mut PartitionSession,
        memory: &mut Memory,
    ) -> Result<(), StoreError> {
        let began = self.clock.now();
        if memory.next_pass.is_some_and(|due| began < due) {
            return Ok(());
        }
        let retention = Retention {
            captures: &self.captures,
            rules: self.rules,
            clock: &self.clock,
            deadline: began + TAKING_AWAY,
        };
        let mut taken = TakenAway::default();
        let ended = retention.round(session, &mut memory.pass, &mut taken).await;
        if taken != TakenAway::default() {
            tracing::info!(
                event = "retention",
                turns = taken.turns,
                parse_results = taken.parse_results,
                provider_calls = taken.provider_calls,
                captures = taken.captures,
                "what was over its time was deleted"
            );
        }
        match ended {
            Ok(true) => memory.next_pass = Some(self.clock.now() + self.rules.rest()),
            Ok(false) => {}
            Err(RetentionError::Store(error)) => return Err(error),
            // The database is well: nothing else has to wait for the captures.
            Err(RetentionError::Captures(error)) => {
                tracing::error!(event = "retention_failed", %error, "captures could not be deleted; the next round tries again");
            }
        }
        Ok(())
    }

    /// Chunks of parses that no run went on with.
    async fn forget_chunks(&self) -> Result<(), StoreError> {
        let mut chunks = 0;
        loop {
            let gone = self.store.forget_chunks(self.retention, CHUNKS_AT_ONCE).await?;
            chunks += gone;
            if i64::try_from(gone).is_ok_and(|gone| gone < CHUNKS_AT_ONCE) {
                break;
            }
        }
        if chunks > 0 {
            tracing::info!(
                event = "chunks_forgotten",
                chunks,
                "chunks of unfinished parses forgotten"
            );
        }
        Ok(())
    }
}

fn log(retired: Retired) {
    match retired {
        Retired::Dropped { table } => {
            tracing::info!(event = "partition_dropped", table, "partition dropped");
        }
        Retired::Detached { table, why } => {
            tracing::warn!(event = "partition_detached", table, %why, "a detaching that was begun by hand is finished; its table is kept");
        }
        Retired::Stays { table, why } => {
            tracing::debug!(event = "partition_kept", table, %why, "partition stays");
        }
        Retired::Waits { table, readers } => {
            tracing::info!(
                event = "partition_waits",
                table,
                readers = named(&readers),
                "dropping waits for transactions that read"
            );
        }
        Retired::LeftWaiting { table, readers } => {
            tracing::warn!(
                event = "partition_waits",
                table,
                readers = named(&readers),
                "dropping still waits for transactions that read; the next round goes on"
            );
        }
    }
}
