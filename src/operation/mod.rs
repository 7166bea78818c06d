//! The life of an operation: from an arrival with a key to an outcome.
//!
//! An arrival's work runs in a task of its own, so a client that goes away ends nothing. It claims,
//! lets `domain::arrival` decide on what it found, and runs if it won.

mod attempts;
mod calls;
mod chat;
mod commit;
mod heartbeat;
mod models;
mod node;
mod outcome;
mod reads;
mod run;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Instrument;

pub use heartbeat::BeatingRuns;
pub use models::{Model, Models, Slots};
pub use node::Node;
pub use outcome::{Outcome, Reply};
pub use reads::Readiness;

use crate::clock::{Clock, Moment};
use crate::domain::arrival::{Decision, decide};
use crate::domain::chat::{ChatRequest, ENDPOINT};
use crate::domain::failure::FailureKind;
use crate::domain::hash::RequestHash;
use crate::domain::ids::{OperationId, RequestId, Subject, TenantId};
use crate::domain::key::{IdempotencyKey, KeySource};
use crate::domain::pace::Pace;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{Record, StoredAnswer};
use crate::domain::retry::{GiveUpReason, RetryRules};
use crate::faults::{Faults, Point};
use crate::lifecycle::Lifecycle;
use crate::store::{Claim, ClaimOutcome, Counting, Holder, NewClaim, ReclaimOutcome, Store};
pub use crate::store::{StoreError, TurnPage};

/// Times that an arrival starts anew because others changed what it had read.
const ROUNDS: u32 = 8;

/// What happens to requests without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    /// A key from the request's meaning, the same within the window.
    Derive {
        window: Duration,
    },
    Require,
    /// A fresh key: no deduplication.
    Pass,
}

/// How operations are run.
#[derive(Debug, Clone)]
pub struct OperationSettings {
    pub missing_key: MissingKey,
    pub retry: RetryRules,
    pub max_history_turns: u32,
}

/// What everything in this room stands on.
pub(crate) struct Inner {
    store: Store,
    clock: Clock,
    lifecycle: Lifecycle,
    faults: Faults,
    settings: OperationSettings,
    models: Models,
    runs: BeatingRuns,
    pace: Mutex<Pace>,
}

/// The operations of this node. Cheap to clone.
#[derive(Clone)]
pub struct Operations(Arc<Inner>);

/// One request to run a chat.
#[derive(Debug, Clone)]
pub struct ChatArrival {
    pub request_id: RequestId,
    pub tenant: TenantId,
    pub subject: Option<Subject>,
    pub key: Option<IdempotencyKey>,
    pub request: Arc<ChatRequest>,
}

impl Operations {
    pub fn new(
        store: Store,
        clock: Clock,
        lifecycle: Lifecycle,
        faults: Faults,
        settings: OperationSettings,
        models: Models,
        runs: BeatingRuns,
    ) -> Self {
        let pace = Mutex::default();
        Self(Arc::new(Inner { store, clock, lifecycle, faults, settings, models, runs, pace }))
    }

    /// An id for an arrival.
    pub fn new_request_id(&self) -> RequestId {
        RequestId(self.0.clock.new_id())
    }

    /// Answers a chat, by running it or from what is there. The work goes on when the caller stops
    /// waiting.
    pub async fn chat(&self, arrival: ChatArrival) -> Reply {
        let inner = self.0.clone();
        let request_id = arrival.request_id;
        let span = tracing::info_span!("arrival", %request_id, tenant_id = %arrival.tenant);
        let work = async move { inner.arrive(arrival).await }.instrument(span);
        match self.0.lifecycle.spawn_run(work).await {
            Ok(reply) => reply,
            Err(error) => {
                tracing::error!(%request_id, %error, "an arrival ended without an answer");
                let problem = internal(request_id);
                Reply { made_key: None, outcome: Outcome::Refused(problem) }
            }
        }
    }
}

impl Inner {
    async fn arrive(&self, arrival: ChatArrival) -> Reply {
        let hash = arrival.request.meaning(arrival.subject.as_ref());
        let (made_key, source, outcome) = match self.key_of(&arrival, &hash).await {
            Ok(key) => {
                let source = key.source;
                let made = matches!(source, KeySource::Derived | KeySource::Absent);
                let outcome = self.answer(&arrival, key.clone(), hash).await;
                (made.then_some(key), source.as_str(), outcome)
            }
            Err(problem) => (None, "none", Outcome::Refused(problem)),
        };
        metrics::counter!("oncekey_requests_total", "endpoint" => ENDPOINT,
            "key_source" => source, "outcome" => outcome.label())
        .increment(1);
        Reply { made_key, outcome }
    }

