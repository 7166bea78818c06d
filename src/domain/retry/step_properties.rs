//! Whole runs in bad weather: whatever fails, in whatever order, a run keeps its limits and never
//! sends again what can only fail again.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::domain::prompt::Parameters;
use crate::domain::retry::Shape;

fn rules() -> impl Strategy<Value = RetryRules> {
    (0u32..7, 0u64..20_000, 0u64..40_000).prop_map(|(max_attempts, total, give_up)| RetryRules {
        max_corrections: u32::MAX,
        max_attempts,
        total_wait: Duration::from_millis(total),
        give_up_after: Duration::from_millis(give_up),
        max_runs: 6,
    })
}

/// How one call fails.
#[derive(Debug, Clone)]
struct Weather {
    kind: FailureKind,
    known: bool,
    stage: Option<ModerationStage>,
    refused: Option<Parameter>,
    retry_after: Option<Duration>,
    jitter: f64,
    /// How long the call took.
    took: Duration,
}

fn weather() -> impl Strategy<Value = Vec<Weather>> {
    let kind = prop_oneof![2 => 0..8usize, 2 => 8..14usize, 1 => 0..FailureKind::ALL.len()];
    let stage = prop_oneof![
        1 => Just(None),
        1 => Just(Some(ModerationStage::Input)),
        3 => Just(Some(ModerationStage::Output))
    ];
    let refused = proptest::option::of(prop::sample::select(&Parameter::ALL[..]));
    let asks = proptest::option::of(0u64..12_000);
    let one = (kind, any::<bool>(), stage, refused, asks, 0.0..=1.0f64, 0u64..9_000);
    let one = one.prop_map(|(kind, known, stage, refused, asks, jitter, took)| {
        let kind = FailureKind::ALL[kind];
        Weather {
            kind,
            known,
            stage: stage.filter(|_| kind == FailureKind::Moderation),
            refused: refused.filter(|_| kind == FailureKind::Input),
            retry_after: asks.map(Duration::from_millis),
            jitter,
            took: Duration::from_millis(took),
        }
    });
    prop::collection::vec(one, 9)
}

/// What makes a request: with the prompt, which stays, these are its bytes and its address.
type Sent = (Shape, usize, Parameters);

/// Failures that the same request meets again.
fn is_deterministic(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Quota
            | FailureKind::Region
            | FailureKind::Input
            | FailureKind::TooLarge
            | FailureKind::Moderation
            | FailureKind::Truncated
            | FailureKind::Malformed
            | FailureKind::Invalid
            | FailureKind::Empty
    )
}

/// Failures after which nothing is asked of a provider again in this run.
fn ends_at_once(kind: FailureKind) -> bool {
    !matches!(
        kind,
        FailureKind::RateLimited
            | FailureKind::Overloaded
            | FailureKind::Transient
            | FailureKind::Timeout
            | FailureKind::Auth
            | FailureKind::Config
            | FailureKind::Region
            | FailureKind::Input
            | FailureKind::Moderation
            | FailureKind::Malformed
            | FailureKind::Invalid
            | FailureKind::Empty
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn every_run_ends_within_its_limits_and_repeats_nothing_that_can_only_fail(
        rules in rules(),
        routes in 0usize..5,
        full in prop::collection::vec(any::<bool>(), 0..4),
        takes_temperature in any::<bool>(),
        weather in weather(),
    ) {
        let (mut history, mut waited, mut elapsed) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        let (mut shape, mut route, mut left_out) = (Shape::default(), 0, Parameters::NONE);
        let mut in_vain: HashSet<Sent> = HashSet::new();
        let mut ended = false;
        for failure in weather {
            let sent = (shape.clone(), route, left_out);
            prop_assert!(!in_vain.contains(&sent), "sent again in vain: {:?}", sent);
            elapsed += failure.took;
            let refused = failure.refused.filter(|parameter| !left_out.contains(*parameter));
            if is_deterministic(failure.kind) {
                in_vain.insert(sent);
            }
            history.push(FailedCall {
                kind: failure.kind, known: failure.known, stage: failure.stage, refused,
                tier: shape.tier, route, retry_after: failure.retry_after,
            });
            let at = Situation {
                history: &history, routes, full_tiers: &full, takes_temperature, waited,
                since_first_claim: elapsed, output_shown: false, jitter: failure.jitter,
            };
            let step = next_step(&at, &rules);
            if ends_at_once(failure.kind) {
                prop_assert_eq!(step, NextStep::GiveUp {
                    reason: EndReason::NoRepeatHelps { kind: failure.kind }
                });
            }
            match step {
                NextStep::Wait { duration } => {
                    prop_assert!(!is_deterministic(failure.kind), "waiting does not help");
                    prop_assert!(duration >= FLOOR);
                    prop_assert!(failure.kind == FailureKind::Auth
                        || failure.kind == FailureKind::Config
                        || failure.retry_after.is_none_or(|asked| duration >= asked));
                    waited += duration;
                    elapsed += duration;
                    prop_assert!(waited <= rules.total_wait);
                    prop_assert!(elapsed <= rules.give_up_after);
                }
                NextStep::Change(change) => {
                    if let Change::LeaveOut(parameter) = change {
                        left_out = left_out.with(parameter);
                    }
                    shape = shape.changed(change, "wrong".to_owned());
                }
                NextStep::Reroute { route: next } => {
                    prop_assert!(next < routes.max(1));
                    route = next;
                }
                NextStep::Ladder { tier } => {
                    prop_assert!(tier < full.len());
                    prop_assert!(history.iter().all(|call| call.tier != tier), "each tier once");
                    (shape, route, left_out) = (shape.at_tier(tier), 0, Parameters::NONE);
                }
                NextStep::GiveUp { .. } => {
                    ended = true;
                    break;
                }
            }
            prop_assert!(history.len() < rules.max_attempts as usize);
        }
        prop_assert!(ended, "nine failures in a row end any run of at most six calls");
    }
}
