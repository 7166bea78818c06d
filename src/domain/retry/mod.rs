//! Whether a failed call is repeated, when, and on which route; and when an operation ends.
//!
//! Nothing here waits or calls. The loop of a run asks [`next_step`] after every failed call and
//! performs what it says; an arrival asks [`give_up`] before it starts another run. The ceiling on
//! waiting is fixed first and the waits follow from it, and whether to end is decided before a
//! wait, never after it.

mod arrival;
mod ending;
mod retry_after;
mod shape;
mod step;

use std::time::Duration;

pub use arrival::{ArrivalFacts, GiveUpReason, give_up};
pub use ending::{EndReason, Ending};
pub use retry_after::{MAX_RETRY_AFTER, asked_wait, parse_retry_after, regain_access};
pub use shape::{Change, HOTTER, Shape, feedback};
pub use step::{FailedCall, NextStep, Situation, backoff, next_step};

/// The one retry layer's limits (`[retry]` of the configuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRules {
    /// Provider calls in one run of a chat, or for one chunk of a parse, the first included.
    pub max_attempts: u32,
    /// Calls that are asked for because an answer was malformed or broke a rule. A chat takes as many
    /// as there are attempts; a chunk of a parse one.
    pub max_corrections: u32,
    /// Ceiling on the sum of waits in one run.
    pub total_wait: Duration,
    /// Since the operation's first claim, over all its runs.
    pub give_up_after: Duration,
    /// Runs of one operation.
    pub max_runs: u32,
}

impl Default for RetryRules {
    /// The values of the contract.
    fn default() -> Self {
        RetryRules {
            max_attempts: 4,
            max_corrections: u32::MAX,
            total_wait: Duration::from_secs(8),
            give_up_after: Duration::from_secs(3 * 60 * 60),
            max_runs: 6,
        }
    }
}
