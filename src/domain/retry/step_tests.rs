//! Each next step by the situation that calls for it.

use proptest::prelude::*;

use super::*;

fn call(kind: FailureKind) -> FailedCall {
    FailedCall { kind, known: true, route: 0, retry_after: None }
}

fn situation(history: &[FailedCall]) -> Situation<'_> {
    Situation {
        history,
        routes: 1,
        waited: Duration::ZERO,
        since_first_claim: Duration::ZERO,
        output_shown: false,
        jitter: 1.0,
    }
}

fn after(history: &[FailedCall]) -> NextStep {
    next_step(&situation(history), &RetryRules::default())
}

fn wait_ms(millis: u64) -> NextStep {
    NextStep::Wait { duration: Duration::from_millis(millis) }
}

fn ends(reason: EndReason) -> NextStep {
    NextStep::GiveUp { reason }
}

#[test]
fn the_waits_follow_from_the_total_two_seconds_then_six() {
    let total = Duration::from_secs(8);
    assert_eq!(backoff(1, 1.0, total), Duration::from_secs(2));
    assert_eq!(backoff(2, 1.0, total), Duration::from_secs(6));
    assert_eq!(backoff(3, 1.0, total), Duration::from_secs(6));
    for failure in 1..4 {
        assert_eq!(backoff(failure, 0.0, total), FLOOR, "never at once");
        assert_eq!(backoff(failure, 1.0, Duration::ZERO), FLOOR);
    }
    assert_eq!(backoff(1, f64::NAN, total), FLOOR);
    assert_eq!(backoff(1, 7.0, total), Duration::from_secs(2));

    let failed = [call(FailureKind::Transient); 3];
    assert_eq!(after(&failed[..1]), wait_ms(2000));
    let mut second = situation(&failed[..2]);
    second.waited = Duration::from_secs(2);
    assert_eq!(next_step(&second, &RetryRules::default()), wait_ms(6000));
    let mut third = situation(&failed);
    third.waited = Duration::from_secs(8);
    let used = EndReason::WaitUsedUp { waited: third.waited, total_wait: third.waited };
    assert_eq!(next_step(&third, &RetryRules::default()), ends(used));
}

#[test]
fn what_the_provider_asks_for_is_kept_to_and_beyond_the_rest_it_ends_at_once() {
    let asks = |millis| {
        let retry_after = Some(Duration::from_millis(millis));
        [FailedCall { retry_after, ..call(FailureKind::RateLimited) }]
    };
    assert_eq!(after(&asks(1500)), wait_ms(1500));
    assert_eq!(after(&asks(1)), wait_ms(100), "not below the floor");
    assert_eq!(after(&asks(8000)), wait_ms(8000), "all of what is left");
    let (retry_after, left) = (Duration::from_millis(8001), Duration::from_secs(8));
    let reason = EndReason::RetryAfterTooLong { retry_after, left };
    assert_eq!(after(&asks(8001)), ends(reason));
    assert_eq!(reason.to_string(), "the provider asks for 8001 ms, 8000 ms are left");
}

#[test]
fn credentials_and_addresses_get_one_probe() {
    for kind in [FailureKind::Auth, FailureKind::Config] {
        assert_eq!(after(&[call(kind)]), wait_ms(2000));
        let again = [call(FailureKind::Auth), call(FailureKind::Overloaded), call(kind)];
        assert_eq!(after(&again), ends(EndReason::ProbedInVain { kind }));
    }
}

#[test]
fn a_refused_region_takes_every_other_route_once() {
    let refused = |route| FailedCall { route, ..call(FailureKind::Region) };
    let mut at = Situation { routes: 3, ..situation(&[]) };
    let rules = RetryRules::default();
    // The second was remembered as the one that works, so the run began there.
    let history = [refused(1), refused(2), refused(0)];
    at.history = &history[..1];
    assert_eq!(next_step(&at, &rules), NextStep::Reroute { route: 2 });
    at.history = &history[..2];
    assert_eq!(next_step(&at, &rules), NextStep::Reroute { route: 0 });
    at.history = &history;
    assert_eq!(next_step(&at, &rules), ends(EndReason::NoRouteLeft { routes: 3 }));

    at.routes = 0;
    let alone = [refused(0)];
    at.history = &alone;
    assert_eq!(next_step(&at, &rules), ends(EndReason::NoRouteLeft { routes: 1 }));
}

#[test]
fn a_route_that_refused_does_not_lengthen_the_first_wait() {
    let history =
        [call(FailureKind::Region), FailedCall { route: 1, ..call(FailureKind::Overloaded) }];
    let at = Situation { routes: 2, ..situation(&history) };
    assert_eq!(next_step(&at, &RetryRules::default()), wait_ms(2000));
}