    /// The client's key, or what the policy puts in its place.
    async fn key_of(
        &self,
        arrival: &ChatArrival,
        hash: &RequestHash,
    ) -> Result<IdempotencyKey, Problem> {
        if let Some(key) = &arrival.key {
            return Ok(key.clone());
        }
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
        &self,
        arrival: &ChatArrival,
        key: IdempotencyKey,
        hash: RequestHash,
    ) -> Outcome {
        let id = arrival.request_id;
        let Some(model) = self.models.get(&arrival.request.model) else {
            let known = self.models.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let detail =
                format!("There is no model {:?} here; there are: {known}.", arrival.request.model);
            return Outcome::Refused(Problem::new(ErrorCode::InvalidRequest, id, detail));
        };
        self.faults.reach(Point::BeforeClaim).await;
        for _ in 0..ROUNDS {
            match self.round(arrival, model, &key, &hash).await {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(error) => return Outcome::Refused(database_problem(id, &error)),
            }
        }
        let error = StoreError::Conflict("an arrival was overtaken too often".into());
        Outcome::Refused(database_problem(id, &error))
    }

    /// Claims, or decides on what stands under the key. `None`: it changed meanwhile, look again.
    async fn round(
        &self,
        arrival: &ChatArrival,
        model: &Model,
        key: &IdempotencyKey,
        hash: &RequestHash,
    ) -> Result<Option<Outcome>, StoreError> {
        let begun = self.clock.now();
        let found = if self.lifecycle.is_draining() {
            // Nothing new begins here, but what is known can still be told.
            match self.store.record(arrival.tenant.clone(), key.id).await? {
                Some(record) => ClaimOutcome::Exists(Box::new(record)),
                None => return Ok(Some(self.refused(arrival, ErrorCode::Draining, None))),
            }
        } else {
            let new = NewClaim {
                tenant: arrival.tenant.clone(),
                key: key.clone(),
                endpoint: ENDPOINT,
                subject: arrival.subject.clone(),
                conversation_id: arrival.request.conversation_id.clone(),
                hash: *hash,
                operation_id: OperationId(self.clock.new_id()),
                request_id: arrival.request_id,
            };
            self.store.claim(new).await?
        };
        match found {
            ClaimOutcome::Won(claim) => {
                tracing::info!(event = "claimed", fence = %claim.guard.fence, key_source = key.source.as_str(), "claimed");
                Ok(Some(self.run(arrival, model, &claim, begun).await))
            }
            ClaimOutcome::Exists(record) => self.exists(arrival, model, hash, record, begun).await,
            ClaimOutcome::ConversationBusy(holder) => Ok(Some(self.busy(arrival, &holder))),
            ClaimOutcome::ConversationHidden => Ok(Some(self.hidden(arrival))),
        }
    }

    async fn exists(
        &self,
        arrival: &ChatArrival,
        model: &Model,
        hash: &RequestHash,
        record: Box<Record>,
        begun: Moment,
    ) -> Result<Option<Outcome>, StoreError> {
        let rules = self.store.liveness_rules();
        let counting = match decide(&record, hash, &rules, &self.settings.retry) {
            Decision::KeyReused => {
                return Ok(Some(self.refused(arrival, ErrorCode::IdempotencyKeyReuse, None)));
            }
            Decision::Erased => return Ok(Some(self.refused(arrival, ErrorCode::Erased, None))),
            Decision::Replay(answer) => {
                let run = record.guard.request_id;
                tracing::info!(event = "replayed", run = %run, status = answer.status, "replayed");
                let replay_of = Some(run);
                return Ok(Some(Outcome::Stored { answer: Arc::new(answer), replay_of }));
            }
            Decision::InProgress { so_far } => {
                let wait = self.pace().retry_after(so_far);
                return Ok(Some(self.refused(arrival, ErrorCode::InProgress, Some(wait))));
            }
            Decision::GiveUp(reason) => return self.give_up(*record, &reason).await,
            Decision::TakeOver(_) | Decision::ClaimAgain { .. } if self.lifecycle.is_draining() => {
                return Ok(Some(self.refused(arrival, ErrorCode::Draining, None)));
            }
            Decision::TakeOver(why) => {
                tracing::warn!(event = "taken_over", ?why, fence = %record.guard.fence, run = %record.guard.request_id, "taking over a run without a live owner");
                Counting::Counts
            }
            Decision::ClaimAgain { counts: true } => Counting::Counts,
            Decision::ClaimAgain { counts: false } => Counting::DoesNotCount,
        };
        let takeover = record.state == crate::domain::record::State::InProgress;
        match self.store.reclaim(Arc::new(*record), arrival.request_id, counting).await? {
            ReclaimOutcome::Won(claim) => {
                if takeover {
                    metrics::counter!("oncekey_takeovers_total").increment(1);
                }
                tracing::info!(event = "claimed", fence = %claim.guard.fence, attempts = claim.attempts, takeover, "claimed again");
                Ok(Some(self.run(arrival, model, &claim, begun).await))
            }
            ReclaimOutcome::Changed => Ok(None),
            ReclaimOutcome::ConversationBusy(holder) => Ok(Some(self.busy(arrival, &holder))),
            ReclaimOutcome::ConversationHidden => Ok(Some(self.hidden(arrival))),
        }
    }

