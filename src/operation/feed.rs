//! What one reader gets of one run, from wherever it is: the channel of this node, the node that has
//! the run, or the record.
//!
//! A feed follows one run and no other. Where the run is lost, or another one took its place, the
//! reader is told `failed`, `retryable`: its repeat finds what stands then. The source may change on
//! the way (the owner goes and the record is there); whatever the reader has of the old one is then
//! either continued exactly or announced as begun anew.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::chat::text_of;
use super::waiting::Ticket;
use super::{Inner, database_problem};
use crate::domain::failure::FailureKind;
use crate::domain::ids::{Fence, RequestId, TenantId};
use crate::domain::liveness::Liveness;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{Record, State, StoredAnswer};
use crate::domain::verdict::{code_of, detail_of};
use crate::peers::{PeerRun, PeerStream};
use crate::store::StoreError;
use crate::streams::{
    Begin, KEPT_FOR, Reader, Replay, Seat, Splitter, StreamId, failed_without_id,
};

/// Between two tries to reach the node that has the run, twice as long each time, up to the second.
/// Its record is watched meanwhile.
const ASK_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];
/// The same where it is this node, whose run has just claimed or just ended: up to the second as well.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The stream of one run for one reader.
pub struct Feed {
    inner: Arc<Inner>,
    tenant: TenantId,
    key: Uuid,
    run: RequestId,
    /// Whether a verdict is known to be stored: a stream that ended without one is then none to tell.
    decided: bool,
    /// What the reader has.
    begin: Begin,
    source: Source,
    /// Held while the record is what is waited for.
    ticket: Option<Ticket>,
    /// Among the readers of the operation; whoever won its run needs none.
    seat: Option<Seat>,
    /// How long the node that has the run is left alone, once it gave no stream.
    pause: Option<Duration>,
    /// The pause before the next look at this node, where the run should be here and is not.
    near: Duration,
    /// Its stream broke before it gave a whole event; it is left alone once before the next try.
    barren: bool,
    _open: Open,
}

/// Counted while a reader has its stream.
struct Open;

impl Open {
    fn new() -> Self {
        metrics::gauge!("oncekey_stream_readers").increment(1.0);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("oncekey_stream_readers").decrement(1.0);
    }
}

enum Source {
    /// Where it is must be found out.
    Unknown,
    Here(Reader),
    Peer(PeerStream, Splitter),
    Record(Box<Replay>),
    /// The last there is to say.
    Last(Bytes),
    Over,
}

/// What a look at the record came to.
enum Look {
    Found(Source),
    /// Nobody can be asked; look again after so long, or once the run has ended.
    Wait(Duration),
}

/// What readers hear of a run that is not there any more.
pub(super) fn lost(run: RequestId) -> Problem {
    Problem::new(ErrorCode::RunLost, run, detail_of(FailureKind::RunLost))
}

impl Feed {
    fn new(inner: Arc<Inner>, at: (TenantId, Uuid), run: RequestId, begin: Begin) -> Self {
        let (tenant, key) = at;
        Self {
            inner,
            tenant,
            key,
            run,
            decided: false,
            begin,
            source: Source::Unknown,
            ticket: None,
            seat: None,
            pause: None,
            near: LOOK_AGAIN[0],
            barren: false,
            _open: Open::new(),
        }
    }

    /// Of a run at this node.
    pub(super) fn here(inner: Arc<Inner>, at: (TenantId, Uuid), reader: Reader) -> Self {
        let mut feed = Self::new(inner, at, reader.run(), Begin::Start);
        feed.source = Source::Here(reader);
        feed
    }

    /// Of a run at this node, for a reader of another one's.
    pub(super) fn for_peer(inner: Arc<Inner>, at: (TenantId, Uuid), reader: Reader) -> Self {
        Self::here(inner, at, reader).seated()
    }

    /// Of whatever a record tells of.
    pub(super) fn of_record(inner: Arc<Inner>, record: &Record, begin: Begin) -> Self {
        let at = (record.at.tenant.clone(), record.at.key);
        let mut feed = Self::new(inner, at, record.guard.request_id, begin).seated();
        feed.decided = matches!(record.state, State::Committed(_) | State::FailedFinal(_));
        feed
    }

