//! What follows from a delivery: for its aggregate, for the sink, and for events that failed before.

use std::sync::Arc;
use std::time::Duration;

use super::lane::{Cargo, Landing, Lane, Pause, Suspect, Waiting};
use crate::clock::Moment;
use crate::domain::ids::EventId;
use crate::domain::outbox::{
    AfterRefusal, Aggregate, Delivery, Event, Fault, after_refusal, backoff, hold,
};
use crate::store::{EventRefusal, WaitingEvent};

/// Before an event is tried again whose refusal could not be written down.
const UNWRITTEN: Duration = Duration::from_secs(1);
/// Before a letter is judged again that waits for proof that the sink takes others.
const UNPROVEN: Duration = Duration::from_secs(60);
/// So often an event fails beside others, at a sink that is well before and after, until that is its fault.
const STUMBLES: u32 = 3;

impl Lane {
    pub(super) async fn landed(&mut self, landing: Landing) {
        let Landing { cargo, outcome, started, .. } = landing;
        if let Pause::Trial { flying, since } = &mut self.pause
            && started >= *since
        {
            *flying = false;
        }
        self.count(&outcome);
        let event = match cargo {
            Cargo::Event(event) => event,
            Cargo::Proof { sent, letter } => {
                return self.proven(sent, letter, outcome, started).await;
            }
        };
        let aggregate = Aggregate::of(&event.event);
        if let Some(active) = self.active.get_mut(&aggregate) {
            active.flying = false;
        }
        match outcome {
            Delivery::Accepted => self.accepted(aggregate, event, started).await,
            Delivery::Refused { why } => self.refused(aggregate, event, started, why).await,
            Delivery::Failed { .. } | Delivery::Busy { .. } => {
                self.failed(aggregate, event, started, outcome);
            }
        }
    }

    async fn proven(
        &mut self,
        sent: Arc<Event>,
        letter: Option<(WaitingEvent, String)>,
        outcome: Delivery,
        started: Moment,
    ) {
        if outcome == Delivery::Accepted {
            self.last_accepted = Some((sent, self.common.clock.now()));
            self.well(started).await;
            if let Some((letter, why)) = letter {
                self.bury(letter, why).await;
            }
        } else {
            self.ill(started, sent.id, &outcome);
            if let Some((letter, _)) = letter {
                self.wait(Aggregate::of(&letter.event), UNPROVEN, None);
            }
        }
    }

    fn count(&self, outcome: &Delivery) {
        let kind = match outcome {
            Delivery::Accepted => return,
            Delivery::Refused { .. } => "refused",
            Delivery::Failed { .. } => "failed",
            Delivery::Busy { .. } => "busy",
        };
        let sink = self.sink.name().to_owned();
        metrics::counter!("oncekey_outbox_failed_total", "sink" => sink, "kind" => kind)
            .increment(1);
    }

    async fn accepted(&mut self, aggregate: Aggregate, event: WaitingEvent, started: Moment) {
        self.last_accepted = Some((event.event.clone(), self.common.clock.now()));
        self.doubts.remove(&aggregate);
        self.taken.push((aggregate.clone(), event.event));
        if let Some(active) = self.active.get_mut(&aggregate) {
            active.unmarked += 1;
            if !active.queue.is_empty() {
                self.ready.push_back(aggregate);
            }
        }
        self.well(started).await;
    }

    /// The sink took something that was sent at this time.
    async fn well(&mut self, started: Moment) {
        match self.pause {
            // Sent before it failed: says nothing of how it is now.
            Pause::Held { since, .. } | Pause::Trial { since, .. } if started < since => return,
            Pause::Open | Pause::Held { .. } | Pause::Trial { .. } => {}
        }
        let recovery = self.health.accepted();
        if self.pause != Pause::Open {
            self.pause = Pause::Open;
            self.next_look = self.common.clock.now();
        }
        if recovery.failures > 1 {
            tracing::info!(
                event = "sink_up",
                sink = self.sink.name(),
                failures = recovery.failures,
                "the sink takes events again"
            );
        }
        self.tell_up(true);
        let mut at_fault = Vec::new();
        for (aggregate, waiting) in &mut self.waiting {
            let earlier = |suspect: &mut Suspect| suspect.failed_at <= started;
            let Some(suspect) = waiting.suspect.take_if(earlier) else { continue };
            let often = recovery.stumbled && {
                let times = self.doubts.entry(aggregate.clone()).or_default();
                *times = times.saturating_add(1);
                *times >= STUMBLES
            };
            if suspect.refused || recovery.event_at_fault || often {
                at_fault.push(suspect);
            }
        }
        for Suspect { event, why, .. } in at_fault {
            self.blame(event, why).await;
        }
    }

