//! The life of an operation: from an arrival with a key to an outcome.
//!
//! An arrival's work runs in a task of its own, so a client that goes away ends nothing. It claims,
//! lets `domain::arrival` decide on what it found, and runs if it won.

mod admission;
mod arrival;
mod attempts;
mod calls;
mod chat;
mod commit;
mod disowned;
mod event;
mod feed;
mod heartbeat;
mod minted;
mod models;
mod node;
mod outcome;
mod parse;
mod reads;
mod request;
mod routes;
mod run;
mod scope;
mod slots;
mod streaming;
mod turns;
mod waiting;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use chat::AnswerBody as ChatAnswer;
pub use feed::Feed;
pub use heartbeat::BeatingRuns;
use minted::Minted;
pub use models::{Asked, Model, Models, Refused, Rejections};
pub use node::{Node, Stall};
pub use outcome::{Outcome, Reply};
pub use parse::{ParseAnswer, Parsing};
pub use reads::{Readiness, Removal};
pub use slots::Slots;
pub use streaming::{Door, Streamed};
use waiting::Waiting;

use crate::clock::{Clock, Moment};
use crate::domain::ids::{RequestId, Subject, TenantId};
use crate::domain::key::IdempotencyKey;
use crate::domain::pace::Pace;
use crate::domain::parse::ENDPOINT;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::Record;
use crate::domain::request::RunRequest;
use crate::domain::retry::RetryRules;
use crate::domain::trace_parent::TraceParent;
use crate::faults::Faults;
use crate::lifecycle::Lifecycle;
use crate::peers::Peers;
pub use crate::peers::{PATH as PEER_PATH, PROOF as PEER_PROOF};
use crate::store::Store;
pub use crate::store::{KeptCall, StoreError, TurnPage};
use crate::streams::{Crowd, Hub, Shelf};

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
    /// Readers of one operation at this node, beside the arrival that won its run.
    pub max_readers: usize,
}

/// What operations are made of.
pub struct Parts {
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    pub faults: Faults,
    pub settings: OperationSettings,
    pub models: Models,
    pub runs: BeatingRuns,
    pub peers: Peers,
    pub parsing: Parsing,
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
    peers: Peers,
    parsing: Parsing,
    chat_pace: Mutex<Pace>,
    parse_pace: Mutex<Pace>,
    waiting: Waiting,
    streams: Hub,
    /// Records that are being told.
    told: Shelf,
    crowd: Crowd,
    minted: Minted,
    begun: Moment,
}

/// The operations of this node. Cheap to clone.
#[derive(Clone)]
pub struct Operations(Arc<Inner>);

/// One request to run something.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub request_id: RequestId,
    pub tenant: TenantId,
    pub subject: Option<Subject>,
    pub key: Option<IdempotencyKey>,
    pub request: RunRequest,
    /// How long to wait for a run in progress instead of being told of it; zero: not at all.
    pub wait: Duration,
    /// The verdict under `key`, where it was there when the arrival was authenticated.
    pub verdict: Option<Box<Record>>,
    /// The client's span that this is a part of, where it told one.
    pub trace_parent: Option<TraceParent>,
    /// Where it is handed a stream; set by [`Operations::run_stream`].
    pub door: Option<Door>,
}

impl Operations {
    pub fn new(parts: Parts) -> Self {
        let Parts { store, clock, lifecycle, faults, settings, models, runs, peers, parsing } =
            parts;
        let waiting = Waiting::default();
        waiting.start_polling(store.clone(), clock.clone(), lifecycle.clone());
        let inner = Arc::new(Inner {
            begun: clock.now(),
            store,
            clock,
            lifecycle,
            faults,
            settings,
            models,
            runs,
            peers,
            parsing,
            chat_pace: Mutex::default(),
            parse_pace: Mutex::default(),
            waiting,
            streams: Hub::default(),
            told: Shelf::default(),
            crowd: Crowd::default(),
            minted: Minted::default(),
        });
        streaming::forget_in_time(&inner);
        Self(inner)
    }

    /// An id for an arrival.
    pub fn new_request_id(&self) -> RequestId {
        RequestId(self.0.clock.new_id())
    }

    /// Answers an arrival, by running it or from what is there. The work goes on when the caller stops
    /// waiting.
    pub async fn run(&self, arrival: Arrival) -> Reply {
        let inner = self.0.clone();
        let request_id = arrival.request_id;
        let traceparent = arrival.trace_parent.as_ref().map(tracing::field::display);
        let span =
            tracing::info_span!("arrival", %request_id, tenant_id = %arrival.tenant, traceparent);
        let told = span.clone();
        let here = CancellationToken::new();
        let gone = here.clone();
        // Cancelled when the caller stops waiting: a run goes on then, a wait does not.
        let _caller = here.drop_guard();
        let work = async move { inner.arrive(arrival, gone).await }.instrument(span);
        match self.0.lifecycle.spawn_run(work).await {
            Ok(reply) => reply,
            Err(_) => {
                told.in_scope(|| {
                    tracing::error!(event = "internal", "an arrival ended without an answer");
                });
                let problem = internal(request_id);
                Reply { made_key: None, outcome: Outcome::Refused(problem) }
            }
        }
    }
}

impl Inner {
    /// The last run times of an endpoint.
    fn pace(&self, endpoint: &str) -> MutexGuard<'_, Pace> {
        let pace = if endpoint == ENDPOINT { &self.parse_pace } else { &self.chat_pace };
        // A list of durations is whole after any panic.
        pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a client hears when the store fails it.
pub fn database_problem(request_id: RequestId, error: &StoreError) -> Problem {
    if matches!(error, StoreError::PartitionMissing) {
        metrics::counter!("oncekey_keeper_failures_total", "what" => "claim").increment(1);
    }
    match error {
        StoreError::Unavailable(_)
        | StoreError::NotSent(_)
        | StoreError::Conflict(_)
        | StoreError::PartitionMissing => {
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
