//! Before another run of an operation: whether it has had enough.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::RetryRules;

/// What an arrival knows that would claim again or take over; or a run that has just failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivalFacts {
    /// Counted runs so far (`attempts`).
    pub runs: u32,
    pub first_claimed_at: DateTime<Utc>,
    /// When the next run would start, by the database's clock.
    pub resume_at: DateTime<Utc>,
    /// Runs of this operation that ended at the provider's quota.
    pub quota_hits: u32,
}

/// Why an operation is not run again, with both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUpReason {
    RunsUsedUp { runs: u32, max_runs: u32 },
    TooLate { since_first_claim: Duration, give_up_after: Duration },
    QuotaAgain { quota_hits: u32 },
}

impl fmt::Display for GiveUpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GiveUpReason::RunsUsedUp { runs, max_runs } => {
                write!(f, "{runs} runs of at most {max_runs} are used")
            }
            GiveUpReason::TooLate { since_first_claim, give_up_after } => write!(
                f,
                "{} s since the first claim, at most {} s",
                since_first_claim.as_secs(),
                give_up_after.as_secs()
            ),
            GiveUpReason::QuotaAgain { quota_hits } => {
                write!(f, "the provider's quota was hit {quota_hits} times")
            }
        }
    }
}

/// Quota hits of one operation at which it ends: what was empty and is empty again needs a person.
const MAX_QUOTA_HITS: u32 = 2;

/// Whether the operation ends for good instead of being run again. A resume at exactly the limit
/// still runs; one past it does not.
pub fn give_up(facts: &ArrivalFacts, rules: &RetryRules) -> Option<GiveUpReason> {
    if facts.quota_hits >= MAX_QUOTA_HITS {
        return Some(GiveUpReason::QuotaAgain { quota_hits: facts.quota_hits });
    }
    if facts.runs >= rules.max_runs {
        return Some(GiveUpReason::RunsUsedUp { runs: facts.runs, max_runs: rules.max_runs });
    }
    // A clock that was set back makes it negative: no time has passed, as far as anyone knows.
    let since_first_claim =
        (facts.resume_at - facts.first_claimed_at).to_std().unwrap_or(Duration::ZERO);
    let give_up_after = rules.give_up_after;
    (since_first_claim > give_up_after)
        .then_some(GiveUpReason::TooLate { since_first_claim, give_up_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(resume_at: &str) -> ArrivalFacts {
        ArrivalFacts {
            runs: 1,
            first_claimed_at: "2026-08-19T00:36:57Z".parse().unwrap(),
            resume_at: resume_at.parse().unwrap(),
            quota_hits: 0,
        }
    }

    #[test]
    fn a_resume_past_intake_and_three_hours_ends_the_operation() {
        let rules = RetryRules::default();
        let late = give_up(&facts("2026-08-19T06:37:00Z"), &rules);
        let six_hours = Duration::from_secs(6 * 3600 + 3);
        let give_up_after = Duration::from_secs(3 * 3600);
        assert_eq!(
            late,
            Some(GiveUpReason::TooLate { since_first_claim: six_hours, give_up_after })
        );

        assert_eq!(give_up(&facts("2026-08-19T03:36:57Z"), &rules), None, "at the limit");
        assert!(give_up(&facts("2026-08-19T03:36:57.000001Z"), &rules).is_some(), "past it");
        assert_eq!(give_up(&facts("2026-08-19T00:36:57Z"), &rules), None);
        assert_eq!(give_up(&facts("2026-08-18T00:00:00Z"), &rules), None, "a clock set back");
    }

    #[test]
    fn the_second_quota_hit_ends_it_whatever_the_time() {
        let rules = RetryRules::default();
        let mut facts = facts("2026-08-19T00:37:00Z");
        facts.quota_hits = 1;
        assert_eq!(give_up(&facts, &rules), None);
        facts.quota_hits = 2;
        assert_eq!(give_up(&facts, &rules), Some(GiveUpReason::QuotaAgain { quota_hits: 2 }));
    }

    #[test]
    fn runs_are_counted() {
        let rules = RetryRules::default();
        let mut facts = facts("2026-08-19T00:37:00Z");
        facts.runs = 5;
        assert_eq!(give_up(&facts, &rules), None, "the sixth run may start");
        facts.runs = 6;
        let used = GiveUpReason::RunsUsedUp { runs: 6, max_runs: 6 };
        assert_eq!(give_up(&facts, &rules), Some(used));
    }
}
