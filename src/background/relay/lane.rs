//! The way of events to one sink: reads what it has not got, sends an aggregate's events one after the
//! other and many aggregates at once, and marks what the sink has taken.
//!
//! An aggregate that is dealt with is left out of what is read, from then until all of it that was taken
//! is marked. So none of its events is read twice, and none is sent before the one ahead of it.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Common;
use super::shares::Busy;
use crate::background::sinks::EventSink;
use crate::clock::{BoxFuture, Moment};
use crate::domain::ids::{EventId, TenantId};
use crate::domain::outbox::{Aggregate, Delivery, Event, Health};
use crate::faults::Point;
use crate::store::{EventsAsked, StoreError, WaitingEvent};

/// Aggregates whose events are on their way at once.
const PARALLEL: usize = 32;
/// A read that took long, because much waits for another sink, is not repeated at once: reading has
/// at most one part in so many of the time.
const READ_PART: u32 = 5;
/// Rows of one share that are read at least, so that a long conversation gets on.
const LEAST_OF_A_SHARE: i64 = 8;
/// What deliveries under way get when the process ends.
const GRACE: Duration = Duration::from_secs(3);
/// Before the database is asked again that did not answer.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

pub(super) struct Lane {
    pub(super) common: Arc<Common>,
    pub(super) sink: Arc<dyn EventSink>,
    pub(super) health: Health,
    pub(super) pause: Pause,
    /// Aggregates that are dealt with.
    pub(super) active: HashMap<Aggregate, Active>,
    /// Those of them that could send their next event.
    pub(super) ready: VecDeque<Aggregate>,
    /// Aggregates whose next event has failed.
    pub(super) waiting: HashMap<Aggregate, Waiting>,
    /// How often each of those failed beside others while the sink was well before and after.
    pub(super) doubts: HashMap<Aggregate, u32>,
    /// What the sink has and the table does not say yet.
    pub(super) taken: Vec<(Aggregate, Arc<Event>)>,
    pub(super) last_accepted: Option<(Arc<Event>, Moment)>,
    pub(super) flights: FuturesUnordered<BoxFuture<'static, Landing>>,
    pub(super) next_look: Moment,
    mark_after: Moment,
    /// Whether the last read brought as much as it may.
    full: bool,
}

/// Whether the sink is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    Open,
    /// Left alone until then.
    Held {
        since: Moment,
        until: Moment,
    },
    /// One event at a time, to see whether it is back.
    Trial {
        since: Moment,
        flying: bool,
    },
}

#[derive(Default)]
pub(super) struct Active {
    pub(super) queue: VecDeque<WaitingEvent>,
    pub(super) flying: bool,
    /// Taken by the sink and not marked yet.
    pub(super) unmarked: u32,
}

/// An aggregate that waits for its next attempt.
pub(super) struct Waiting {
    pub(super) until: Moment,
    /// What is counted where the sink shows that it is well.
    pub(super) suspect: Option<Suspect>,
}

pub(super) struct Suspect {
    pub(super) event: WaitingEvent,
    pub(super) why: String,
    pub(super) failed_at: Moment,
    /// The sink had read the event and refused it.
    pub(super) refused: bool,
}

/// What is sent.
pub(super) enum Cargo {
    Event(WaitingEvent),
    /// An event that the sink has taken before, once more: whether it takes any. Where it does the
    /// letter is dead, if there is one.
    Proof {
        sent: Arc<Event>,
        letter: Option<(WaitingEvent, String)>,
    },
}

pub(super) struct Landing {
    pub(super) cargo: Cargo,
    pub(super) outcome: Delivery,
    pub(super) started: Moment,
    _busy: Option<Busy>,
}

type Marked = (Vec<(Aggregate, Arc<Event>)>, Result<u64, StoreError>);

struct Read {
    began: Moment,
    /// Rows of one share that say that there may be more.
    per_share: usize,
    rows: Result<Vec<WaitingEvent>, StoreError>,
}

/// The output of a future that may be there.
async fn of<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

impl Lane {
    pub(super) fn new(common: Arc<Common>, sink: Arc<dyn EventSink>) -> Self {
        let now = common.clock.now();
        let name = sink.name().to_owned();
        metrics::gauge!("oncekey_outbox_sink_up", "sink" => name).set(1.0);
        Self {
            common,
            sink,
            health: Health::default(),
            pause: Pause::Open,
            active: HashMap::new(),
            ready: VecDeque::new(),
            waiting: HashMap::new(),
            doubts: HashMap::new(),
            taken: Vec::new(),
            last_accepted: None,
            flights: FuturesUnordered::new(),
            next_look: now,
            mark_after: now,
            full: false,
        }
    }

