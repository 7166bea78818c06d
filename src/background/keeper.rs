//! Makes partitions days before they are needed, so that one missed round costs nothing, and lets old
//! ones go when nothing in them is promised any more.

use std::collections::BTreeSet;
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

const RUNWAY: &str = "oncekey_partition_runway_days";
const OVERDUE: &str = "oncekey_partition_overdue_days";
const FAILURES: &str = "oncekey_keeper_failures_total";
const SECONDS_OF_A_DAY: f64 = 86_400.0;

/// A part of the keeper's work, as its failures are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Making days ahead.
    Make,
    /// Reading which days there are.
    Look,
    Drop,
    /// Clearing away the keys of dropped days.
    Keys,
    /// Refused inputs and chunks.
    Forget,
    Retention,
    /// The object store, of the retention.
    Captures,
    /// All of it: nothing answered.
    Round,
}

/// What failed in a round.
struct Failed {
    part: Part,
    error: StoreError,
}

impl Part {
    const ALL: [Part; 8] = [
        Part::Make,
        Part::Look,
        Part::Drop,
        Part::Keys,
        Part::Forget,
        Part::Retention,
        Part::Captures,
        Part::Round,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Part::Make => "make",
            Part::Look => "look",
            Part::Drop => "drop",
            Part::Keys => "keys",
            Part::Forget => "forget",
            Part::Retention => "retention",
            Part::Captures => "captures",
            Part::Round => "round",
        }
    }

    /// All are there from the start: a rate of what does not exist is no alert.
    fn introduce() {
        // The last one is counted where an arrival finds no partition and cannot make it.
        for what in Self::ALL.map(Self::as_str).into_iter().chain(["claim"]) {
            metrics::counter!(FAILURES, "what" => what).increment(0);
        }
    }

    fn count(self) {
        metrics::counter!(FAILURES, "what" => self.as_str()).increment(1);
    }

    /// Counted where it happens, so that one that is not the round's first is counted too.
    fn failed(self, error: StoreError) -> Failed {
        self.count();
        Failed { part: self, error }
    }
}

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
        Part::introduce();
        self.lifecycle.clone().spawn(async move {
            let mut memory = Memory::default();
            loop {
                let round = async {
                    let round = self.clock.timeout(ROUND_LIMIT, self.round(&mut memory)).await;
                    let silent = || StoreError::Unavailable("it did not answer in time".into());
                    let pause = match round.unwrap_or_else(|_| Err(Part::Round.failed(silent()))) {
                        Ok(()) => ROUND,
                        Err(Failed { part, error }) => {
                            let part = part.as_str();
                            tracing::error!(event = "partitions_failed", part, %error, "partitions could not be looked after");
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

    /// What stands in the way of making a day keeps no old one from going: the first error is told at
    /// the end.
    async fn round(&self, memory: &mut Memory) -> Result<(), Failed> {
        let made = self.store.ensure_partitions().await.map_err(|error| Part::Make.failed(error));
        let runway = self.store.runway().await;
        let runway = runway.map_err(|error| Part::Look.failed(error))?;
        metrics::gauge!(RUNWAY).set(f64::from(runway.days_ahead));
        match &made {
            Ok(made) if !made.is_empty() => {
                tracing::info!(event = "partitions_made", ?made, "partitions made");
            }
            Ok(_) | Err(_) => {}
        }
        let old = self.old(memory).await;
        made.and(old)
    }

    /// What only one node at a time does.
    async fn old(&self, memory: &mut Memory) -> Result<(), Failed> {
        let session = self.store.partition_session().await;
        let mut session = session.map_err(|error| Part::Look.failed(error))?;
        self.tell_overdue(&mut session, &BTreeSet::new()).await?;
        if !session.alone().await.map_err(|error| Part::Look.failed(error))? {
            return session.close().await.map_err(|error| Part::Look.failed(error));
        }
        self.forget().await.map_err(|error| Part::Forget.failed(error))?;
        let mut kept = BTreeSet::new();
        let tell = |retired: Retired| {
            if let Retired::Stays { table, .. } | Retired::Detached { table, .. } = &retired {
                kept.insert(table.clone());
            }
            log(retired);
        };
        let rule = DropRule::of(self.retention);
        let dropped = drop_old(&mut session, &rule, PATIENCE, &self.clock, tell).await;
        dropped.map_err(|error| Part::Drop.failed(error))?;
        let partitions = self.tell_overdue(&mut session, &kept).await?;
        if memory.cleaned.as_ref() != Some(&partitions) {
            let age = self.retention.saturating_add(self.derive_window);
            let cleared = clear_keys(&mut session, age).await;
            let Cleared { keys, derived_keys } =
                cleared.map_err(|error| Part::Keys.failed(error))?;
            tracing::info!(event = "keys_cleared", keys, derived_keys, "old keys cleared away");
            memory.cleaned = Some(partitions);
        }
        let taken = self.take_away(&mut session, memory).await;
        taken.map_err(|error| Part::Retention.failed(error))?;
        session.close().await.map_err(|error| Part::Look.failed(error))
    }

    /// Sets for how long the oldest partition could have gone; those that are `kept` for what they hold
    /// could not. All partitions as they are now.
    async fn tell_overdue(
        &self,
        session: &mut PartitionSession,
        kept: &BTreeSet<String>,
    ) -> Result<Vec<Partition>, Failed> {
        let looked = async { Ok((session.partitions().await?, session.now().await?)) };
        let (partitions, now) = looked.await.map_err(|error| Part::Look.failed(error))?;
        let rule = DropRule::of(self.retention);
        let overdue = partitions
            .iter()
            .filter(|partition| !kept.contains(&partition.table))
            .filter_map(|partition| rule.overdue(partition.day()?, now))
            .max()
            .unwrap_or_default();
        metrics::gauge!(OVERDUE).set(overdue.as_secs_f64() / SECONDS_OF_A_DAY);
        Ok(partitions)
    }

    async fn forget(&self) -> Result<(), StoreError> {
        let inputs = self.store.forget_refused_inputs().await?;
        if inputs > 0 {
            tracing::info!(event = "refused_inputs_forgotten", inputs, "refused inputs forgotten");
        }
        self.forget_chunks().await
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
                Part::Captures.count();
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
