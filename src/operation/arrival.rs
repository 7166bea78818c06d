//! An arrival: it claims, acts on what `domain::arrival` decides about what it found, waits where it
//! was asked to, and runs if it won.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use super::admission::refusal;
use super::scope::Run;
use super::waiting::{Ticket, Verdict};
use super::{
    Arrival, Door, Feed, Inner, MissingKey, Model, Outcome, Reply, database_problem, disowned,
    streaming,
};
use crate::clock::Moment;
use crate::domain::arrival::{Decision, decide};
use crate::domain::failure::FailureKind;
use crate::domain::hash::RequestHash;
use crate::domain::ids::OperationId;
use crate::domain::key::{IdempotencyKey, KeySource};
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{Guard, Record, StoredAnswer};
use crate::domain::retry::GiveUpReason;
use crate::faults::Point;
use crate::store::{Claim, ClaimOutcome, Counting, Holder, NewClaim, ReclaimOutcome, StoreError};

/// Times that an arrival starts anew because others changed what it had read.
const ROUNDS: u32 = 8;

/// What one look at an arrival's record came to.
enum Round {
    Settled(Outcome),
    /// Somebody changed what was read; look again.
    Changed,
    /// A living run, of this operation or of its conversation, stands in the way.
    Occupied {
        by: Uuid,
        problem: Problem,
    },
}

impl Inner {
    pub(super) async fn arrive(
        self: &Arc<Self>,
        mut arrival: Arrival,
        gone: CancellationToken,
    ) -> Reply {
        let verdict = arrival.verdict.take();
        let endpoint = arrival.request.endpoint();
        let hash = arrival.request.meaning(arrival.subject.as_ref());
        let (made_key, source, outcome) = match self.key_of(&arrival, &hash).await {
            Ok(key) => {
                let source = key.source;
                let made = matches!(source, KeySource::Derived | KeySource::Absent);
                if let Some(door) = arrival.door.as_ref().filter(|_| made) {
                    door.made_key(&key);
                }
                self.count_minted(&arrival, &key, &hash);
                let outcome = self.answer(&arrival, verdict, key.clone(), hash, &gone).await;
                (made.then_some(key), source.as_str(), outcome)
            }
            Err(problem) => (None, "none", Outcome::Refused(problem)),
        };
        let label = match &outcome {
            Outcome::Refused(problem)
                if problem.code == ErrorCode::InProgress && is_streamed(&arrival) =>
            {
                "attached"
            }
            outcome => outcome.label(),
        };
        metrics::counter!("oncekey_requests_total", "endpoint" => endpoint,
            "key_source" => source, "outcome" => label)
        .increment(1);
        if arrival.request.told_attempt() > Some(1) {
            metrics::counter!("oncekey_client_retries_total", "endpoint" => endpoint,
                "outcome" => label)
            .increment(1);
        }
        tracing::trace!(
            event = "answered",
            endpoint,
            key_source = source,
            outcome = outcome.label(),
            status = outcome.status(),
            "answered"
        );
        Reply { made_key, outcome }
    }

    /// Counts an arrival that looks like the repeat of one under another key.
    fn count_minted(&self, arrival: &Arrival, key: &IdempotencyKey, hash: &RequestHash) {
        let earlier = self.minted.earlier(&arrival.tenant, hash, key.id, self.clock.now());
        let Some(earlier) = earlier else { return };
        let (endpoint, key_source) = (arrival.request.endpoint(), key.source.as_str());
        metrics::counter!("oncekey_near_identical_total", "endpoint" => endpoint,
            "key_source" => key_source)
        .increment(1);
        tracing::info!(event = "near_identical", endpoint, key_source, key = %key.id, %earlier, "the same was asked under another key less than a minute ago");
    }

    /// The client's key, or what the policy puts in its place.
    async fn key_of(
        &self,
        arrival: &Arrival,
        hash: &RequestHash,
    ) -> Result<IdempotencyKey, Problem> {
        if let Some(key) = &arrival.key {
            return Ok(key.clone());
        }
        // A request that is refused stores nothing, not even a key made for it.
        self.acceptable(arrival)?;
        let fresh = self.clock.new_id();
        match self.settings.missing_key {
            MissingKey::Pass => Ok(IdempotencyKey::made(fresh, KeySource::Absent)),
            MissingKey::Require => Err(Problem::new(
                ErrorCode::IdempotencyKeyRequired,
                arrival.request_id,
                "Send an Idempotency-Key header: a fresh UUID per operation, the same on every retry.",
            )),
            MissingKey::Derive { window } => {
                // The hash stands for endpoint, subject and meaning; the tenant is the row's. The key
                // is one that a client may send itself: it is told, and coming back in a header or a
                // path it names the same operation.
                let derived =
                    self.store.derived_key(arrival.tenant.clone(), hash.0, fresh, window).await;
                derived
                    .map(|key| IdempotencyKey::made(key, KeySource::Derived))
                    .map_err(|error| database_problem(arrival.request_id, &error))
            }
        }
    }