    /// Of a stored answer: as it happened, where that is still known, or from the record.
    pub(super) fn of_answer(
        inner: Arc<Inner>,
        at: (TenantId, Uuid),
        (fence, run): (Fence, RequestId),
        answer: Arc<StoredAnswer>,
        begin: Begin,
    ) -> Self {
        let mut feed = Self::new(inner, at, run, begin).seated();
        feed.decided = true;
        // A place in the run as it happened may be known at the node that had it.
        if !is_of_run(begin, fence) {
            feed.source = match feed.reader() {
                Some(reader) => Source::Here(reader),
                None => feed.replay(fence, &answer),
            };
        }
        feed
    }

    /// The next bytes: whole events, or parts of the last one. `None`: it is over. Dropping the
    /// future loses nothing while the run is at this node.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match &mut self.source {
                Source::Here(reader) => return reader.next().await,
                Source::Record(replay) => return replay.next(),
                Source::Peer(stream, splitter) => {
                    if let Some(events) = splitter.take() {
                        self.begin = splitter.last_id().map_or(self.begin, Begin::Behind);
                        self.pause = None;
                        return Some(events);
                    }
                    if splitter.ended() {
                        return None;
                    }
                    tokio::select! {
                        bytes = stream.next() => match bytes {
                            Some(bytes) if splitter.push(&bytes) => {}
                            Some(_) | None => {
                                self.barren = !splitter.gave();
                                self.source = Source::Unknown;
                            }
                        },
                        () = self.inner.lifecycle.draining() => self.source = self.draining(),
                    }
                }
                Source::Unknown => self.source = self.find().await,
                Source::Last(_) => {
                    let Source::Last(bytes) = std::mem::replace(&mut self.source, Source::Over)
                    else {
                        return None;
                    };
                    return Some(bytes);
                }
                Source::Over => return None,
            }
        }
    }

    fn seated(mut self) -> Self {
        self.seat = Some(self.inner.crowd.enter(&self.tenant, self.key));
        self
    }

    /// Whether the operation has as many readers here as may be, without this one.
    pub(super) fn is_one_too_many(&self) -> bool {
        let most = self.inner.settings.max_readers;
        self.seat.as_ref().is_some_and(|seat| seat.number() > most)
    }

    /// Finds where the stream of a run that is over comes from, for a reader that has some of it.
    pub(super) async fn settle(&mut self) {
        if self.begin == Begin::Start || !matches!(self.source, Source::Unknown) {
            return;
        }
        if self.decided {
            self.source = self.find().await;
        } else if let Some(reader) = self.reader() {
            self.source = Source::Here(reader);
        }
    }

    /// Whether nothing can follow: the reader came back behind the last event of a stream that ended.
    pub fn is_over(&self) -> bool {
        match &self.source {
            Source::Here(reader) => reader.is_over(),
            Source::Record(replay) => replay.is_over(),
            Source::Over => true,
            Source::Unknown | Source::Peer(..) | Source::Last(_) => false,
        }
    }

    fn reader(&self) -> Option<Reader> {
        let inner = &self.inner;
        let found = inner.streams.find(&self.tenant, self.key, self.run, inner.stream_time());
        let told = found.filter(|channel| !(self.decided && channel.ended_undecided()));
        told.map(|channel| channel.reader(self.begin))
    }

    /// Waits until there is something to read from.
    async fn find(&mut self) -> Source {
        loop {
            if let Some(reader) = self.reader() {
                self.ticket = None;
                return Source::Here(reader);
            }
            // Taken before the look, so that an end in between is not missed.
            let mut ticket = match self.ticket.take() {
                Some(ticket) => ticket,
                None => self.inner.waiting.take_ticket(&self.tenant, self.key),
            };
            let pause = match self.look().await {
                Ok(Look::Found(source)) => return source,
                Ok(Look::Wait(pause)) => pause,
                Err(error) => return last(&database_problem(self.run, &error)),
            };
            tokio::select! {
                _ = ticket.woken() => {}
                () = self.inner.clock.sleep(pause) => {}
                () = self.inner.lifecycle.draining() => return self.draining(),
            }
            self.ticket = Some(ticket);
        }
    }

    async fn look(&mut self) -> Result<Look, StoreError> {
        let record = self.inner.store.record(self.tenant.clone(), self.key).await?;
        let Some(record) = record.filter(|record| record.guard.request_id == self.run) else {
            return Ok(Look::Found(last(&lost(self.run))));
        };
        if record.erased {
            let detail = "The answer of this operation was erased.";
            let problem = Problem::new(ErrorCode::Erased, self.run, detail);
            return Ok(Look::Found(last(&problem)));
        }
        let fence = record.guard.fence;
        match &record.state {
            State::Committed(Some(_)) | State::FailedFinal(Some(_)) => {
                self.decided = true;
                // The places that the reader knows are its owner's, for as long as that keeps them.
                if is_of_run(self.begin, fence)
                    && ended_lately(&record)
                    && let Some(source) = self.peer(&record).await?.0
                {
                    return Ok(Look::Found(source));
                }
                Ok(Look::Found(match record.state {
                    State::Committed(Some(answer)) | State::FailedFinal(Some(answer)) => {
                        self.replay(fence, &Arc::new(answer))
                    }
                    _ => last(&lost(self.run)),
                }))
            }
            State::Committed(None) | State::FailedFinal(None) => {
                Ok(Look::Found(last(&lost(self.run))))
            }
            State::FailedPassing => Ok(Look::Found(last(&passing(&record)))),
            State::InProgress => {
                let rules = self.inner.store.liveness_rules();
                if rules.judge(&record.liveness) != Liveness::Alive {
                    return Ok(Look::Found(last(&lost(self.run))));
                }
                Ok(match self.peer(&record).await? {
                    (Some(source), _) => Look::Found(source),
                    (None, pause) => Look::Wait(pause),
                })
            }
        }
    }

    /// The stream at the node that has the run; where there is none, how long to leave it alone.
    async fn peer(&mut self, record: &Record) -> Result<(Option<Source>, Duration), StoreError> {
        let inner = self.inner.clone();
        let [first, _] = ASK_AGAIN;
        let owner = inner.store.owner_of(record.at.clone(), record.guard).await?;
        let Some(owner) = owner else { return Ok((None, first)) };
        if owner.node == inner.store.node() {
            let pause = self.near;
            self.near = (pause * 2).min(LOOK_AGAIN[1]);
            return Ok((None, pause));
        }
        let behind = match self.begin {
            Begin::Start => None,
            Begin::Behind(id) => Some(id.to_string()),
            // Any text that is no id: the owner says that it begins anew.
            Begin::Elsewhere => Some("-".to_owned()),
        };
        if std::mem::take(&mut self.barren) {
            return Ok((None, self.longer_pause()));
        }
        let run = PeerRun {
            tenant: self.tenant.clone(),
            key: self.key,
            run: self.run,
            decided: self.decided,
            behind,
        };
        match inner.peers.open(&owner.advertised, &run).await {
            Ok(Some(stream)) => Ok((Some(Source::Peer(stream, Splitter::default())), first)),
            Ok(None) => Ok((Some(Source::Over), first)),
            Err(error) => {
                if self.pause.is_none() {
                    tracing::warn!(
                        event = "peer_unreachable",
                        node = %owner.node,
                        run = %self.run,
                        %error,
                        "the node that has the run gives no stream; its record is waited for"
                    );
                }
                Ok((None, self.longer_pause()))
            }
        }
    }

    /// From the record: all who read it share one copy.
    fn replay(&self, fence: Fence, answer: &Arc<StoredAnswer>) -> Source {
        let text = |answer: &StoredAnswer| (answer.status == 200).then(|| text_of(&answer.body));
        let told = self.inner.told.share((fence, self.run), answer, text);
        Source::Record(Box::new(Replay::new(fence, self.run, told, self.begin)))
    }

    fn longer_pause(&mut self) -> Duration {
        let [first, longest] = ASK_AGAIN;
        let pause = self.pause.map_or(first, |pause| (pause * 2).min(longest));
        self.pause = Some(pause);
        pause
    }

    fn draining(&self) -> Source {
        let detail =
            "This server is shutting down; send the same request again, elsewhere if you can.";
        last(&Problem::new(ErrorCode::Draining, self.run, detail))
    }
}

fn last(problem: &Problem) -> Source {
    Source::Last(failed_without_id(problem))
}

fn is_of_run(begin: Begin, of: Fence) -> bool {
    matches!(begin, Begin::Behind(StreamId::Run { fence, .. }) if fence == of)
}

fn ended_lately(record: &Record) -> bool {
    record
        .completed_at
        .is_some_and(|at| (record.liveness.now - at).to_std().unwrap_or_default() < KEPT_FOR)
}

fn passing(record: &Record) -> Problem {
    let kind = record.failure_kind.as_deref().and_then(FailureKind::parse);
    let kind = kind.unwrap_or(FailureKind::Internal);
    Problem::new(code_of(kind), record.guard.request_id, detail_of(kind))
}
