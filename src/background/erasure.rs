//! Erasing an end user: everything that this user said, sent and was answered, in steps that may be
//! interrupted anywhere and done again.
//!
//! Records come first and conversations last, each with its turns and the answers that they lead to: so at
//! no moment do turns miss whose answer is still replayed.

use super::retention::{PAUSE, RetentionError, delete_capture};
use crate::captures::Captures;
use crate::clock::Clock;
use crate::domain::ids::OperationId;
use crate::store::{Deletion, Erasing, PartitionSession, RunningOperation, Store, StoreError};

/// What went, and what stayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Erased {
    pub conversations: u64,
    pub turns: u64,
    /// Stored answers and final refusals; a replay of them is 410 `erased`.
    pub answers: u64,
    pub parse_results: u64,
    pub captures: u64,
    /// Bytes of those captures.
    pub capture_bytes: u64,
    /// Of parses that had not ended.
    pub chunks: u64,
    pub refused_inputs: u64,
    /// They stay, without text.
    pub receipts: u64,
}

/// How an erasure ended.
#[derive(Debug)]
pub enum Erasure {
    Complete(Erased),
    /// Operations of the end user run; nothing was erased.
    Refused(Vec<RunningOperation>),
    /// Operations began meanwhile: what they leave is still there.
    Incomplete(Erased, Vec<RunningOperation>),
}

/// Who erases, and with what.
pub struct Eraser<'a> {
    pub store: &'a Store,
    pub captures: &'a Captures,
    pub clock: &'a Clock,
}

impl Eraser<'_> {
    /// Erases all of it. Needs [`PartitionSession::alone`], so that no partition is dropped underneath.
    ///
    /// # Errors
    /// The first of the database or the object store; what was erased is, and the rest goes when this is
    /// done again.
    pub async fn erase(
        &self,
        session: &mut PartitionSession,
        whose: &Erasing,
    ) -> Result<Erasure, RetentionError> {
        let running = session.running_of(whose).await?;
        if !running.is_empty() {
            return Ok(Erasure::Refused(running));
        }
        let mut erased = Erased::default();
        let parses = self.records(session, whose, &mut erased).await?;
        self.results(session, whose, &mut erased).await?;
        self.captures(session, whose, &mut erased).await?;
        // An upload whose run ended before it was written down.
        for parse in parses {
            self.captures.delete_stored(&whose.tenant, parse.0).await?;
        }
        self.conversations(session, whose, &mut erased).await?;
        erased.receipts = session.receipts_of(whose).await?;
        let running = session.running_of(whose).await?;
        if running.is_empty() {
            Ok(Erasure::Complete(erased))
        } else {
            Ok(Erasure::Incomplete(erased, running))
        }
    }

    async fn records(
        &self,
        session: &mut PartitionSession,
        whose: &Erasing,
        erased: &mut Erased,
    ) -> Result<Vec<OperationId>, StoreError> {
        let mut parses = Vec::new();
        for partition in session.partitions().await? {
            let mut next = Some(0);
            while let Some(block) = next {
                let step = session.erase_records(whose, &partition, block).await?;
                erased.answers += step.answers;
                erased.chunks += step.chunks;
                erased.refused_inputs += step.refused_inputs;
                parses.extend(step.parses);
                next = step.next_block;
                self.clock.sleep(PAUSE).await;
            }
        }
        Ok(parses)
    }

    async fn results(
        &self,
        session: &mut PartitionSession,
        whose: &Erasing,
        erased: &mut Erased,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let (gone, last) = session.erase_results(whose, after).await?;
            erased.parse_results += gone;
            after = last;
            if after.is_none() {
                return Ok(());
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    async fn captures(
        &self,
        session: &mut PartitionSession,
        whose: &Erasing,
        erased: &mut Erased,
    ) -> Result<(), RetentionError> {
        let mut after = None;
        loop {
            let some = session.captures_of(whose, after).await?;
            let Some(last) = some.last() else { return Ok(()) };
            after = Some(last.id);
            for capture in &some {
                delete_capture(session, self.captures, capture).await?;
                erased.captures += 1;
                erased.capture_bytes += u64::try_from(capture.bytes).unwrap_or(0);
            }
        }
    }

    async fn conversations(
        &self,
        session: &mut PartitionSession,
        whose: &Erasing,
        erased: &mut Erased,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let some = session.conversations_of(whose, after.as_ref()).await?;
            let Some(last) = some.last() else { return Ok(()) };
            after = Some(last.clone());
            for conversation in some {
                let (deletion, gone) =
                    self.store.erase_conversation(whose.clone(), conversation).await?;
                match deletion {
                    Deletion::Deleted => {
                        erased.conversations += 1;
                        erased.turns += gone.turns;
                        erased.answers += gone.answers;
                    }
                    // Gone already; or held by an operation that began meanwhile, which is told at the end.
                    Deletion::Missing | Deletion::Busy(_) => {}
                }
            }
        }
    }
}
