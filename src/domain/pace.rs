//! When to ask again: the usual length of a run less what this one has had.

use std::time::Duration;

/// Bounds and default of `retry_after_ms`, from the contract.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(10);
const UNKNOWN: Duration = Duration::from_secs(5);
/// Runs kept, and the fewest that say anything.
const KEPT: usize = 101;
const ENOUGH: usize = 5;

/// The last run times of one endpoint.
#[derive(Debug, Default)]
pub struct Pace {
    seen: Vec<Duration>,
    next: usize,
}

impl Pace {
    /// Remembers how long a run took that ended with an answer.
    pub fn record(&mut self, took: Duration) {
        if self.seen.len() < KEPT {
            self.seen.push(took);
        } else {
            self.seen[self.next] = took;
            self.next = (self.next + 1) % KEPT;
        }
    }

    /// How long an arrival should wait for a run that has had `so_far`.
    pub fn retry_after(&self, so_far: Duration) -> Duration {
        if self.seen.len() < ENOUGH {
            return UNKNOWN;
        }
        let mut sorted = self.seen.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2].saturating_sub(so_far).clamp(SHORTEST, LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_until_enough_runs_were_seen_then_the_median_within_bounds() {
        let mut pace = Pace::default();
        assert_eq!(pace.retry_after(Duration::ZERO), UNKNOWN);
        for seconds in [1, 2, 4, 8, 300] {
            pace.record(Duration::from_secs(seconds));
        }
        assert_eq!(pace.retry_after(Duration::from_secs(1)), Duration::from_secs(3));
        assert_eq!(pace.retry_after(Duration::from_secs(60)), SHORTEST);
        for _ in 0..KEPT {
            pace.record(Duration::from_secs(300));
        }
        assert_eq!(pace.retry_after(Duration::ZERO), LONGEST);
    }
}