    async fn answer(
        self: &Arc<Self>,
        arrival: &Arrival,
        verdict: Option<Box<Record>>,
        key: IdempotencyKey,
        hash: RequestHash,
        gone: &CancellationToken,
    ) -> Outcome {
        let id = arrival.request_id;
        self.faults.reach(Point::BeforeClaim).await;
        let deadline = self.clock.now() + arrival.wait;
        let mut ticket: Option<Ticket> = None;
        let mut verdict = verdict;
        let mut overtaken = 0;
        while overtaken < ROUNDS {
            // Boxed, because what a run needs is much, and whoever waits needs none of it.
            match Box::pin(self.round(arrival, &key, &hash, verdict.take())).await {
                Ok(Round::Settled(outcome)) => return outcome,
                Ok(Round::Changed) => overtaken += 1,
                Ok(Round::Occupied { problem, .. }) if arrival.wait.is_zero() => {
                    return Outcome::Refused(problem);
                }
                Ok(Round::Occupied { by, .. }) => {
                    match ticket.as_mut().filter(|it| it.is_for(by)) {
                        // Look once more: it may have ended before the place was taken.
                        None => ticket = Some(self.waiting.take_ticket(&arrival.tenant, by)),
                        Some(ticket) => tokio::select! {
                            told = ticket.woken() => {
                                if let Some(told) = told.filter(|it| by == key.id && it.hash == hash) {
                                    return replay(told.answer, told.guard);
                                }
                            }
                            () = self.clock.sleep_until(deadline) => {
                                return self.refused(arrival, ErrorCode::WaitTimeout, None);
                            }
                            () = self.lifecycle.draining() => {
                                return self.refused(arrival, ErrorCode::Draining, None);
                            }
                            () = gone.cancelled() => {
                                return self.refused(arrival, ErrorCode::WaitTimeout, None);
                            }
                        },
                    }
                }
                Err(error) => {
                    if error.is_in_doubt() {
                        disowned::release(self, arrival.tenant.clone(), key.id, id);
                    }
                    return Outcome::Refused(database_problem(id, &error));
                }
            }
        }
        let error = StoreError::Conflict("an arrival was overtaken too often".into());
        Outcome::Refused(database_problem(id, &error))
    }

    /// Claims, or decides on what stands under the key. A verdict that was read stands.
    async fn round(
        self: &Arc<Self>,
        arrival: &Arrival,
        key: &IdempotencyKey,
        hash: &RequestHash,
        verdict: Option<Box<Record>>,
    ) -> Result<Round, StoreError> {
        let begun = self.clock.now();
        let model = self.may_begin(arrival);
        if let Some(record) = verdict {
            return self.exists(arrival, model, hash, record, begun).await;
        }
        let model = match model {
            Ok(model) => model,
            Err(problem) => {
                let found = self.store.record(arrival.tenant.clone(), key.id).await?;
                let Some(record) = found else { return Ok(settled(Outcome::Refused(problem))) };
                return self.exists(arrival, Err(problem), hash, Box::new(record), begun).await;
            }
        };
        let new = NewClaim {
            tenant: arrival.tenant.clone(),
            key: key.clone(),
            endpoint: arrival.request.endpoint(),
            subject: arrival.subject.clone(),
            conversation_id: arrival.request.conversation().cloned(),
            hash: *hash,
            operation_id: OperationId(self.clock.new_id()),
            request_id: arrival.request_id,
        };
        let found = self.store.claim(new).instrument(tracing::trace_span!("claim")).await?;
        match found {
            ClaimOutcome::Won(claim) => {
                tracing::info!(event = "claimed", fence = %claim.guard.fence, key_source = key.source.as_str(), "claimed");
                Ok(settled(self.run(arrival, model, hash, &claim, begun).await))
            }
            ClaimOutcome::Exists(record) => {
                self.exists(arrival, Ok(model), hash, record, begun).await
            }
            ClaimOutcome::ConversationBusy(holder) => Ok(self.busy(arrival, &holder)),
            ClaimOutcome::ConversationHidden => Ok(settled(self.hidden(arrival))),
        }
    }

