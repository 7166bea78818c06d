//! Asking about all pieces, some at a time, and what becomes of a piece that fails.
//!
//! A piece whose answer does not fit is asked about in two halves, once. One that cannot be had is a gap
//! where gaps are allowed, and the end of the run where not. What passes (a provider that is away) ends
//! the run: the pieces under way are let come to their end and are kept, and the next run goes on there.

use std::collections::{BTreeMap, HashMap, VecDeque};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;

use super::input::Content;
use super::piece::{Piece, accept, asked};
use crate::domain::failure::FailureKind;
use crate::domain::parse::{Profile, merge};
use crate::domain::prompt::Answer;
use crate::domain::retry::RetryRules;
use crate::domain::verdict::{code_of, is_final};
use crate::operation::attempts::{Answered, Failed};
use crate::operation::calls::CallLog;
use crate::operation::models::Model;
use crate::operation::routes::Routes;
use crate::operation::scope::Run;
use crate::store::{CommitOutcome, DoneChunk, KeptChunk, PaidCall};

/// Calls that are asked for because the answer about a piece was malformed.
const CORRECTIONS: u32 = 1;

/// What a parse found.
pub struct Found {
    /// Merged, in the order of the text.
    pub result: Value,
    pub gaps: Vec<Gap>,
    /// Calls of earlier runs whose output is in the result.
    pub paid: Vec<PaidCall>,
}

/// A piece that could not be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    pub chunk: usize,
    /// Characters of the text.
    pub from: usize,
    pub to: usize,
    pub kind: FailureKind,
}

/// What was got of one piece.
struct Got {
    value: Value,
    source: Source,
}

enum Source {
    /// A call of this run.
    Call(i32),
    /// A call of an earlier one.
    Paid(PaidCall),
}

/// Pieces in the order of the text: by chunk, then by place.
type Place = (usize, usize);

/// Everything that is needed to ask about a piece.
pub struct Asking<'r> {
    run: &'r Run<'r>,
    profile: &'r Profile,
    content: &'r Content,
    calls: &'r CallLog,
    ladder: Vec<&'r Model>,
    routes: Routes,
    rules: RetryRules,
    kept: HashMap<[u8; 32], KeptChunk>,
    pieces: Vec<Piece>,
}

/// Where the asking stands.
struct Progress {
    waiting: VecDeque<Piece>,
    /// Found no place at the provider; they wait until another piece of this run ends.
    put_back: Vec<Piece>,
    got: BTreeMap<Place, (Piece, Got)>,
    gaps: BTreeMap<Place, Gap>,
    /// Pieces left of each chunk.
    left: Vec<usize>,
    /// A failure that passes: nothing more is begun.
    stop: Option<Failed>,
}

impl<'r> Asking<'r> {
    pub fn new(
        run: &'r Run<'r>,
        profile: &'r Profile,
        content: &'r Content,
        calls: &'r CallLog,
        kept: Vec<KeptChunk>,
    ) -> Self {
        let rules = RetryRules { max_corrections: CORRECTIONS, ..run.inner.settings.retry };
        Self {
            ladder: run.ladder(),
            routes: Routes::default(),
            rules,
            kept: kept.into_iter().map(|chunk| (chunk.asked, chunk)).collect(),
            pieces: Piece::all(content),
            run,
            profile,
            content,
            calls,
        }
    }

    /// Asks about everything.
    pub async fn all(&self, allow_gaps: bool) -> Result<Found, Failed> {
        let mut at = Progress {
            waiting: self.pieces.iter().cloned().collect(),
            put_back: Vec::new(),
            got: BTreeMap::new(),
            gaps: BTreeMap::new(),
            left: vec![1; self.pieces.len()],
            stop: None,
        };
        self.tell_progress(&at);
        let mut under_way = FuturesUnordered::new();
        loop {
            while at.stop.is_none() && under_way.len() < self.run.inner.parsing.parallel {
                let Some(piece) = at.waiting.pop_front() else { break };
                under_way.push(self.one(piece));
            }
            let Some((piece, outcome)) = under_way.next().await else { break };
            let others = !under_way.is_empty();
            match outcome {
                Ok(got) => self.done(&mut at, piece, got),
                Err(failed) => self.failed(&mut at, piece, failed, others, allow_gaps)?,
            }
        }
        match at.stop.take() {
            Some(failed) => Err(failed),
            None => self.found(at).await,
        }
    }

