//! One run: from a won claim to a verdict, on every way out.
//!
//! Whatever ends a run (an answer, a failure, a lost fence, a cut, a panic), its seat is left, its
//! record is settled under the guard, and its calls are kept.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::attempts::Failed;
use super::calls::CallLog;
use super::commit::Effects;
use super::heartbeat::{LeftSeat, Seat, Stop};
use super::outcome::Outcome;
use super::scope::Run;
use super::{chat, commit, parse};
use crate::domain::failure::FailureKind;
use crate::domain::parse::Profile;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{State, StoredAnswer};
use crate::domain::request::RunRequest;
use crate::domain::retry::{ArrivalFacts, give_up};
use crate::domain::verdict::{code_of, detail_of, is_final, is_the_inputs_own, reason_of};
use crate::faults::Point;
use crate::store::{CommitOutcome, Failure};

/// How the work of a run ended, before anything is written.
enum Work {
    Done(Effects),
    Failed(Failed),
    Stopped(Stop),
    Cut,
}

/// The outcome, and the labels `verdict` and `kind` of `oncekey_runs_total`.
type Settled = (Outcome, &'static str, Option<FailureKind>);

impl<'a> Run<'a> {
    /// Works until there is a verdict, and writes it.
    pub async fn perform(self) -> Outcome {
        let inner = self.inner;
        let seat = inner.runs.enter(self.claim, self.begun);
        let calls = CallLog::default();
        let work = AssertUnwindSafe(self.work(&seat, &calls)).catch_unwind().await;
        let took = inner.clock.now().since(self.begun);
        let left = seat.leave();
        let settled = match work {
            Ok(work) => {
                AssertUnwindSafe(self.settle(left, work, &calls, took)).catch_unwind().await
            }
            Err(panic) => Err(panic),
        };
        let (outcome, verdict, kind) = match settled {
            Ok(settled) => settled,
            Err(panic) => {
                // What it was stands in the line of the panic itself.
                drop(panic);
                let kind = FailureKind::Internal;
                tracing::error!(event = "run_failed", %kind, "the run panicked");
                self.fail(left, Failed::of(kind), &calls).await
            }
        };
        metrics::histogram!("oncekey_run_seconds").record(took.as_secs_f64());
        metrics::counter!("oncekey_runs_total", "endpoint" => self.request.endpoint(),
            "verdict" => verdict, "kind" => kind.map_or("", FailureKind::as_str))
        .increment(1);
        outcome
    }

    async fn settle(&self, left: LeftSeat, work: Work, calls: &CallLog, took: Duration) -> Settled {
        match work {
            Work::Done(effects) => self.commit(left, &effects, calls, took).await,
            Work::Failed(failed) => self.fail(left, failed, calls).await,
            Work::Stopped(stop) => self.stopped(stop, calls).await,
            Work::Cut => {
                tracing::warn!(
                    event = "released",
                    "cut by shutting down; the next arrival starts at once"
                );
                self.fail(left, Failed::of(FailureKind::Released), calls).await
            }
        }
    }

    /// Prompt and calls, unless the run must stop before.
    async fn work(&self, seat: &Seat, calls: &CallLog) -> Work {
        tokio::select! {
            biased;
            stop = seat.stopped() => Work::Stopped(stop),
            () = self.inner.lifecycle.cut() => Work::Cut,
            outcome = self.effects(calls) => match outcome {
                Ok(effects) => Work::Done(effects),
                Err(failed) => Work::Failed(failed),
            },
        }
    }

    /// The work itself, up to all that it will write.
    async fn effects(&self, calls: &CallLog) -> Result<Effects, Failed> {
        self.inner.faults.reach(Point::AfterClaim).await;
        if let Some(failed) = self.refused_before() {
            return Err(failed);
        }
        match self.request {
            RunRequest::Chat(request) => chat::perform(self, request, calls).await,
            RunRequest::Parse(request) => parse::perform(self, request, calls).await,
        }
    }

    /// The end of an input that can only fail, from memory: nothing is spent on it.
    fn refused_before(&self) -> Option<Failed> {
        let (kind, model) = self.claim.refused.as_ref()?;
        let kind = FailureKind::parse(kind).filter(|_| *model == self.asked())?;
        tracing::warn!(event = "refused_from_memory", %kind, "the same input failed before, under other keys");
        metrics::counter!("oncekey_refused_from_memory_total").increment(1);
        Some(Failed::of(kind))
    }

    /// The model to remember the input under, where it failed for a reason of its own.
    fn refused_by(&self, kind: FailureKind, failed: &Failed) -> Option<String> {
        let own = failed.heard && is_the_inputs_own(kind) && self.model.rejections.one_more();
        own.then(|| self.asked())
    }

    /// What an input was refused by: the model and, since it was sent with it, the conversation so far or
    /// the profile.
    fn asked(&self) -> String {
        let model = &self.model.identity;
        match self.request {
            RunRequest::Chat(_) => format!("{model} after {} turns", self.claim.head_seq),
            RunRequest::Parse(request) => {
                let profile = self.inner.parsing.profiles.get(&request.profile);
                format!("{model} for {}", profile.map(Profile::identity).unwrap_or_default())
            }
        }
    }

    async fn commit(
        &self,
        left: LeftSeat,
        effects: &Effects,
        calls: &CallLog,
        took: Duration,
    ) -> Settled {
        let inner = self.inner;
        inner.faults.reach(Point::BeforeCommit).await;
        let ending = commit::settle(inner, left, effects).await;
        let kind = match ending {
            commit::Ending::Committed => {
                inner.faults.reach(Point::AfterCommit).await;
                self.model.rejections.none();
                tracing::info!(event = "committed", took_ms = took.as_millis(), "committed");
                inner.pace(self.request.endpoint()).record(took);
                let answer = StoredAnswer { status: 200, body: effects.response().to_vec() };
                let fence = self.claim.guard.fence;
                let answer = Arc::new(answer);
                let outcome = Outcome::Stored { answer, fence, replay_of: None };
                return (outcome, "committed", None);
            }
            commit::Ending::Fenced => return self.stopped(Stop::Lost, calls).await,
            commit::Ending::LeaseLost => FailureKind::LeaseLost,
            commit::Ending::Unknown => {
                let problem = self.problem(FailureKind::OutcomeUnknown, None, None);
                return (Outcome::Refused(problem), "unknown", Some(FailureKind::OutcomeUnknown));
            }
            commit::Ending::Broken => FailureKind::Internal,
        };
        self.fail(left, Failed::of(kind), calls).await
    }

    /// Ends the record as failed, passing or final, by the kind.
    async fn fail(&self, left: LeftSeat, failed: Failed, calls: &CallLog) -> Settled {
        let quota_hit = failed.kind == FailureKind::Quota && failed.heard;
        let kind =
            if quota_hit && self.enough_of_quota() { FailureKind::GaveUp } else { failed.kind };
        let problem = self.problem(kind, failed.retry_after, failed.detail.as_deref());
        let answer = is_final(problem.code)
            .then(|| StoredAnswer { status: problem.status(), body: problem.to_json() });
        let verdict = if answer.is_some() { "failed_final" } else { "failed_passing" };
        let failure = Failure {
            at: self.claim.at.clone(),
            guard: self.claim.guard,
            operation_id: self.claim.operation_id,
            kind: kind.as_str(),
            answer: answer.clone(),
            quota_hit,
            refused_by: self.refused_by(kind, &failed),
            calls: calls.wasted(kind, self.inner.clock.utc_now()),
        };
        let settled = commit::settle_failure(self.inner, left, failure).await;
        match (settled, answer) {
            (Ok(CommitOutcome::Committed), Some(answer)) => {
                tracing::warn!(event = "failed", %kind, "ended for good");
                let (answer, fence) = (Arc::new(answer), self.claim.guard.fence);
                let stored = Outcome::Stored { answer, fence, replay_of: None };
                (stored, verdict, Some(kind))
            }
            (Ok(CommitOutcome::Fenced), _) => {
                tracing::warn!(event = "fenced_off", %kind, "the record is another run's");
                metrics::counter!("oncekey_fenced_total").increment(1);
                self.answer_of_the_record().await
            }
            (Ok(CommitOutcome::Committed), None) => {
                tracing::warn!(event = "failed", %kind, "ended, to be run again");
                (Outcome::Refused(problem), verdict, Some(kind))
            }
            (Err(error), _) => {
                // The record stays in progress, silent, and is taken over or swept.
                tracing::error!(
                    event = "end_unwritten",
                    %error,
                    %kind,
                    "the end of the run could not be written"
                );
                let kind = FailureKind::Database;
                (Outcome::Refused(self.problem(kind, None, None)), "unknown", Some(kind))
            }
        }
    }

    /// A run that may not write its record; its calls are kept.
    async fn stopped(&self, stop: Stop, calls: &CallLog) -> Settled {
        let settled = self.answer_of_the_record().await;
        let kind = settled.2.unwrap_or(FailureKind::RunLost);
        if kind == FailureKind::Cancelled {
            tracing::info!(event = "cancelled", "the run was cancelled");
        } else {
            tracing::warn!(event = "fenced_off", ?stop, "the run stops without writing its record");
            metrics::counter!("oncekey_fenced_total").increment(1);
        }
        let failure = Failure {
            at: self.claim.at.clone(),
            guard: self.claim.guard,
            operation_id: self.claim.operation_id,
            kind: kind.as_str(),
            answer: None,
            quota_hit: false,
            refused_by: None,
            calls: calls.wasted(kind, self.inner.clock.utc_now()),
        };
        // Guarded like any other end: where the record is still this run's after all, it ends as a
        // passing failure and the next arrival starts at once.
        if let Err(error) = self.inner.store.fail(failure).await {
            tracing::warn!(
                event = "end_unwritten",
                %error,
                "the calls of a stopped run could not be kept"
            );
        }
        settled
    }

    /// What the client of a fenced run hears: what became of its operation meanwhile.
    async fn answer_of_the_record(&self) -> Settled {
        let at = &self.claim.at;
        let record = self.inner.store.record(at.tenant.clone(), at.key).await.ok().flatten();
        let lost = FailureKind::RunLost;
        // Of another operation, under a key whose record was dropped, it would answer another question.
        let Some(record) = record.filter(|it| it.operation_id == self.claim.operation_id) else {
            return (Outcome::Refused(self.problem(lost, None, None)), "fenced", Some(lost));
        };
        let cancelled = record.failure_kind.as_deref() == Some(FailureKind::Cancelled.as_str());
        match record.state {
            State::Committed(Some(answer)) | State::FailedFinal(Some(answer)) => {
                let (fence, replay_of) = (record.guard.fence, Some(record.guard.request_id));
                let outcome = Outcome::Stored { answer: Arc::new(answer), fence, replay_of };
                (outcome, "fenced", Some(lost))
            }
            State::FailedPassing if cancelled && record.guard == self.claim.guard => {
                let kind = FailureKind::Cancelled;
                (Outcome::Refused(self.problem(kind, None, None)), "cancelled", Some(kind))
            }
            _ => (Outcome::Refused(self.problem(lost, None, None)), "fenced", Some(lost)),
        }
    }

    fn enough_of_quota(&self) -> bool {
        let facts = ArrivalFacts {
            runs: 0,
            first_claimed_at: self.claim.first_claimed_at,
            resume_at: self.claim.first_claimed_at,
            quota_hits: self.claim.quota_hits + 1,
        };
        give_up(&facts, &self.inner.settings.retry).is_some()
    }

    fn problem(
        &self,
        kind: FailureKind,
        retry_after: Option<Duration>,
        detail: Option<&str>,
    ) -> Problem {
        let code = code_of(kind);
        let busy = (code == ErrorCode::ConversationBusy)
            .then(|| self.inner.pace(self.request.endpoint()).retry_after(Duration::ZERO));
        Problem::new(code, self.claim.guard.request_id, detail.unwrap_or(detail_of(kind)))
            .because(reason_of(kind))
            .retry_after(retry_after.or(busy))
    }
}