    /// Works until the process is over; then what is under way gets a moment to end.
    pub(super) async fn run(mut self) {
        let common = self.common.clone();
        let (mut reading, mut marking) = (None, None);
        loop {
            self.launch();
            let now = common.clock.now();
            if marking.is_none() && !self.taken.is_empty() && self.mark_after <= now {
                marking = Some(self.mark());
            }
            if reading.is_none() && self.next_look <= now && self.wants_more() {
                reading = Some(self.read());
            }
            // Never in the past twice: a lane that wants nothing looks again at the next poll.
            let wake = if self.next_look > now { self.next_look } else { now + self.poll() };
            tokio::select! {
                () = common.lifecycle.over() => break,
                Some(landing) = self.flights.next(), if !self.flights.is_empty() => {
                    self.landed(landing).await;
                }
                marked = of(&mut marking) => {
                    marking = None;
                    self.marked(marked);
                }
                read = of(&mut reading) => {
                    reading = None;
                    self.read_in(read);
                }
                () = common.clock.sleep_until(wake), if reading.is_none() => {}
            }
        }
        let ending = self.wind_down(marking);
        let _ = common.clock.timeout(GRACE, ending).await;
    }

    async fn wind_down(mut self, mut marking: Option<BoxFuture<'static, Marked>>) {
        while !(self.flights.is_empty() && self.taken.is_empty() && marking.is_none()) {
            if marking.is_none() && !self.taken.is_empty() {
                marking = Some(self.mark());
            }
            tokio::select! {
                Some(landing) = self.flights.next(), if !self.flights.is_empty() => {
                    if let (Cargo::Event(event), Delivery::Accepted) = (landing.cargo, landing.outcome) {
                        self.taken.push((Aggregate::of(&event.event), event.event));
                    }
                }
                (_, written) = of(&mut marking) => {
                    marking = None;
                    if written.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn poll(&self) -> Duration {
        self.common.settings.poll
    }

    fn wants_more(&self) -> bool {
        let room = match self.pause {
            Pause::Open => self.flights.len() < PARALLEL,
            Pause::Held { .. } => false,
            Pause::Trial { flying, .. } => !flying,
        };
        room && self.ready.is_empty()
    }

    /// Sends what may be sent.
    fn launch(&mut self) {
        let now = self.common.clock.now();
        if let Pause::Held { since, until } = self.pause
            && until <= now
        {
            self.pause = Pause::Trial { since, flying: false };
            self.next_look = now;
        }
        while !self.ready.is_empty() {
            match self.pause {
                Pause::Open if self.flights.len() < PARALLEL => {}
                Pause::Trial { flying: false, .. } => {}
                Pause::Open | Pause::Held { .. } | Pause::Trial { .. } => return,
            }
            let Some(aggregate) = self.ready.pop_front() else { return };
            self.send_next(&aggregate);
            self.tidy(&aggregate);
        }
    }

    fn send_next(&mut self, aggregate: &Aggregate) {
        let Some(active) = self.active.get_mut(aggregate) else { return };
        let Some(next) = active.queue.pop_front() else { return };
        let Some(busy) = self.common.shares.enter(next.share) else {
            // Another relay's by now, which reads it as we did.
            active.queue.clear();
            return;
        };
        active.flying = true;
        self.fly(next.event.clone(), Cargo::Event(next), Some(busy));
    }

    pub(super) fn fly(&mut self, event: Arc<Event>, cargo: Cargo, busy: Option<Busy>) {
        if let Pause::Trial { flying, .. } = &mut self.pause {
            *flying = true;
        }
        let (common, sink) = (self.common.clone(), self.sink.clone());
        let started = common.clock.now();
        self.flights.push(Box::pin(async move {
            let outcome = sink.deliver(&event).await;
            if outcome == Delivery::Accepted {
                common.faults.reach(Point::AfterDelivery).await;
            }
            Landing { cargo, outcome, started, _busy: busy }
        }));
    }

    /// Forgets an aggregate of which nothing is under way.
    pub(super) fn tidy(&mut self, aggregate: &Aggregate) {
        let idle =
            |active: &Active| !active.flying && active.unmarked == 0 && active.queue.is_empty();
        if self.active.get(aggregate).is_some_and(idle) {
            self.active.remove(aggregate);
        }
    }

    fn read(&mut self) -> BoxFuture<'static, Read> {
        let now = self.common.clock.now();
        // In a trial the ones that failed come last, so that one bad event cannot stand for all.
        let trial = matches!(self.pause, Pause::Trial { .. });
        self.waiting
            .retain(|_, waiting| waiting.until > now || (trial && waiting.suspect.is_some()));
        let shares = self.common.shares.usable();
        let limit = i64::from(self.common.settings.batch.max(1));
        let held = i64::try_from(shares.len()).unwrap_or(1).max(1);
        let per_share = (limit / held).max(LEAST_OF_A_SHARE).min(limit);
        let asked = EventsAsked {
            sink: self.sink.name().to_owned(),
            without: self.active.keys().chain(self.waiting.keys()).map(Aggregate::text).collect(),
            per_share,
            limit,
            shares,
        };
        let common = self.common.clone();
        let per_share = usize::try_from(per_share).unwrap_or(usize::MAX);
        Box::pin(async move {
            let rows = match asked.shares.is_empty() {
                true => Ok(Vec::new()),
                false => common.store.waiting_events(Arc::new(asked)).await,
            };
            Read { began: now, per_share, rows }
        })
    }

    fn read_in(&mut self, Read { began, per_share, rows }: Read) {
        let now = self.common.clock.now();
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(event = "relay_failed", sink = self.sink.name(), %error, "events could not be read");
                self.next_look = now + AFTER_FAILURE;
                return;
            }
        };
        let rest = now.since(began) * READ_PART;
        let mut of_share: HashMap<i16, usize> = HashMap::new();
        self.full = rows.len() >= self.common.settings.batch.max(1) as usize;
        for row in rows {
            let count = of_share.entry(row.share).or_default();
            *count += 1;
            self.full |= *count >= per_share;
            self.take_in(row);
        }
        self.next_look = now + if self.full { rest } else { rest.max(self.poll()) };
        let (active, waiting) = (&self.active, &self.waiting);
        self.doubts.retain(|name, _| active.contains_key(name) || waiting.contains_key(name));
        if self.ready.is_empty() && matches!(self.pause, Pause::Trial { flying: false, .. }) {
            self.try_without_others();
        }
    }

    fn take_in(&mut self, row: WaitingEvent) {
        let aggregate = Aggregate::of(&row.event);
        if self.waiting.contains_key(&aggregate) {
            return; // an earlier one of it is not due
        }
        if !self.active.contains_key(&aggregate) && !row.due_in.is_zero() {
            let until = self.common.clock.now() + row.due_in;
            self.waiting.insert(aggregate, Waiting { until, suspect: None });
            self.full = true; // what stands behind it was not seen
            return;
        }
        let active = self.active.entry(aggregate.clone()).or_default();
        if active.queue.is_empty() && !active.flying {
            self.ready.push_back(aggregate);
        }
        active.queue.push_back(row);
    }

    fn mark(&mut self) -> BoxFuture<'static, Marked> {
        let taken = std::mem::take(&mut self.taken);
        let keys: Vec<(TenantId, EventId)> =
            taken.iter().map(|(_, event)| (event.tenant.clone(), event.id)).collect();
        let (common, sink) = (self.common.clone(), self.sink.name().to_owned());
        Box::pin(async move {
            let written = common.store.acknowledge_events(sink, common.sinks.clone(), keys).await;
            (taken, written)
        })
    }

    /// What could not be written is kept and written later: the sink has it and must not get it again.
    fn marked(&mut self, (mut taken, written): Marked) {
        match written {
            Ok(_) => {
                let sink = self.sink.name().to_owned();
                metrics::counter!("oncekey_outbox_published_total", "sink" => sink)
                    .increment(taken.len() as u64);
                for (aggregate, _) in taken {
                    if let Some(active) = self.active.get_mut(&aggregate) {
                        active.unmarked = active.unmarked.saturating_sub(1);
                    }
                    self.tidy(&aggregate);
                }
                if self.full && self.ready.is_empty() {
                    self.next_look = self.common.clock.now();
                }
            }
            Err(error) => {
                tracing::warn!(event = "relay_failed", sink = self.sink.name(), %error, "what the sink took could not be marked; it is written later");
                self.mark_after = self.common.clock.now() + AFTER_FAILURE;
                taken.append(&mut self.taken);
                self.taken = taken;
            }
        }
    }
}
