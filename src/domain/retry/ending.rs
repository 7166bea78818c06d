//! Why a run is not continued, and how operators tell such ends apart.

use std::fmt;
use std::time::Duration;

use crate::domain::failure::FailureKind;

/// Why a run is not continued, with the numbers that a log line needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The same request would fail the same way, or is not ours to repeat.
    NoRepeatHelps {
        kind: FailureKind,
    },
    /// The refusal was probed once and stands.
    ProbedInVain {
        kind: FailureKind,
    },
    /// A failure that no rule knows came twice.
    UnknownTwice,
    /// A reader already has text of the failed call.
    OutputShown,
    AttemptsUsed {
        calls: u32,
        max_attempts: u32,
    },
    NoRouteLeft {
        routes: usize,
    },
    /// Every model on the ladder was asked once.
    NoTierLeft {
        tiers: usize,
    },
    /// The one changed call that this failure gets was made.
    ChangedInVain {
        kind: FailureKind,
    },
    /// The provider asks for more time than is left.
    RetryAfterTooLong {
        retry_after: Duration,
        left: Duration,
    },
    WaitUsedUp {
        waited: Duration,
        total_wait: Duration,
    },
    /// A wait would end beyond the operation's time.
    TooLate {
        since_first_claim: Duration,
        give_up_after: Duration,
    },
}

/// How a run came to its end without an answer, as operators tell such ends apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The provider failed, and nothing that was left to do helped.
    Failed,
    /// It waited for its turn for as long as it may.
    WaitedOut,
    /// It was turned away at once, without a wait.
    Discarded,
    /// There was more to try and no time for it.
    CutByBudget,
}

impl Ending {
    /// The word in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Failed => "failed",
            Ending::WaitedOut => "waited_out",
            Ending::Discarded => "discarded",
            Ending::CutByBudget => "cut_by_budget",
        }
    }
}

impl EndReason {
    pub const fn ending(&self) -> Ending {
        match self {
            EndReason::NoRepeatHelps { .. }
            | EndReason::ProbedInVain { .. }
            | EndReason::UnknownTwice
            | EndReason::OutputShown
            | EndReason::AttemptsUsed { .. }
            | EndReason::NoRouteLeft { .. }
            | EndReason::NoTierLeft { .. }
            | EndReason::ChangedInVain { .. } => Ending::Failed,
            EndReason::RetryAfterTooLong { .. }
            | EndReason::WaitUsedUp { .. }
            | EndReason::TooLate { .. } => Ending::CutByBudget,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::NoRepeatHelps { kind } => write!(f, "no repeat helps against {kind}"),
            EndReason::ProbedInVain { kind } => write!(f, "{kind} again after one probe"),
            EndReason::UnknownTwice => f.write_str("an unknown failure came twice"),
            EndReason::OutputShown => f.write_str("a reader already has text of this call"),
            EndReason::AttemptsUsed { calls, max_attempts } => {
                write!(f, "{calls} calls of at most {max_attempts} are used")
            }
            EndReason::NoRouteLeft { routes } => write!(f, "all {routes} routes are refused"),
            EndReason::NoTierLeft { tiers } => write!(f, "all {tiers} tiers were asked"),
            EndReason::ChangedInVain { kind } => write!(f, "{kind} again after one changed call"),
            EndReason::RetryAfterTooLong { retry_after, left } => write!(
                f,
                "the provider asks for {} ms, {} ms are left",
                retry_after.as_millis(),
                left.as_millis()
            ),
            EndReason::WaitUsedUp { waited, total_wait } => {
                write!(f, "waited {} ms of {} ms", waited.as_millis(), total_wait.as_millis())
            }
            EndReason::TooLate { since_first_claim, give_up_after } => write!(
                f,
                "{} ms since the first claim, at most {} ms",
                since_first_claim.as_millis(),
                give_up_after.as_millis()
            ),
        }
    }
}