    async fn refused(
        &mut self,
        aggregate: Aggregate,
        event: WaitingEvent,
        started: Moment,
        why: String,
    ) {
        self.drop_queue(&aggregate);
        match self.health.refused(aggregate.clone()) {
            Fault::Event => self.blame(event, why).await,
            Fault::Unproven => {
                let clock = &self.common.clock;
                let wait = backoff(event.attempts.saturating_add(1), clock.chance());
                let suspect = Suspect { event, why, failed_at: clock.now(), refused: true };
                self.wait(aggregate, wait, Some(suspect));
            }
            Fault::Sink => {
                // What it refused before counts no longer as any event's fault.
                self.waiting.values_mut().for_each(|waiting| waiting.suspect = None);
                let why = format!("it refuses everything: {why}");
                self.ill(started, event.event.id, &Delivery::Failed { why });
                self.wait_for_sink(aggregate, None);
            }
        }
    }

    fn failed(
        &mut self,
        aggregate: Aggregate,
        event: WaitingEvent,
        started: Moment,
        outcome: Delivery,
    ) {
        self.drop_queue(&aggregate);
        self.ill(started, event.event.id, &outcome);
        let suspect = match outcome {
            Delivery::Failed { why } => {
                let failed_at = self.common.clock.now();
                Some(Suspect { event, why, failed_at, refused: false })
            }
            Delivery::Accepted | Delivery::Refused { .. } | Delivery::Busy { .. } => None,
        };
        self.wait_for_sink(aggregate, suspect);
    }

    /// The sink did not take something that was sent at this time: it is left alone for a while.
    fn ill(&mut self, started: Moment, id: EventId, outcome: &Delivery) {
        let (why, asked) = match outcome {
            Delivery::Busy { why, wait } => (why, *wait),
            Delivery::Failed { why } | Delivery::Refused { why } => (why, None),
            Delivery::Accepted => return,
        };
        match self.pause {
            // It was under way when another one failed, and tells nothing new.
            Pause::Held { since, .. } | Pause::Trial { since, .. } if started < since => {
                return self.health.failed_beside();
            }
            Pause::Open | Pause::Held { .. } | Pause::Trial { .. } => {}
        }
        let failures = self.health.failed(id);
        let clock = self.common.clock.clone();
        let pause = hold(failures, asked, clock.chance());
        let now = clock.now();
        self.pause = Pause::Held { since: now, until: now + pause };
        self.next_look = now + pause;
        self.forget_ready();
        let (sink, for_ms) = (self.sink.name(), pause.as_millis() as u64);
        match failures {
            1 => {
                tracing::warn!(event = "delivery_failed", sink, why, for_ms, event_id = %id, "a delivery failed; another one is tried")
            }
            2 => tracing::error!(
                event = "sink_down",
                sink,
                why,
                for_ms,
                "the sink takes no events; nothing is counted against them"
            ),
            _ => tracing::warn!(
                event = "sink_still_down",
                sink,
                why,
                for_ms,
                failures,
                "the sink takes no events"
            ),
        }
        if failures > 1 || asked.is_some() {
            self.tell_up(false);
        }
    }

    fn tell_up(&self, up: bool) {
        let sink = self.sink.name().to_owned();
        metrics::gauge!("oncekey_outbox_sink_up", "sink" => sink).set(f64::from(u8::from(up)));
    }

