//! Arrivals that want the answer as it grows.
//!
//! They arrive like any other, and are answered like any other where nothing can be streamed. Whoever
//! wins the claim gets the stream of its run from its first event; whoever finds a run gets that one's,
//! wherever it is; whoever finds a verdict gets it told as a stream.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::feed::{Feed, lost};
use super::outcome::{Outcome, Reply};
use super::{Arrival, Inner, Model, Operations};
use crate::domain::ids::{RequestId, TenantId};
use crate::domain::key::IdempotencyKey;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{Record, State};
use crate::store::Claim;
use crate::streams::{Begin, Ending, Run, Writer};

/// Where an arrival is handed its stream while its work goes on; clones are one and the same.
#[derive(Clone)]
pub struct Door(Arc<Doorway>);

struct Doorway {
    begin: Begin,
    /// The key that was made for a request without one.
    made_key: OnceLock<IdempotencyKey>,
    opened: Mutex<Option<oneshot::Sender<Feed>>>,
}

/// The answer to an arrival that asked for a stream.
pub enum Streamed {
    /// Nothing was begun that could be streamed.
    Plain(Reply),
    Events {
        made_key: Option<IdempotencyKey>,
        /// The run that produced it, where it is over and not this arrival's.
        replay_of: Option<RequestId>,
        feed: Box<Feed>,
    },
}

impl fmt::Debug for Door {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Door").field("open", &self.is_open()).finish()
    }
}

impl Door {
    fn new(begin: Begin) -> (Self, oneshot::Receiver<Feed>) {
        let (sender, receiver) = oneshot::channel();
        let opened = Mutex::new(Some(sender));
        (Self(Arc::new(Doorway { begin, made_key: OnceLock::new(), opened })), receiver)
    }

    /// Where the reader wants to begin.
    pub(super) fn begin(&self) -> Begin {
        self.0.begin
    }

    /// The key that the service made for this arrival.
    pub(super) fn made_key(&self, key: &IdempotencyKey) {
        // Set once: an arrival has one key.
        let _ = self.0.made_key.set(key.clone());
    }

