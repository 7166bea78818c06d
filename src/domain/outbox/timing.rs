//! When a delivery is tried again, and when an event is given up.

use std::time::Duration;

/// Waits after refusals of one event: the first, doubled up to the longest.
const REFUSED: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(300));
/// Waits while a sink is down: the first, doubled up to the longest. Short at the end too, since one
/// event alone tries.
const DOWN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// The longest `Retry-After` that is believed: a longer one would stop all events on a slip of the pen.
pub const LONGEST_ASKED: Duration = Duration::from_secs(3_600);

/// When an event becomes a dead letter: both must be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterRules {
    /// Refusals by a sink that is well, at least 1.
    pub max_attempts: u32,
    /// Since the first of them.
    pub give_up_after: Duration,
}

/// What follows from a refusal that is the event's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRefusal {
    Again(Duration),
    Dead,
}

/// After `attempts` refusals, this one included, the first of them `refused_for` ago. `chance`: from
/// 0 to 1.
pub fn after_refusal(
    rules: &LetterRules,
    attempts: u32,
    refused_for: Duration,
    chance: f64,
) -> AfterRefusal {
    if attempts >= rules.max_attempts && refused_for >= rules.give_up_after {
        AfterRefusal::Dead
    } else {
        AfterRefusal::Again(backoff(attempts, chance))
    }
}

/// How long an event waits that was refused for the `attempts`th time.
pub fn backoff(attempts: u32, chance: f64) -> Duration {
    doubled(REFUSED, attempts, chance)
}

/// How long a sink is left alone that failed for the `failures`th time in a row and asked for this
/// much time, where it asked.
pub fn hold(failures: u32, asked: Option<Duration>, chance: f64) -> Duration {
    match asked {
        Some(asked) => asked.min(LONGEST_ASKED),
        None => doubled(DOWN, failures, chance),
    }
}

/// Half of it is chance, so that relays do not come back all at once.
fn doubled((first, longest): (Duration, Duration), count: u32, chance: f64) -> Duration {
    let factor = 1_u32.checked_shl(count.saturating_sub(1)).unwrap_or(u32::MAX);
    let whole = first.saturating_mul(factor).min(longest);
    whole.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: LetterRules =
        LetterRules { max_attempts: 3, give_up_after: Duration::from_secs(60) };

    #[test]
    fn an_event_dies_of_attempts_and_time_together() {
        let after = |attempts, seconds| {
            after_refusal(&RULES, attempts, Duration::from_secs(seconds), 1.0) == AfterRefusal::Dead
        };
        assert!(!after(2, 1_000), "too few attempts");
        assert!(!after(1_000, 59), "too soon");
        assert!(after(3, 60));
        assert_eq!(
            after_refusal(&RULES, 2, Duration::ZERO, 1.0),
            AfterRefusal::Again(Duration::from_millis(500))
        );
    }

    #[test]
    fn waits_double_up_to_their_bound() {
        let waits = [1, 2, 3, 11, 12, 40, u32::MAX].map(|attempts| backoff(attempts, 1.0));
        let expected = [250, 500, 1_000, 256_000, 300_000, 300_000, 300_000];
        assert_eq!(waits, expected.map(Duration::from_millis));
        assert_eq!(backoff(1, 0.0), Duration::from_millis(125));
        assert_eq!(hold(8, None, 1.0), Duration::from_secs(30));
        assert_eq!(hold(8, Some(Duration::from_secs(2)), 0.3), Duration::from_secs(2));
        assert_eq!(hold(1, Some(Duration::from_secs(9_999)), 0.3), LONGEST_ASKED);
    }

    proptest! {
        #[test]
        fn no_wait_is_none_or_endless(count in any::<u32>(), chance in 0.0..=1.0_f64) {
            prop_assert!(backoff(count, chance) >= REFUSED.0 / 2);
            prop_assert!(backoff(count, chance) <= REFUSED.1);
            prop_assert!(backoff(count, chance) <= backoff(count.saturating_add(1), chance));
            prop_assert!((DOWN.0 / 2..=DOWN.1).contains(&hold(count, None, chance)));
        }

        #[test]
        fn before_both_bounds_nothing_dies(attempts in 0u32..10, seconds in 0u64..200, chance in 0.0..=1.0_f64) {
            let dead = after_refusal(&RULES, attempts, Duration::from_secs(seconds), chance) == AfterRefusal::Dead;
            prop_assert_eq!(dead, attempts >= 3 && seconds >= 60);
        }
    }
}