    /// A refusal that is the event's fault: counted, and after enough of it and of time the end.
    async fn blame(&mut self, event: WaitingEvent, why: String) {
        let aggregate = Aggregate::of(&event.event);
        let clock = self.common.clock.clone();
        let attempts = event.attempts.saturating_add(1);
        let rules = &self.common.settings.letters;
        match after_refusal(rules, attempts, event.refused_for, clock.chance()) {
            AfterRefusal::Again(wait) => {
                let wait =
                    if self.write(&event, &why, Some(wait)).await { wait } else { UNWRITTEN };
                tracing::warn!(
                    event = "event_refused",
                    sink = self.sink.name(),
                    event_id = %event.event.id,
                    tenant_id = %event.event.tenant,
                    attempts,
                    why,
                    wait_ms = wait.as_millis() as u64,
                    "the sink takes others and not this event"
                );
                self.wait(aggregate, wait, None);
            }
            AfterRefusal::Dead => {
                // Something that it took since this one was first refused, or takes now.
                let proof = self.last_accepted.clone();
                match proof {
                    Some((_, at)) if clock.now().since(at) < event.refused_for => {
                        self.bury(event, why).await;
                    }
                    Some((sent, _)) => {
                        self.wait(aggregate, UNPROVEN, None);
                        let letter = Some((event, why));
                        let proof = Cargo::Proof { sent: sent.clone(), letter };
                        self.fly(sent, proof, None);
                    }
                    None => self.wait(aggregate, UNPROVEN, None),
                }
            }
        }
    }

    async fn bury(&mut self, event: WaitingEvent, why: String) {
        let aggregate = Aggregate::of(&event.event);
        if !self.write(&event, &why, None).await {
            return self.wait(aggregate, UNWRITTEN, None);
        }
        tracing::error!(
            event = "event_dead",
            sink = self.sink.name(),
            event_id = %event.event.id,
            tenant_id = %event.event.tenant,
            attempts = event.attempts.saturating_add(1),
            why,
            "given up: a dead letter; mend the cause, then `oncekey outbox redrive` it"
        );
        self.waiting.remove(&aggregate);
        self.doubts.remove(&aggregate);
        self.next_look = self.common.clock.now();
    }

    /// Nothing else is there to try the sink with: the one that failed first; and where that failed once more,
    /// what the sink took last, since the two could otherwise not be told apart for as long as it is quiet.
    pub(super) fn try_without_others(&mut self) {
        let now = self.common.clock.now();
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.until <= now);
        let Some((first, waiting)) = due.min_by_key(|(_, waiting)| waiting.until) else { return };
        let first = first.clone();
        if waiting.suspect.is_some()
            && self.health.wants_proof()
            && let Some((sent, _)) = self.last_accepted.clone()
        {
            return self.fly(sent.clone(), Cargo::Proof { sent, letter: None }, None);
        }
        self.waiting.remove(&first);
        self.next_look = now;
    }

    async fn write(&mut self, event: &WaitingEvent, why: &str, again_in: Option<Duration>) -> bool {
        let refusal = EventRefusal {
            sink: self.sink.name().to_owned(),
            sinks: self.common.sinks.clone(),
            tenant: event.event.tenant.clone(),
            id: event.event.id,
            why: why.to_owned(),
            again_in,
        };
        let written = self.common.store.refuse_event(refusal).await;
        if let Err(error) = &written {
            tracing::warn!(event = "relay_failed", sink = self.sink.name(), %error, "a refusal could not be written down");
        }
        written.is_ok()
    }

    fn wait(&mut self, aggregate: Aggregate, wait: Duration, suspect: Option<Suspect>) {
        let until = self.common.clock.now() + wait;
        self.waiting.insert(aggregate, Waiting { until, suspect });
    }

    fn wait_for_sink(&mut self, aggregate: Aggregate, suspect: Option<Suspect>) {
        let now = self.common.clock.now();
        let until = match self.pause {
            Pause::Held { until, .. } => until,
            Pause::Open | Pause::Trial { .. } => now,
        };
        self.waiting.insert(aggregate, Waiting { until, suspect });
    }

    /// The events behind one that failed are read again when it is through.
    fn drop_queue(&mut self, aggregate: &Aggregate) {
        if let Some(active) = self.active.get_mut(aggregate) {
            active.queue.clear();
        }
        self.tidy(aggregate);
    }

    /// Nothing more is sent for now.
    fn forget_ready(&mut self) {
        for aggregate in std::mem::take(&mut self.ready) {
            self.drop_queue(&aggregate);
        }
    }
}