    /// Hands the stream over; nothing where its reader has gone, or has one already.
    pub(super) fn open(&self, feed: Feed) {
        if let Some(opened) = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Not taken where the reader has gone.
            drop(opened.send(feed));
        }
    }

    /// Whether a stream was handed over.
    pub(super) fn is_open(&self) -> bool {
        self.0.opened.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Operations {
    /// Answers an arrival with a stream, from `begin`, where there is anything to stream. The work goes
    /// on when the caller stops reading.
    pub async fn run_stream(&self, mut arrival: Arrival, begin: Begin) -> Streamed {
        let (door, mut opened) = Door::new(begin);
        let (tenant, key) = (arrival.tenant.clone(), arrival.key.as_ref().map(|key| key.id));
        arrival.door = Some(door.clone());
        let (request_id, work) = (arrival.request_id, self.run(arrival));
        let (feed, reply) = tokio::select! {
            biased;
            Ok(feed) = &mut opened => (Some(feed), None),
            // Who joins a run is done at once: its end may be seen before its stream is.
            reply = work => (opened.try_recv().ok(), Some(reply)),
        };
        let reply = match (feed, reply) {
            (None, Some(reply)) => reply,
            (Some(mut feed), _) => {
                let made_key = door.0.made_key.get().cloned();
                if let Some(problem) = self.0.no_place(&feed, request_id) {
                    return Streamed::Plain(Reply { made_key, outcome: Outcome::Refused(problem) });
                }
                feed.settle().await;
                return Streamed::Events { made_key, replay_of: None, feed: Box::new(feed) };
            }
            // One of the two was ready.
            (None, None) => Reply { made_key: None, outcome: Outcome::Refused(lost(request_id)) },
        };
        let Reply { made_key, outcome } = reply;
        match outcome {
            Outcome::Refused(_) => Streamed::Plain(Reply { made_key, outcome }),
            Outcome::Stored { answer, fence, replay_of } => {
                let key = key.or(made_key.as_ref().map(|key| key.id)).unwrap_or_default();
                let run = replay_of.unwrap_or(request_id);
                let mut feed =
                    Feed::of_answer(self.0.clone(), (tenant, key), (fence, run), answer, begin);
                if let Some(problem) = self.0.no_place(&feed, request_id) {
                    return Streamed::Plain(Reply { made_key, outcome: Outcome::Refused(problem) });
                }
                feed.settle().await;
                Streamed::Events { made_key, replay_of, feed: Box::new(feed) }
            }
        }
    }

    /// The stream of the run that a record tells of, at whatever node, or of what it left.
    ///
    /// # Errors
    /// The problem that arrival `id` is told, where the operation has too many readers here.
    pub async fn events(
        &self,
        id: RequestId,
        record: Record,
        begin: Begin,
    ) -> Result<Feed, Problem> {
        let (at, guard) = ((record.at.tenant.clone(), record.at.key), record.guard);
        let mut feed = match record.state {
            // It need not be read a second time.
            State::Committed(Some(answer)) | State::FailedFinal(Some(answer)) => {
                let run = (guard.fence, guard.request_id);
                Feed::of_answer(self.0.clone(), at, run, Arc::new(answer), begin)
            }
            _ => Feed::of_record(self.0.clone(), &record, begin),
        };
        if let Some(problem) = self.0.no_place(&feed, id) {
            return Err(problem);
        }
        feed.settle().await;
        Ok(feed)
    }

    /// The stream of a run at this node, for another node with this proof. `None`: it is not here,
    /// or the proof is not one for it, or it ended without the verdict that is known to be there
    /// (`decided`), or it has too many readers.
    pub fn events_for_peer(
        &self,
        proof: &str,
        tenant: &TenantId,
        (key, run): (Uuid, RequestId),
        decided: bool,
        begin: Begin,
    ) -> Option<Feed> {
        let inner = &self.0;
        if !inner.peers.accepts(proof, tenant, key, run) {
            return None;
        }
        let channel = inner.streams.find(tenant, key, run, inner.stream_time())?;
        if decided && channel.ended_undecided() {
            return None;
        }
        let feed = Feed::for_peer(inner.clone(), (tenant.clone(), key), channel.reader(begin));
        (!feed.is_one_too_many()).then_some(feed)
    }
}

/// Between two looks at the streams that ended: an idle node holds none for much longer than promised.
const EXPIRE_EVERY: Duration = Duration::from_secs(15);

/// Lets ended streams go in time, also where no other stream begins or is asked for.
pub(super) fn forget_in_time(inner: &Arc<Inner>) {
    let lifecycle = inner.lifecycle.clone();
    let inner = Arc::downgrade(inner);
    lifecycle.clone().spawn(async move {
        loop {
            let Some(here) = inner.upgrade() else { return };
            let pause = here.clock.sleep(EXPIRE_EVERY);
            drop(here);
            tokio::select! {
                () = pause => {}
                () = lifecycle.over() => return,
            }
            let Some(here) = inner.upgrade() else { return };
            here.streams.expire(here.stream_time());
            let (streams, bytes) = here.streams.held();
            metrics::gauge!("oncekey_streams_held").set(streams as f64);
            metrics::gauge!("oncekey_streams_kept_bytes").set(bytes as f64);
        }
    });
}

/// When a reader for whom there is no place should come again.
const CROWDED: Duration = Duration::from_secs(5);

impl Inner {
    /// Why a stream may not be read, where its operation has too many readers here.
    fn no_place(&self, feed: &Feed, request_id: RequestId) -> Option<Problem> {
        if !feed.is_one_too_many() {
            return None;
        }
        metrics::counter!("oncekey_stream_readers_refused_total").increment(1);
        let most = self.settings.max_readers;
        let detail = format!(
            "This operation has {most} readers at this server, and no place is free; come again."
        );
        let problem = Problem::new(ErrorCode::SlotTimeout, request_id, detail);
        Some(problem.retry_after(Some(CROWDED)))
    }

    /// The time that streams are kept by.
    pub(super) fn stream_time(&self) -> Duration {
        self.clock.now().since(self.begun)
    }

    /// Opens the stream of a run that has just been claimed, and hands it to the arrival that won.
    pub(super) fn open_stream(
        self: &Arc<Self>,
        arrival: &Arrival,
        model: &Model,
        claim: &Claim,
    ) -> Writer {
        let run = Run {
            tenant: claim.at.tenant.clone(),
            key: claim.at.key,
            fence: claim.guard.fence,
            id: claim.guard.request_id,
            // What a rule refuses, or what a filter stops and the next tier says anew, must not have
            // been read by anybody.
            held: !model.rules.is_empty() || !model.tiers.is_empty(),
        };
        let at = (run.tenant.clone(), run.key);
        let writer = self.streams.open(run, self.stream_time());
        if let Some(door) = &arrival.door {
            door.open(Feed::here(self.clone(), at, writer.channel().reader(door.begin())));
        }
        writer
    }
}

/// How a run's stream ends, from what its arrival is told. What another run stored is another text:
/// this one's readers are told to come again.
pub(super) fn ending(outcome: &Outcome, claim: &Claim) -> Ending {
    match outcome {
        Outcome::Refused(problem) => Ending::Failed(problem.clone()),
        Outcome::Stored { answer, fence, .. } if *fence == claim.guard.fence => {
            if answer.status == 200 {
                Ending::Completed(answer.clone())
            } else {
                Ending::FailedFinal(answer.clone())
            }
        }
        Outcome::Stored { .. } => Ending::Failed(lost(claim.guard.request_id)),
    }
}
