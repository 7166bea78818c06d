//! A provider's slots: how many calls are under way at once, and whose turn is next.
//!
//! Waiting calls stand in one line per tenant, and a free slot goes to the tenant that holds the
//! fewest; so one tenant's import of a thousand calls delays another's single one by at most the
//! end of one call. What the provider answers decides how many slots there are
//! ([`crate::domain::throttle`]). A slot comes back when it is dropped, on every way out of a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::turns::Turns;
use crate::clock::{Clock, Moment};
use crate::domain::failure::FailureKind;
use crate::domain::ids::TenantId;
use crate::domain::throttle::{Door, Refusal, Throttle, Turn};

/// The part of the longest wait that chance takes off: calls that began to wait together do not
/// give up together.
const JITTER: f64 = 0.1;

/// The slots of one provider; clones are the same ones.
#[derive(Clone)]
pub struct Slots(Arc<Inner>);

struct Inner {
    provider: String,
    wait: Duration,
    /// How long calls count that were under way when the provider refused one.
    older_count: Duration,
    clock: Clock,
    /// What times are counted from.
    begun: Moment,
    state: Mutex<State>,
    /// When there may be a turn though nobody gives a slot back; changes wake all who wait.
    look_at: watch::Sender<Option<Moment>>,
    gauges: Gauges,
}

/// What operators see of it.
struct Gauges {
    allowed: metrics::Gauge,
    in_use: metrics::Gauge,
    waiting: metrics::Gauge,
}

struct State {
    throttle: Throttle,
    places: usize,
    turns: Turns<oneshot::Sender<Slot>>,
    /// Counts the times that many calls at once became one.
    round: u64,
    /// Of the calls under way those of earlier rounds, and until when they count.
    older: usize,
    older_until: Duration,
}

/// The right to one call. Dropped, it is the next one's.
pub struct Slot {
    slots: Slots,
    tenant: TenantId,
    round: u64,
}

/// No slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    /// None became free in time.
    TimedOut,
    /// None was free, and there is no waiting here.
    Discarded { in_use: usize, allowed: usize },
    /// The provider is latched for longer than one may wait.
    Latched { left: Duration },
    /// The account at the provider is out of credit.
    Closed { left: Duration },
}

impl Slots {
    /// `places` calls at once. `wait` zero: turned away at once. `latch` is how long the provider
    /// is left alone after refusals in a row.
    pub fn new(
        provider: &str,
        places: usize,
        wait: Duration,
        latch: Duration,
        clock: Clock,
    ) -> Slots {
        let state = State {
            throttle: Throttle::new(places, latch),
            places: places.max(1),
            turns: Turns::default(),
            round: 0,
            older: 0,
            older_until: Duration::ZERO,
        };
        // There from the start, so that an alert sees the first time.
        for name in ["oncekey_latched_total", "oncekey_closed_total"] {
            metrics::counter!(name, "provider" => provider.to_owned()).increment(0);
        }
        let inner = Inner {
            provider: provider.to_owned(),
            gauges: Gauges {
                allowed: metrics::gauge!("oncekey_slots_allowed", "provider" => provider.to_owned()),
                in_use: metrics::gauge!("oncekey_slots_in_use", "provider" => provider.to_owned()),
                waiting: metrics::gauge!("oncekey_slots_waiting", "provider" => provider.to_owned()),
            },
            wait,
            older_count: latch,
            begun: clock.now(),
            clock,
            look_at: watch::Sender::new(None),
            state: Mutex::new(state),
        };
        inner.show(&inner.lock());
        Slots(Arc::new(inner))
    }

    /// Whether no call could begin now.
    pub fn is_full(&self) -> bool {
        !self.0.lock().has_room(self.0.now())
    }

    /// How long the provider stays closed because its account is out of credit.
    pub fn closed_for(&self) -> Option<Duration> {
        match self.0.lock().throttle.door(self.0.now()) {
            Door::Closed { left } => Some(left),
            Door::Open | Door::Latched { .. } => None,
        }
    }

    /// A slot for a call of this tenant's.
    ///
    /// # Errors
    /// [`NoSlot`] says what it waited for, or why it did not.
    pub async fn take(&self, tenant: &TenantId) -> Result<Slot, NoSlot> {
        let mut look_at = self.0.look_at.subscribe();
        let (mut given, _place) = match self.enter(tenant)? {
            Entered::With(slot) => return Ok(slot),
            Entered::Line(given, place) => (given, place),
        };
        let clock = &self.0.clock;
        let wait = self.0.wait.mul_f64(1.0 - JITTER * clock.chance());
        let deadline = clock.now() + wait;
        loop {
            let until = *look_at.borrow_and_update();
            let until = until.filter(|until| *until > clock.now());
            tokio::select! {
                biased;
                slot = &mut given => return slot.map_err(|_| self.sent_away()),
                () = clock.sleep_until(until.unwrap_or(deadline)), if until.is_some() => self.hand_out(),
                // The sender lives as long as these slots.
                _ = look_at.changed() => {}
                () = clock.sleep_until(deadline) => return Err(self.sent_away()),
            }
        }
    }

    /// Why one that waited gets none.
    fn sent_away(&self) -> NoSlot {
        match self.0.lock().throttle.door(self.0.now()) {
            Door::Open => NoSlot::TimedOut,
            Door::Latched { left } => NoSlot::Latched { left },
            Door::Closed { left } => NoSlot::Closed { left },
        }
    }

