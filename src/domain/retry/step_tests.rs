//! Each next step by the situation that calls for it.

use super::*;
use crate::domain::retry::Ending;

fn call(kind: FailureKind) -> FailedCall {
    FailedCall {
        kind,
        known: true,
        stage: None,
        refused: None,
        tier: 0,
        route: 0,
        retry_after: None,
    }
}

fn situation(history: &[FailedCall]) -> Situation<'_> {
    Situation {
        history,
        routes: 1,
        full_tiers: &[false],
        takes_temperature: true,
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

#[test]
fn an_answer_that_breaks_a_rule_is_asked_for_again_at_once_with_what_was_wrong() {
    for kind in [FailureKind::Malformed, FailureKind::Invalid] {
        let history = [call(kind); 4];
        for calls in 1..4 {
            let change = Change::Feedback { hotter: true };
            assert_eq!(after(&history[..calls]), NextStep::Change(change), "{kind}");
        }
        let used = EndReason::AttemptsUsed { calls: 4, max_attempts: 4 };
        assert_eq!(after(&history), ends(used));
        let cold = Situation { takes_temperature: false, ..situation(&history[..1]) };
        let step = next_step(&cold, &RetryRules::default());
        assert_eq!(step, NextStep::Change(Change::Feedback { hotter: false }));
    }
}

#[test]
fn nothing_found_gets_one_hotter_call() {
    let empty = call(FailureKind::Empty);
    assert_eq!(after(&[empty]), NextStep::Change(Change::Feedback { hotter: true }));
    let twice = [empty, call(FailureKind::Transient), empty];
    assert_eq!(after(&twice), ends(EndReason::ChangedInVain { kind: FailureKind::Empty }));
}

#[test]
fn a_refused_parameter_is_left_out_once() {
    let kind = FailureKind::Input;
    assert_eq!(after(&[call(kind)]), ends(EndReason::NoRepeatHelps { kind }));
    let refused = FailedCall { refused: Some(Parameter::Temperature), ..call(kind) };
    let change = Change::LeaveOut(Parameter::Temperature);
    assert_eq!(after(&[refused]), NextStep::Change(change));
    assert_eq!(after(&[refused, refused]), ends(EndReason::ChangedInVain { kind }));
    // The change before the retry was itself refused: the parameter goes, the feedback stays.
    assert_eq!(after(&[call(FailureKind::Malformed), refused]), NextStep::Change(change));
    let other = FailedCall { refused: Some(Parameter::StreamOptions), ..refused };
    assert_eq!(
        after(&[refused, other]),
        NextStep::Change(Change::LeaveOut(Parameter::StreamOptions))
    );
}

fn filtered(stage: ModerationStage, tier: usize) -> FailedCall {
    FailedCall { stage: Some(stage), tier, ..call(FailureKind::Moderation) }
}

#[test]
fn a_filter_of_the_input_stops_at_once_whatever_tiers_there_are() {
    let kind = FailureKind::Moderation;
    let history = [filtered(ModerationStage::Input, 0)];
    let at = Situation { full_tiers: &[false; 9], ..situation(&history) };
    let none_helps = ends(EndReason::NoRepeatHelps { kind });
    assert_eq!(next_step(&at, &RetryRules::default()), none_helps);
    assert_eq!(after(&[call(kind)]), none_helps, "nobody told the stage");
}

#[test]
fn a_filter_of_the_output_takes_each_tier_once_and_a_full_one_last() {
    let history = [0, 2, 1].map(|tier| filtered(ModerationStage::Output, tier));
    let rules = RetryRules::default();
    let mut at = Situation { full_tiers: &[false, true, false], ..situation(&history) };
    at.history = &history[..1];
    assert_eq!(next_step(&at, &rules), NextStep::Ladder { tier: 2 });
    at.history = &history[..2];
    assert_eq!(next_step(&at, &rules), NextStep::Ladder { tier: 1 }, "full, and all that is left");
    at.history = &history;
    assert_eq!(next_step(&at, &rules), ends(EndReason::NoTierLeft { tiers: 3 }));
}

#[test]
fn a_filter_of_the_output_gets_one_changed_call_where_there_is_no_ladder() {
    let one = filtered(ModerationStage::Output, 0);
    assert_eq!(after(&[one]), NextStep::Change(Change::Feedback { hotter: true }));
    let kind = FailureKind::Moderation;
    assert_eq!(after(&[one, one]), ends(EndReason::ChangedInVain { kind }));
}

#[test]
fn ends_are_told_apart() {
    let kind = FailureKind::Transient;
    assert_eq!(EndReason::NoRepeatHelps { kind }.ending(), Ending::Failed);
    let (waited, total_wait) = (Duration::ZERO, Duration::ZERO);
    assert_eq!(EndReason::WaitUsedUp { waited, total_wait }.ending(), Ending::CutByBudget);
    let words = [Ending::Failed, Ending::WaitedOut, Ending::Discarded, Ending::CutByBudget];
    assert_eq!(words.map(Ending::as_str), ["failed", "waited_out", "discarded", "cut_by_budget"]);
}
