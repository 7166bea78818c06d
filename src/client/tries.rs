//! How often and how long one operation is asked for: what the decisions are fed with.

use std::time::Duration;

use super::decide::{Decision, Ending, Situation, SoFar, decide};
use super::policy::RetryPolicy;
use crate::clock::{Clock, Moment};

/// The count for one operation.
pub(super) struct Tries {
    pub deadline: Moment,
    /// Sendings so far.
    pub attempts: u32,
    /// Repeats after a broken connection since it last brought something.
    lost: usize,
    /// Repeats after a 5xx.
    failed: usize,
}

impl Tries {
    pub fn new(deadline: Moment) -> Self {
        Self { deadline, attempts: 0, lost: 0, failed: 0 }
    }

    /// The stream brought something new: a way that breaks every minute is not one that leads nowhere.
    pub fn got_further(&mut self) {
        self.lost = 0;
    }

    /// What to do in this situation; the repeat it asks for is counted.
    pub fn next(
        &mut self,
        policy: &RetryPolicy,
        situation: Situation,
        clock: &Clock,
    ) -> Result<Option<Duration>, Ending> {
        let so_far =
            SoFar { repeats: self.lost + self.failed, left: self.deadline.since(clock.now()) };
        match decide(policy, situation, so_far, clock.chance()) {
            Decision::Done => Ok(None),
            Decision::Stop(ending) => Err(ending),
            Decision::Again { after, counts } => {
                match situation {
                    Situation::Lost => self.lost += 1,
                    Situation::Answered { .. } | Situation::TimedOut => {
                        self.failed += usize::from(counts);
                    }
                }
                Ok(Some(after))
            }
        }
    }
}