    /// What is in the result, or that nothing is.
    async fn found(&self, mut at: Progress) -> Result<Found, Failed> {
        let nothing =
            |at: &Progress| at.got.values().all(|(_, got)| self.profile.is_empty(&got.value));
        if nothing(&at) {
            if let Some(gap) = at.gaps.values().next() {
                // What was read says nothing, and something could not be read.
                return Err(Failed { heard: true, ..Failed::of(gap.kind) });
            }
            self.look_once_more(&mut at).await?;
        }
        let (mut values, mut paid) = (Vec::new(), Vec::new());
        for (_, got) in at.got.into_values() {
            values.push(got.value);
            if let Source::Paid(call) = got.source {
                paid.push(call);
            }
        }
        let result = merge(self.profile, values).into_value();
        Ok(Found { result, gaps: at.gaps.into_values().collect(), paid })
    }

    fn done(&self, at: &mut Progress, piece: Piece, got: Got) {
        at.waiting.extend(at.put_back.drain(..));
        let (index, place) = (piece.index, (piece.index, piece.range().0));
        at.got.insert(place, (piece, got));
        self.piece_ended(at, index);
    }

    fn piece_ended(&self, at: &mut Progress, index: usize) {
        if let Some(left) = at.left.get_mut(index) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.tell_progress(at);
            }
        }
    }

    fn tell_progress(&self, at: &Progress) {
        let done = at.left.iter().filter(|left| **left == 0).count();
        self.run.stream.progress(done, at.left.len());
    }

    /// What follows a piece that failed. The error ends the run at once.
    fn failed(
        &self,
        at: &mut Progress,
        piece: Piece,
        failed: Failed,
        others: bool,
        allow_gaps: bool,
    ) -> Result<(), Failed> {
        let kind = failed.kind;
        // The places at the provider are this run's own pieces': as long as one of them ends, another
        // gets its place.
        if kind == FailureKind::NoSlot && !failed.heard && others {
            at.put_back.push(piece);
            return Ok(());
        }
        at.waiting.extend(at.put_back.drain(..));
        if matches!(kind, FailureKind::Truncated | FailureKind::TooLarge)
            && let Some([first, second]) = piece.halves(self.content)
        {
            let (from, to) = piece.range();
            tracing::info!(event = "retrying", %kind, wait_ms = 0, chunk = piece.index, from, to, "asking about each half");
            if let Some(left) = at.left.get_mut(piece.index) {
                *left += 1;
            }
            at.waiting.push_front(second);
            at.waiting.push_front(first);
            return Ok(());
        }
        if allow_gaps && lies_in_the_piece(kind) {
            let (from, to) = piece.range();
            tracing::warn!(event = "gap", %kind, chunk = piece.index, from, to, "left out");
            metrics::counter!("oncekey_gaps_total", "kind" => kind.as_str()).increment(1);
            let gap = Gap { chunk: piece.index, from, to, kind };
            at.gaps.insert((piece.index, from), gap);
            self.piece_ended(at, piece.index);
            return Ok(());
        }
        if is_final(code_of(kind)) {
            // Nothing of this run will be used.
            return Err(self.in_words(failed));
        }
        at.stop.get_or_insert(failed);
        at.waiting.clear();
        Ok(())
    }

    /// With what a person is told, where nothing was found.
    fn in_words(&self, failed: Failed) -> Failed {
        let detail = (failed.kind == FailureKind::Empty).then(|| self.profile.nothing_found());
        Failed { detail: detail.or(failed.detail), ..failed }
    }

    /// One piece, from an earlier run or by asking.
    async fn one(&self, piece: Piece) -> (Piece, Result<Got, Failed>) {
        let outcome = self.got(&piece).await;
        (piece, outcome)
    }

    async fn got(&self, piece: &Piece) -> Result<Got, Failed> {
        let prompt = piece.prompt(self.profile, self.content);
        let question = asked(self.profile, self.run.model, &prompt);
        // Where there is but one piece, nothing in it is nothing at all.
        let strict = self.pieces.len() == 1 && !piece.halved;
        if let Some(kept) = self.kept.get(&question)
            && let Ok(value) = serde_json::from_str(&kept.value)
        {
            tracing::info!(event = "chunk_kept", chunk = piece.index, run = %kept.call.request_id, "an earlier run has it");
            metrics::counter!("oncekey_chunks_kept_total").increment(1);
            return Ok(Got { value, source: Source::Paid(kept.call.clone()) });
        }
        let accept = |answer: &Answer| accept(self.profile, answer, strict);
        let attempts =
            self.run.attempts(&self.ladder, &self.routes, self.calls, &self.rules, &accept);
        let answered = attempts.run(&prompt).await?;
        self.keep(question, &answered).await?;
        Ok(Got { source: Source::Call(answered.call_no), value: answered.accepted })
    }

    /// Keeps a piece for the next run. Where that fails the run goes on: its commit decides.
    async fn keep(&self, question: [u8; 32], answered: &Answered<'_, Value>) -> Result<(), Failed> {
        let Some(call) = self.calls.row(answered.call_no) else { return Ok(()) };
        let chunk = DoneChunk { asked: question, value: answered.accepted.to_string(), call };
        let claim = self.run.claim;
        match self.run.inner.store.keep_chunk(claim.at.clone(), claim.guard, chunk).await {
            Ok(CommitOutcome::Committed) => Ok(()),
            Ok(CommitOutcome::Fenced) => Err(Failed::of(FailureKind::RunLost)),
            Err(error) => {
                tracing::warn!(event = "chunk_not_kept", %error, "a later run would ask again");
                Ok(())
            }
        }
    }

    /// Nothing was found in any piece: the longest is asked about once more, hotter; only where it holds
    /// something after all are the others.
    async fn look_once_more(&self, at: &mut Progress) -> Result<(), Failed> {
        let mut order: Vec<Place> = at.got.keys().copied().collect();
        let length = |place: &Place| {
            at.got.get(place).map_or(0, |(piece, _)| piece.range().1 - piece.range().0)
        };
        order.sort_by_key(|place| std::cmp::Reverse(length(place)));
        for (looked, place) in order.into_iter().enumerate() {
            // A single piece was asked about twice already, by the loop itself.
            let Some((piece, got)) = at.got.get_mut(&place) else { continue };
            let prompt = piece.prompt(self.profile, self.content);
            let accept = |answer: &Answer| accept(self.profile, answer, looked == 0);
            let attempts =
                self.run.attempts(&self.ladder, &self.routes, self.calls, &self.rules, &accept);
            let answered =
                attempts.run_hotter(&prompt).await.map_err(|failed| self.in_words(failed))?;
            match &got.source {
                Source::Call(call_no) => self.calls.set_aside(*call_no),
                // It is counted only where the commit says so.
                Source::Paid(_) => {}
            }
            *got = Got { source: Source::Call(answered.call_no), value: answered.accepted };
        }
        Ok(())
    }
}

/// Whether it is this piece that cannot be had, however often and whenever it is asked about.
fn lies_in_the_piece(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Truncated
            | FailureKind::TooLarge
            | FailureKind::Malformed
            | FailureKind::Invalid
            | FailureKind::Moderation
    )
}