#[test]
fn an_unknown_failure_is_repeated_once() {
    let unknown = FailedCall { known: false, ..call(FailureKind::Transient) };
    assert_eq!(after(&[unknown]), wait_ms(2000));
    let twice = [unknown, call(FailureKind::Overloaded), unknown];
    assert_eq!(after(&twice), ends(EndReason::UnknownTwice));
    assert_eq!(after(&[unknown, call(FailureKind::Overloaded)]), wait_ms(6000));
}

#[test]
fn text_that_a_reader_has_is_not_generated_again() {
    let history = [call(FailureKind::Transient)];
    let at = Situation { output_shown: true, ..situation(&history) };
    assert_eq!(next_step(&at, &RetryRules::default()), ends(EndReason::OutputShown));
}

#[test]
fn the_operations_time_bounds_the_run() {
    let history = [call(FailureKind::Timeout)];
    let rules = RetryRules::default();
    let mut at = situation(&history);
    at.since_first_claim = rules.give_up_after - Duration::from_millis(700);
    assert_eq!(next_step(&at, &rules), wait_ms(700));
    for left in [Duration::from_millis(99), Duration::ZERO] {
        at.since_first_claim = rules.give_up_after - left;
        let step = next_step(&at, &rules);
        assert!(matches!(step, NextStep::GiveUp { reason: EndReason::TooLate { .. } }), "{step:?}");
    }
    at.since_first_claim = rules.give_up_after + Duration::from_secs(1);
    let step = next_step(&at, &rules);
    assert!(matches!(step, NextStep::GiveUp { reason: EndReason::TooLate { .. } }), "{step:?}");
}

#[test]
fn nothing_to_repeat_ends_the_run() {
    assert!(matches!(after(&[]), NextStep::GiveUp { .. }));
}

const NEVER_REPEATED: [FailureKind; 18] = [
    FailureKind::Quota,
    FailureKind::Input,
    FailureKind::TooLarge,
    FailureKind::Moderation,
    FailureKind::Truncated,
    FailureKind::Malformed,
    FailureKind::Invalid,
    FailureKind::Empty,
    FailureKind::NoSlot,
    FailureKind::Internal,
    FailureKind::Abandoned,
    FailureKind::Released,
    FailureKind::Cancelled,
    FailureKind::LeaseLost,
    FailureKind::OutcomeUnknown,
    FailureKind::RunLost,
    FailureKind::Database,
    FailureKind::GaveUp,
];

fn rules() -> impl Strategy<Value = RetryRules> {
    (0u32..7, 0u64..20_000, 0u64..40_000).prop_map(|(max_attempts, total, give_up)| RetryRules {
        max_attempts,
        total_wait: Duration::from_millis(total),
        give_up_after: Duration::from_millis(give_up),
        max_runs: 6,
    })
}

/// A kind, whether it is known, the Retry-After, the jitter, and how long the call took.
type Weather = (usize, bool, Option<u64>, f64, u64);

fn weather() -> impl Strategy<Value = Vec<Weather>> {
    let kind = prop_oneof![4 => 0..8usize, 1 => 0..FailureKind::ALL.len()];
    let asks = proptest::option::of(0u64..12_000);
    prop::collection::vec((kind, any::<bool>(), asks, 0.0..=1.0f64, 0u64..9_000), 8)
}

proptest! {
    /// A run in bad weather: it ends within its calls, and no wait goes beyond what is left.
    #[test]
    fn every_run_ends_within_its_limits(
        rules in rules(), routes in 0usize..9, weather in weather(),
    ) {
        let (mut history, mut waited, mut elapsed) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        let (mut route, mut ended) = (0, false);
        for (kind, known, asks, jitter, took) in weather {
            elapsed += Duration::from_millis(took);
            let kind = FailureKind::ALL[kind];
            let retry_after = asks.map(Duration::from_millis);
            history.push(FailedCall { kind, known, route, retry_after });
            let at = Situation {
                history: &history, routes, waited, since_first_claim: elapsed,
                output_shown: false, jitter,
            };
            let step = next_step(&at, &rules);
            if NEVER_REPEATED.contains(&kind) {
                prop_assert_eq!(step, ends(EndReason::NoRepeatHelps { kind }));
            }
            match step {
                NextStep::Wait { duration } => {
                    prop_assert!(duration >= FLOOR);
                    prop_assert!(kind == FailureKind::Auth || kind == FailureKind::Config
                        || retry_after.is_none_or(|asked| duration >= asked));
                    waited += duration;
                    elapsed += duration;
                    prop_assert!(waited <= rules.total_wait);
                    prop_assert!(elapsed <= rules.give_up_after);
                }
                NextStep::Reroute { route: next } => {
                    prop_assert!(next < routes);
                    prop_assert!(!history.iter().any(|call|
                        call.route == next && call.kind == FailureKind::Region));
                    route = next;
                }
                NextStep::GiveUp { .. } => {
                    ended = true;
                    break;
                }
            }
            prop_assert!(history.len() < rules.max_attempts as usize);
        }
        prop_assert!(ended, "eight failures in a row end any run of at most six calls");
    }
}
