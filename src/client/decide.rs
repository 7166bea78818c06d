//! When to send the same request again, and after what time: pure, so that a table can hold it.
//!
//! A repeat helps against a connection that broke and against 502, 503 and 504: nothing is known, or
//! nothing was committed. 409 with a time means that an answer is on its way. Everything else would be
//! said again, and is not asked again.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::policy::RetryPolicy;
use crate::domain::failure::RetryAfterText;
use crate::domain::retry::parse_retry_after;

/// What became of one sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
    /// The connection was refused, or broke before the answer's end.
    Lost,
    /// The client's own time-out passed.
    TimedOut,
    /// An answer, or the verdict at the end of a stream.
    Answered {
        status: u16,
        /// The time after which to ask again, see [`told_wait`].
        wait: Option<Duration>,
        /// `retryable` of the problem, where it has one.
        retryable: Option<bool>,
    },
}

/// What was spent until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoFar {
    /// Repeats after a broken connection or a 5xx; asking again after a 409 is none.
    pub repeats: usize,
    /// Until the client's own time-out.
    pub left: Duration,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// There is an answer.
    Done,
    /// Send the same request with the same key, this much later.
    Again { after: Duration, counts: bool },
    /// A repeat does not help, or was tried often enough.
    Stop(Ending),
}

/// Whom to tell, and what, where there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// What became of the operation is not known.
    ConnectionLost,
    /// The client's own patience ended; the operation may still run.
    TimedOut,
    /// The service failed.
    OurSide,
    /// The request will get the same answer as long as it is the same.
    YourInput,
}

/// The decision. `chance`, from 0 to 1, spreads the waits of many clients that were sent away together.
///
/// A wait that the server names is a least one: neither it nor the policy's own is undercut. One longer
/// than the policy's longest ends the repeats of a 5xx, since a person should not wait for it blindly; of
/// a 409 it is cut, since asking early costs nothing. What would end after the time-out does not begin.
pub fn decide(policy: &RetryPolicy, situation: Situation, so_far: SoFar, chance: f64) -> Decision {
    let (status, told, retryable) = match situation {
        Situation::TimedOut => return Decision::Stop(Ending::TimedOut),
        Situation::Lost => return repeat(policy, None, so_far, chance, Ending::ConnectionLost),
        Situation::Answered { status, wait, retryable } => (status, wait, retryable),
    };
    match status {
        200..=299 => Decision::Done,
        // Told by whoever knows best; on any other status it is the status that counts.
        502..=504 if retryable == Some(false) => Decision::Stop(Ending::OurSide),
        502..=504 => repeat(policy, told, so_far, chance, Ending::OurSide),
        409 => match told {
            Some(told) if retryable != Some(false) => {
                let after = spread(told.min(policy.longest_wait), policy, chance);
                in_time(after, false, so_far, Ending::TimedOut)
            }
            _ => Decision::Stop(Ending::YourInput),
        },
        400..=499 => Decision::Stop(Ending::YourInput),
        _ => Decision::Stop(Ending::OurSide),
    }
}

fn repeat(
    policy: &RetryPolicy,
    told: Option<Duration>,
    so_far: SoFar,
    chance: f64,
    ending: Ending,
) -> Decision {
    let Some(own) = policy.waits.get(so_far.repeats) else { return Decision::Stop(ending) };
    if told.is_some_and(|told| told > policy.longest_wait) {
        return Decision::Stop(ending);
    }
    in_time(spread(told.unwrap_or_default().max(*own), policy, chance), true, so_far, ending)
}

fn in_time(after: Duration, counts: bool, so_far: SoFar, ending: Ending) -> Decision {
    if after < so_far.left { Decision::Again { after, counts } } else { Decision::Stop(ending) }
}

/// Never earlier, and up to the policy's share later.
fn spread(wait: Duration, policy: &RetryPolicy, chance: f64) -> Duration {
    let share = 1.0 + policy.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0);
    // Waits are minutes at most: neither negative nor beyond what a duration holds.
    Duration::try_from_secs_f64(wait.as_secs_f64() * share).unwrap_or(wait)
}

/// The time that an answer names. `retry_after_ms` of the problem goes first, since it is exact and
/// nobody between us and the server writes it; then `Retry-After`, in seconds or as a date. `None` where
/// nothing usable is said.
pub fn told_wait(
    retry_after_ms: Option<u64>,
    retry_after: Option<&str>,
    now: DateTime<Utc>,
) -> Option<Duration> {
    let header = RetryAfterText { millis: None, plain: retry_after.map(str::to_owned) };
    match retry_after_ms {
        Some(millis) => Some(Duration::from_millis(millis)),
        None => parse_retry_after(&header, now),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
