//! Whether a sink is well, from what its deliveries came to.
//!
//! One failure says little: the sink may be down, or the event may be what it cannot take. The next
//! event of another aggregate tells: accepted, the sink is well and the fault was the event's. Where several
//! fail beside each other that tells nothing of any of them, until it has happened to the same ones often.

use std::collections::BTreeSet;

use super::Aggregate;
use crate::domain::ids::EventId;

/// So many aggregates in a row that were refused, and none accepted between: the sink refuses all.
/// Two may be chance; with the third, whoever serves the sink has broken it.
const REFUSES_ALL: usize = 3;

/// Failures in a row of one event that may still be the event's fault: it is tried once more where there is no
/// other. With the next one the sink counts as away.
const OF_ONE_EVENT: u32 = 2;

/// Whose fault a refusal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The sink is well: this event is what it does not take.
    Event,
    /// It has accepted nothing yet that would show that it is well.
    Unproven,
    /// It refuses everything.
    Sink,
}

/// What an acceptance shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// Failures in a row before it.
    pub failures: u32,
    /// One event failed, and the next one of another aggregate did not: the event is what the
    /// sink could not take. Where more failed, the sink was away, and it is nobody's fault.
    pub event_at_fault: bool,
    /// Several failed, and at once it was well again. Nobody's fault the first time; events to which that
    /// happens again and again are what the sink cannot take.
    pub stumbled: bool,
}

/// What is known of a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether it accepted something since it was last in doubt.
    proven: bool,
    /// Aggregates refused since it last accepted one.
    refused: BTreeSet<Aggregate>,
    /// Failures in a row.
    failures: u32,
    /// The event that failed last.
    failed: Option<EventId>,
    /// Whether others failed beside it or before it.
    several: bool,
}

impl Health {
    /// It took an event.
    pub fn accepted(&mut self) -> Recovery {
        let briefly = (1..=OF_ONE_EVENT).contains(&self.failures);
        let recovery = Recovery {
            failures: self.failures,
            event_at_fault: briefly && !self.several,
            stumbled: briefly && self.several,
        };
        *self = Self { proven: true, ..Self::default() };
        recovery
    }

    /// It refused an event of this aggregate.
    pub fn refused(&mut self, aggregate: Aggregate) -> Fault {
        self.refused.insert(aggregate);
        if self.refused.len() >= REFUSES_ALL {
            self.proven = false;
            Fault::Sink
        } else if self.proven {
            Fault::Event
        } else {
            Fault::Unproven
        }
    }

    /// It failed at this event, or asked to be left alone. Returns how often, in a row.
    pub fn failed(&mut self, event: EventId) -> u32 {
        self.proven = false;
        self.failures = self.failures.saturating_add(1);
        self.several |= self.failed.replace(event).is_some_and(|before| before != event);
        self.failures
    }

    /// Whether it is time to see if it takes what it took before: at every other failure, so that an event
    /// that nothing is wrong with is not kept waiting for long.
    pub fn wants_proof(&self) -> bool {
        self.failures > 0 && self.failures.is_multiple_of(2)
    }

    /// Another delivery failed that was under way beside the one that was counted.
    pub fn failed_beside(&mut self) {
        self.several = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::ids::TenantId;
    use crate::domain::outbox::Event;

    fn event(number: u128) -> EventId {
        EventId(Uuid::from_u128(number))
    }

    fn aggregate(number: u8) -> Aggregate {
        Aggregate::of(&Event {
            tenant: TenantId::new("t"),
            id: EventId(Uuid::nil()),
            aggregate_type: "conversation".into(),
            aggregate_id: number.to_string(),
            kind: "call_completed".into(),
            payload: "{}".into(),
            created_at: chrono::DateTime::UNIX_EPOCH,
        })
    }

    #[test]
    fn a_refusal_is_the_events_fault_only_at_a_sink_that_takes_others() {
        let mut health = Health::default();
        assert_eq!(health.refused(aggregate(1)), Fault::Unproven);
        assert_eq!(health.accepted().failures, 0, "it was never ill");
        assert_eq!(health.refused(aggregate(1)), Fault::Event);
        for _ in 0..10 {
            assert_eq!(health.refused(aggregate(1)), Fault::Event, "the same one again");
        }
    }

    #[test]
    fn three_in_a_row_and_it_refuses_all_until_it_takes_one() {
        let mut health = Health::default();
        health.accepted();
        let told = [1, 2, 3, 4].map(|number| health.refused(aggregate(number)));
        assert_eq!(told, [Fault::Event, Fault::Event, Fault::Sink, Fault::Sink]);
        health.accepted();
        assert_eq!(health.refused(aggregate(3)), Fault::Event);
    }

    #[test]
    fn failures_are_counted_in_a_row_and_end_with_an_acceptance() {
        let mut health = Health::default();
        assert_eq!([1, 2, 3].map(|number| health.failed(event(number))), [1, 2, 3]);
        let recovery = Recovery { failures: 3, event_at_fault: false, stumbled: false };
        assert_eq!(health.accepted(), recovery);
        assert!(!health.wants_proof());
        let proofs = [1, 2, 3, 4].map(|_| (health.failed(event(1)), health.wants_proof()));
        assert_eq!(proofs, [(1, false), (2, true), (3, false), (4, true)]);
        assert_eq!(health.refused(aggregate(1)), Fault::Unproven, "it was in doubt");
    }

    #[test]
    fn one_event_that_fails_among_acceptances_is_at_fault_and_several_are_not_at_once() {
        let (at_fault, stumbled) = ((true, false), (false, true));
        for (failed, beside, expected) in [
            (&[1][..], 0, at_fault),
            (&[1, 1], 0, at_fault),
            (&[1], 1, stumbled),
            (&[1, 2], 0, stumbled),
            (&[1, 1, 1], 0, (false, false)),
            (&[1, 2, 1], 0, (false, false)),
        ] {
            let mut health = Health::default();
            // What was before the last acceptance is over.
            health.failed(event(9));
            health.accepted();
            for number in failed {
                health.failed(event(*number));
            }
            (0..beside).for_each(|_| health.failed_beside());
            let recovery = health.accepted();
            let found = (recovery.event_at_fault, recovery.stumbled);
            assert_eq!(found, expected, "{failed:?} {beside}");
        }
    }

    proptest! {
        /// Whatever happened before: an event is at fault only where an acceptance came after the
        /// last failure, and fewer than three aggregates were refused since.
        #[test]
        fn nothing_is_an_events_fault_while_the_sink_is_in_doubt(history in prop::collection::vec(0u8..8, 0..40)) {
            let mut health = Health::default();
            let (mut proven, mut since) = (false, BTreeSet::new());
            for step in history {
                match step {
                    0 => { health.accepted(); (proven, since) = (true, BTreeSet::new()); }
                    1 => { health.failed(event(1)); proven = false; }
                    number => {
                        since.insert(number);
                        proven &= since.len() < REFUSES_ALL;
                        prop_assert_eq!(health.refused(aggregate(number)) == Fault::Event, proven);
                    }
                }
            }
        }
    }
}