    async fn exists(
        self: &Arc<Self>,
        arrival: &Arrival,
        model: Result<&Model, Problem>,
        hash: &RequestHash,
        record: Box<Record>,
        begun: Moment,
    ) -> Result<Round, StoreError> {
        let rules = self.store.liveness_rules();
        let (counting, takeover) = match decide(&record, hash, &rules, &self.settings.retry) {
            Decision::KeyReused => {
                return Ok(settled(self.refused(arrival, ErrorCode::IdempotencyKeyReuse, None)));
            }
            Decision::Erased => return Ok(settled(self.refused(arrival, ErrorCode::Erased, None))),
            Decision::Replay(answer) => {
                return Ok(settled(replay(Arc::new(answer), record.guard)));
            }
            Decision::InProgress { so_far } => {
                let wait = self.pace(arrival.request.endpoint()).retry_after(so_far);
                let problem = refusal(arrival, ErrorCode::InProgress, Some(wait));
                if let Some(door) = &arrival.door {
                    tracing::info!(event = "attached", run = %record.guard.request_id, "reads along");
                    door.open(Feed::of_record(self.clone(), &record, door.begin()));
                    return Ok(settled(Outcome::Refused(problem)));
                }
                return Ok(Round::Occupied { by: record.at.key, problem });
            }
            Decision::GiveUp(reason) => return self.give_up(*record, &reason).await,
            Decision::TakeOver(why) => (Counting::Counts, Some(why)),
            Decision::ClaimAgain { counts: true } => (Counting::Counts, None),
            Decision::ClaimAgain { counts: false } => (Counting::DoesNotCount, None),
        };
        let model = match model {
            Ok(model) => model,
            Err(problem) => return Ok(settled(Outcome::Refused(problem))),
        };
        let before = record.guard;
        let reclaim = self.store.reclaim(Arc::new(*record), arrival.request_id, counting);
        match reclaim.instrument(tracing::trace_span!("claim")).await? {
            ReclaimOutcome::Won(claim) => {
                if let Some(why) = takeover {
                    tracing::warn!(event = "taken_over", ?why, fence = %before.fence, run = %before.request_id, "took over a run without a live owner");
                    metrics::counter!("oncekey_takeovers_total").increment(1);
                }
                tracing::info!(event = "claimed", fence = %claim.guard.fence, attempts = claim.attempts, takeover = takeover.is_some(), "claimed again");
                Ok(settled(self.run(arrival, model, hash, &claim, begun).await))
            }
            ReclaimOutcome::Changed => Ok(Round::Changed),
            ReclaimOutcome::ConversationBusy(holder) => Ok(self.busy(arrival, &holder)),
            ReclaimOutcome::ConversationHidden => Ok(settled(self.hidden(arrival))),
        }
    }

    async fn run(
        self: &Arc<Self>,
        arrival: &Arrival,
        model: &Model,
        hash: &RequestHash,
        claim: &Claim,
        begun: Moment,
    ) -> Outcome {
        let stream = self.open_stream(arrival, model, claim);
        let run = Run {
            inner: self,
            claim,
            request: &arrival.request,
            subject: arrival.subject.as_ref(),
            model,
            stream: &stream,
            begun,
        };
        let outcome = run.perform().await;
        stream.finish(&streaming::ending(&outcome, claim), self.stream_time());
        let verdict = match &outcome {
            Outcome::Stored { answer, fence, replay_of } => {
                let request_id = replay_of.unwrap_or(claim.guard.request_id);
                let guard = Guard { fence: *fence, request_id };
                Some(Verdict { hash: *hash, answer: answer.clone(), guard })
            }
            Outcome::Refused(_) => None,
        };
        self.waiting.wake(&claim.at.tenant, claim.at.key, verdict);
        outcome
    }

    /// Ends the operation for good; the stored problem carries the id of its last run.
    async fn give_up(&self, record: Record, reason: &GiveUpReason) -> Result<Round, StoreError> {
        let (fence, last_run) = (record.guard.fence, record.guard.request_id);
        let (tenant, key) = (record.at.tenant.clone(), record.at.key);
        let detail = format!("This operation is not tried again: {reason}.");
        let problem = Problem::new(ErrorCode::GaveUp, last_run, detail);
        let answer = StoredAnswer { status: problem.status(), body: problem.to_json() };
        let kind = FailureKind::GaveUp.as_str();
        if !self.store.give_up(Arc::new(record), kind, answer.clone()).await? {
            return Ok(Round::Changed);
        }
        self.waiting.wake(&tenant, key, None);
        tracing::warn!(event = "gave_up", %reason, run = %last_run, "gave up");
        let (answer, replay_of) = (Arc::new(answer), Some(last_run));
        Ok(settled(Outcome::Stored { answer, fence, replay_of }))
    }

    fn busy(&self, arrival: &Arrival, holder: &Holder) -> Round {
        let so_far = (holder.now - holder.claimed_at).to_std().unwrap_or_default();
        let wait = self.pace(arrival.request.endpoint()).retry_after(so_far);
        let problem = refusal(arrival, ErrorCode::ConversationBusy, Some(wait));
        Round::Occupied { by: holder.key, problem }
    }

    fn hidden(&self, arrival: &Arrival) -> Outcome {
        self.refused(arrival, ErrorCode::NotFound, None)
    }

    fn refused(&self, arrival: &Arrival, code: ErrorCode, wait: Option<Duration>) -> Outcome {
        Outcome::Refused(refusal(arrival, code, wait))
    }
}

/// A stored verdict, told again.
fn replay(answer: Arc<StoredAnswer>, guard: Guard) -> Outcome {
    let (fence, run) = (guard.fence, guard.request_id);
    tracing::info!(event = "replayed", run = %run, status = answer.status, "replayed");
    Outcome::Stored { answer, fence, replay_of: Some(run) }
}

fn is_streamed(arrival: &Arrival) -> bool {
    arrival.door.as_ref().is_some_and(Door::is_open)
}

fn settled(outcome: Outcome) -> Round {
    Round::Settled(outcome)
}
