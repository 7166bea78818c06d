//! Whether a sink is well, from what its deliveries came to.
//!
//! One failure says little: the sink may be down, or the event may be what it cannot take. The next
//! event of another aggregate tells: accepted, the sink is well and the fault was the event's.

use std::collections::BTreeSet;

use super::Aggregate;

/// So many aggregates in a row that were refused, and none accepted between: the sink refuses all.
/// Two may be chance; with the third, whoever serves the sink has broken it.
const REFUSES_ALL: usize = 3;

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
    /// One delivery failed, and the next one of another aggregate did not: the event is what the
    /// sink could not take. Where more failed, the sink was away, and it is nobody's fault.
    pub event_at_fault: bool,
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
    /// Whether others failed beside the last one.
    several: bool,
}

impl Health {
    /// It took an event.
    pub fn accepted(&mut self) -> Recovery {
        let recovery = Recovery {
            failures: self.failures,
            event_at_fault: self.failures == 1 && !self.several,
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

    /// It failed, or asked to be left alone. Returns how often, in a row.
    pub fn failed(&mut self) -> u32 {
        self.proven = false;
        self.failures = self.failures.saturating_add(1);
        self.failures
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
    use crate::domain::ids::{EventId, TenantId};
    use crate::domain::outbox::Event;

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
        assert_eq!([health.failed(), health.failed()], [1, 2]);
        assert_eq!(health.accepted(), Recovery { failures: 2, event_at_fault: false });
        assert_eq!(health.failed(), 1);
        assert_eq!(health.refused(aggregate(1)), Fault::Unproven, "it was in doubt");
    }

    #[test]
    fn one_failure_among_acceptances_is_the_events_and_several_are_nobodys() {
        let mut health = Health::default();
        health.failed();
        assert_eq!(health.accepted(), Recovery { failures: 1, event_at_fault: true });
        health.failed();
        health.failed_beside();
        assert_eq!(health.accepted(), Recovery { failures: 1, event_at_fault: false });
        health.failed();
        assert!(health.accepted().event_at_fault, "what was beside it then is over");
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
                    1 => { health.failed(); proven = false; }
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