    /// Takes a slot or a place in line.
    fn enter(&self, tenant: &TenantId) -> Result<Entered, NoSlot> {
        let mut state = self.0.lock();
        let door = state.throttle.door(self.0.now());
        match door {
            Door::Closed { left } => return Err(NoSlot::Closed { left }),
            Door::Latched { left } if left > self.0.wait => return Err(NoSlot::Latched { left }),
            Door::Latched { .. } | Door::Open => {}
        }
        // Whoever waits has been passed over by no one: where places are free, nobody does.
        if state.has_room(self.0.now()) && state.turns.nobody_waits() {
            state.turns.take(tenant);
            self.0.show(&state);
            return Ok(Entered::With(self.slot(tenant, state.round)));
        }
        if self.0.wait.is_zero() {
            let (in_use, allowed) = (state.turns.in_use(), state.throttle.allowed());
            return Err(NoSlot::Discarded { in_use, allowed });
        }
        let (give, given) = oneshot::channel();
        let number = state.turns.wait(tenant, give);
        self.0.show(&state);
        drop(state);
        let place = Place { slots: self.clone(), tenant: tenant.clone(), number };
        // Between the end of a latch and the first look at it nobody may have been served.
        self.hand_out();
        Ok(Entered::Line(given, place))
    }

    /// A slot in a round that was read under the lock under which its place was taken.
    fn slot(&self, tenant: &TenantId, round: u64) -> Slot {
        Slot { slots: self.clone(), tenant: tenant.clone(), round }
    }

    /// Gives what is free to those who wait.
    fn hand_out(&self) {
        let mut turns = Vec::new();
        {
            let mut state = self.0.lock();
            while state.has_room(self.0.now())
                && let Some((tenant, give)) = state.turns.next()
            {
                turns.push((give, self.slot(&tenant, state.round)));
            }
            self.0.show(&state);
        }
        for (give, slot) in turns {
            // Whoever has gone meanwhile leaves the slot to the next by dropping it.
            let _ = give.send(slot);
        }
    }

    fn tell(&self, turn: Option<Turn>) {
        let provider = self.0.provider.as_str();
        match turn {
            None => {}
            Some(Turn::Reduced { from }) => {
                self.0.begin_round();
                tracing::warn!(
                    event = "slots_reduced",
                    provider,
                    from,
                    to = 1,
                    "one call at a time"
                );
            }
            Some(Turn::Restored { to }) => {
                tracing::info!(event = "slots_restored", provider, to, "as many calls as ever");
            }
            Some(Turn::Latched { time, refusals }) => {
                let for_ms = time.as_millis();
                tracing::error!(
                    event = "provider_latched",
                    provider,
                    for_ms,
                    refusals,
                    "no calls for a while: nothing but refusals came back"
                );
                metrics::counter!("oncekey_latched_total", "provider" => provider.to_owned())
                    .increment(1);
                self.0.look_at.send_replace(Some(self.0.clock.now() + time));
            }
            Some(Turn::Closed { time }) => {
                let for_ms = time.as_millis();
                tracing::error!(
                    event = "provider_closed",
                    provider,
                    for_ms,
                    "no calls until then: the account is out of credit"
                );
                metrics::counter!("oncekey_closed_total", "provider" => provider.to_owned())
                    .increment(1);
                // Whoever waits in line waits for nothing.
                self.0.lock().turns.dismiss();
            }
        }
    }
}

enum Entered {
    With(Slot),
    Line(oneshot::Receiver<Slot>, Place),
}

/// A place in line, given up when it is dropped.
struct Place {
    slots: Slots,
    tenant: TenantId,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.slots.0.lock();
        state.turns.leave(&self.tenant, self.number);
        self.slots.0.show(&state);
    }
}

impl Slot {
    /// The call was answered, by a success or by what says as much about the provider's load. `sent`
    /// is when it was sent.
    pub fn answered(&self, sent: Moment) {
        let inner = &self.slots.0;
        let turn = inner.lock().throttle.answered(sent.since(inner.begun));
        self.slots.tell(turn);
    }

    /// The call failed. `sent` is when it was sent.
    pub fn failed(&self, kind: FailureKind, sent: Moment, retry_after: Option<Duration>) {
        let inner = &self.slots.0;
        let refusal = Refusal { kind, sent: sent.since(inner.begun), retry_after };
        let turn = inner.lock().throttle.failed(&refusal, inner.now());
        self.slots.tell(turn);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = self.slots.0.lock();
            state.turns.give_back(&self.tenant);
            state.older -= usize::from(self.round < state.round);
        }
        self.slots.hand_out();
    }
}

impl State {
    /// Whether one more call may be under way. Calls that the provider had let in before it refused
    /// one count for a while: some run for minutes, and nobody could be served for as long.
    fn has_room(&self, now: Duration) -> bool {
        let in_use = self.turns.in_use();
        let older = if now < self.older_until { 0 } else { self.older };
        in_use < self.places
            && in_use - older < self.throttle.allowed()
            && self.throttle.door(now) == Door::Open
    }
}

impl Inner {
    /// All calls that are under way are of an earlier round from now on.
    fn begin_round(&self) {
        {
            let mut state = self.lock();
            state.round += 1;
            state.older = state.turns.in_use();
            state.older_until = self.now().saturating_add(self.older_count);
        }
        self.look_at.send_replace(Some(self.clock.now() + self.older_count));
    }

    fn now(&self) -> Duration {
        self.clock.now().since(self.begun)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, state: &State) {
        #[expect(clippy::cast_precision_loss, reason = "counts of calls, far below 2^52")]
        let show = |gauge: &metrics::Gauge, value: usize| gauge.set(value as f64);
        show(&self.gauges.allowed, state.throttle.allowed());
        show(&self.gauges.in_use, state.turns.in_use());
        show(&self.gauges.waiting, state.turns.waiting());
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
