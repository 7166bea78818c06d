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

/// A piece to be asked about.
#[derive(Clone)]
struct Task {
    piece: Piece,
    look: Look,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    First,
    /// Its first answer held nothing: hotter. `strict`: another answer that holds nothing is none.
    Again {
        strict: bool,
    },
}

/// Where the asking stands.
struct Progress {
    waiting: VecDeque<Task>,
    /// Tasks under way at once, as far as there are places at the provider.
    width: usize,
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
        let first = |piece: &Piece| Task { piece: piece.clone(), look: Look::First };
        let mut at = Progress {
            waiting: self.pieces.iter().map(first).collect(),
            width: self.run.inner.parsing.parallel,
            got: BTreeMap::new(),
            gaps: BTreeMap::new(),
            left: vec![1; self.pieces.len()],
            stop: None,
        };
        self.tell_progress(&at);
        self.work_off(&mut at, allow_gaps).await?;
        let says_nothing = |(_, got): &(Piece, Got)| self.profile.is_empty(&got.value);
        if at.got.values().all(says_nothing) {
            if let Some(gap) = at.gaps.values().next() {
                // What was read says nothing, and something could not be read.
                return Err(Failed { heard: true, ..Failed::of(gap.kind) });
            }
            self.look_once_more(&mut at, allow_gaps).await?;
        }
        Ok(self.found(at))
    }

    /// Until nothing waits and nothing is under way.
    async fn work_off(&self, at: &mut Progress, allow_gaps: bool) -> Result<(), Failed> {
        let mut under_way = FuturesUnordered::new();
        loop {
            while at.stop.is_none() && under_way.len() < at.width {
                let Some(task) = at.waiting.pop_front() else { break };
                under_way.push(self.one(task));
            }
            let Some((task, outcome)) = under_way.next().await else { break };
            match outcome {
                Ok(got) => self.done(at, task.piece, got),
                Err(failed) => self.failed(at, task, failed, under_way.len(), allow_gaps)?,
            }
        }
        at.stop.take().map_or(Ok(()), Err)
    }

    fn found(&self, at: Progress) -> Found {
        let (mut values, mut paid) = (Vec::new(), Vec::new());
        for (_, got) in at.got.into_values() {
            values.push(got.value);
            if let Source::Paid(call) = got.source {
                paid.push(call);
            }
        }
        let result = merge(self.profile, values).into_value();
        Found { result, gaps: at.gaps.into_values().collect(), paid }
    }

    fn done(&self, at: &mut Progress, piece: Piece, got: Got) {
        at.width = (at.width + 1).min(self.run.inner.parsing.parallel);
        let (index, place) = (piece.index, (piece.index, piece.range().0));
        match at.got.insert(place, (piece, got)) {
            None => self.piece_ended(at, index),
            Some((_, Got { source: Source::Call(call_no), .. })) => self.calls.set_aside(call_no),
            // It is counted only where the commit says so.
            Some((_, Got { source: Source::Paid(_), .. })) => {}
        }
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

    /// What follows a task that failed while so many `others` are under way. The error ends the run at
    /// once.
    fn failed(
        &self,
        at: &mut Progress,
        task: Task,
        failed: Failed,
        others: usize,
        allow_gaps: bool,
    ) -> Result<(), Failed> {
        let kind = failed.kind;
        // The places at the provider are this run's own pieces': as soon as one of them ends, another
        // gets its place. Until then no other is tried in vain.
        if kind == FailureKind::NoSlot && !failed.heard && others > 0 {
            at.width = others;
            at.waiting.push_front(task);
            return Ok(());
        }
        if task.look != Look::First && lies_in_the_piece(kind) {
            // Its first answer was whole, and stands.
            return Ok(());
        }
        let piece = task.piece;
        if matches!(kind, FailureKind::Truncated | FailureKind::TooLarge)
            && let Some(halves) = piece.halves(self.content)
        {
            let (from, to) = piece.range();
            tracing::info!(event = "retrying", %kind, wait_ms = 0, chunk = piece.index, from, to, "asking about each half");
            if let Some(left) = at.left.get_mut(piece.index) {
                *left += 1;
            }
            for piece in halves.into_iter().rev() {
                at.waiting.push_front(Task { piece, look: Look::First });
            }
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

    async fn one(&self, task: Task) -> (Task, Result<Got, Failed>) {
        let outcome = self.got(&task).await;
        (task, outcome)
    }

    /// One piece, from an earlier run or by asking.
    async fn got(&self, task: &Task) -> Result<Got, Failed> {
        let Task { piece, look } = task;
        let again = *look != Look::First;
        let strict = match look {
            // Where there is but one piece, nothing in it is nothing at all.
            Look::First => self.pieces.len() == 1 && !piece.halved,
            Look::Again { strict } => *strict,
        };
        let prompt = piece.prompt(self.profile, self.content);
        let question = asked(self.profile, self.run.model, piece, &prompt, again);
        if let Some(got) = self.kept(piece, &question, strict) {
            return Ok(got);
        }
        if !again && self.was_halved(piece) {
            return Err(Failed::of(FailureKind::Truncated));
        }
        let accept = |answer: &Answer| accept(self.profile, answer, strict);
        let attempts =
            self.run.attempts(&self.ladder, &self.routes, self.calls, &self.rules, &accept);
        let answered =
            if again { attempts.run_hotter(&prompt).await } else { attempts.run(&prompt).await }?;
        self.keep(question, &answered).await?;
        Ok(Got { source: Source::Call(answered.call_no), value: answered.accepted })
    }

    /// What an earlier run was answered.
    fn kept(&self, piece: &Piece, question: &[u8; 32], strict: bool) -> Option<Got> {
        let kept = self.kept.get(question)?;
        let value = serde_json::from_str(&kept.value).ok()?;
        if strict && self.profile.is_empty(&value) {
            return None;
        }
        tracing::info!(event = "chunk_kept", chunk = piece.index, run = %kept.call.request_id, "an earlier run has it");
        metrics::counter!("oncekey_chunks_kept_total").increment(1);
        Some(Got { value, source: Source::Paid(kept.call.clone()) })
    }

    /// Whether an earlier run has a half of it: the whole does not fit, and costs most of all to ask about.
    fn was_halved(&self, piece: &Piece) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        let has = |half: Piece| {
            let prompt = half.prompt(self.profile, self.content);
            let question = asked(self.profile, self.run.model, &half, &prompt, false);
            self.kept.contains_key(&question)
        };
        piece.halves(self.content).is_some_and(|halves| halves.into_iter().any(has))
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
    /// something after all are the others. A single piece was asked about twice already, by the loop
    /// itself.
    async fn look_once_more(&self, at: &mut Progress, allow_gaps: bool) -> Result<(), Failed> {
        let mut pieces: Vec<Piece> = at.got.values().map(|(piece, _)| piece.clone()).collect();
        let length = |piece: &Piece| piece.range().1 - piece.range().0;
        pieces.sort_by_key(|piece| std::cmp::Reverse(length(piece)));
        let mut pieces = pieces.into_iter();
        let Some(piece) = pieces.next() else { return Ok(()) };
        let longest = Task { piece, look: Look::Again { strict: true } };
        let got = self.got(&longest).await.map_err(|failed| self.in_words(failed))?;
        self.done(at, longest.piece, got);
        at.waiting.extend(pieces.map(|piece| Task { piece, look: Look::Again { strict: false } }));
        self.work_off(at, allow_gaps).await
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