    async fn run(
        &self,
        arrival: &ChatArrival,
        model: &Model,
        claim: &Claim,
        begun: Moment,
    ) -> Outcome {
        let job =
            chat::ChatJob { request: arrival.request.clone(), subject: arrival.subject.clone() };
        run::Run { inner: self, claim, job: &job, model, begun }.perform().await
    }

    /// Ends the operation for good; the stored problem carries the id of its last run.
    async fn give_up(
        &self,
        record: Record,
        reason: &GiveUpReason,
    ) -> Result<Option<Outcome>, StoreError> {
        let last_run = record.guard.request_id;
        let detail = format!("This operation is not tried again: {reason}.");
        let problem = Problem::new(ErrorCode::GaveUp, last_run, detail);
        let answer = StoredAnswer { status: problem.status(), body: problem.to_json() };
        let kind = FailureKind::GaveUp.as_str();
        if !self.store.give_up(Arc::new(record), kind, answer.clone()).await? {
            return Ok(None);
        }
        tracing::warn!(event = "gave_up", %reason, run = %last_run, "gave up");
        Ok(Some(Outcome::Stored { answer: Arc::new(answer), replay_of: Some(last_run) }))
    }

    fn busy(&self, arrival: &ChatArrival, holder: &Holder) -> Outcome {
        let so_far = (holder.now - holder.claimed_at).to_std().unwrap_or_default();
        let wait = self.pace().retry_after(so_far);
        self.refused(arrival, ErrorCode::ConversationBusy, Some(wait))
    }

    fn hidden(&self, arrival: &ChatArrival) -> Outcome {
        self.refused(arrival, ErrorCode::NotFound, None)
    }

    fn refused(&self, arrival: &ChatArrival, code: ErrorCode, wait: Option<Duration>) -> Outcome {
        let detail = match code {
            ErrorCode::IdempotencyKeyReuse => {
                "Another request was sent under this Idempotency-Key; mint one key per operation."
            }
            ErrorCode::InProgress => "Ask again with the same key after retry_after_ms.",
            ErrorCode::ConversationBusy => {
                "Wait for the other operation; send the same request again after retry_after_ms."
            }
            ErrorCode::Erased => "The answer of this operation was erased with its conversation.",
            ErrorCode::NotFound => "There is no such conversation.",
            ErrorCode::Draining => {
                "This server takes no new work; send the same request again, elsewhere if you can."
            }
            _ => code.title(),
        };
        Outcome::Refused(Problem::new(code, arrival.request_id, detail).retry_after(wait))
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        // A list of durations is whole after any panic.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a client hears when the store fails it.
pub fn database_problem(request_id: RequestId, error: &StoreError) -> Problem {
    match error {
        StoreError::Unavailable(_) | StoreError::Conflict(_) | StoreError::PartitionMissing => {
            tracing::error!(event = "database_unavailable", %request_id, %error, "the database failed an arrival");
            let detail = "The database cannot be reached; send the same request again.";
            Problem::new(ErrorCode::DatabaseUnavailable, request_id, detail)
        }
        StoreError::LeaseLost | StoreError::Corrupt { .. } | StoreError::Bug(_) => {
            tracing::error!(event = "internal", %request_id, %error, "a fault of our own");
            internal(request_id)
        }
    }
}

fn internal(request_id: RequestId) -> Problem {
    let detail = "Something went wrong in this service; it is logged under the request id.";
    Problem::new(ErrorCode::Internal, request_id, detail)
}
