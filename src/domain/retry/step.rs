//! After a failed call of a run: wait, take another route, or end.

use std::time::Duration;

use super::ending::EndReason;
use super::{Change, RetryRules};
use crate::domain::failure::{Diagnosis, FailureKind, ModerationStage};
use crate::domain::prompt::Parameter;

/// No wait is shorter: a repeat at once after a refusal is what a storm is made of.
const FLOOR: Duration = Duration::from_millis(100);

/// One failed call of the run, as far as the next decision needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedCall {
    pub kind: FailureKind,
    /// False where the kind is a guess, see [`Diagnosis::known`].
    pub known: bool,
    /// Where a filter stood, with [`FailureKind::Moderation`].
    pub stage: Option<ModerationStage>,
    /// The parameter that the model refused, where the call carried it and can do without.
    pub refused: Option<Parameter>,
    /// The model's place on the ladder; 0 is the one that was asked for.
    pub tier: usize,
    /// The route's place in its provider's list.
    pub route: usize,
    /// What the provider asked for, see [`super::parse_retry_after`].
    pub retry_after: Option<Duration>,
}

impl FailedCall {
    /// A failed call at a tier and a route; `can_leave_out` says of a refused parameter whether the
    /// call carried it and is complete without.
    pub fn new(
        diagnosis: &Diagnosis,
        (tier, route): (usize, usize),
        can_leave_out: impl FnOnce(Parameter) -> bool,
        retry_after: Option<Duration>,
    ) -> FailedCall {
        FailedCall {
            kind: diagnosis.kind,
            known: diagnosis.known,
            stage: diagnosis.stage,
            refused: diagnosis.refused_parameter.filter(|&parameter| can_leave_out(parameter)),
            tier,
            route,
            retry_after,
        }
    }
}

/// Where a run stands after a failed call.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The run's failed calls in order; the last is the one to decide on.
    pub history: &'a [FailedCall],
    /// How many routes the provider of the last call has; 0 counts as 1.
    pub routes: usize,
    /// For every model on the ladder, the one asked for included, whether it has no room for a call
    /// now; empty counts as one with room.
    pub full_tiers: &'a [bool],
    /// Whether the model of the last call takes a temperature.
    pub takes_temperature: bool,
    /// The sum of the waits of this run so far.
    pub waited: Duration,
    /// Since the operation's first claim.
    pub since_first_claim: Duration,
    /// Text of the failed call was given to a reader, who cannot take it back: the run ends, and
    /// the client's retry runs anew.
    pub output_shown: bool,
    /// From 0 to 1, at random, new for each decision.
    pub jitter: f64,
}

/// What the loop does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Send the same request again on the same route after this time.
    Wait { duration: Duration },
    /// Send the request at once, changed.
    Change(Change),
    /// Send the same request at once on the route with this place in the list, and prefer it for
    /// the operation's other calls.
    Reroute { route: usize },
    /// Ask the model at this place on the ladder at once.
    Ladder { tier: usize },
    /// End the run with the kind of its last failure.
    GiveUp { reason: EndReason },
}

/// Decides what follows the last failed call of `situation.history`. An empty history has nothing
/// to repeat and ends the run.
pub fn next_step(situation: &Situation<'_>, rules: &RetryRules) -> NextStep {
    match decide(situation, rules) {
        Ok(step) => step,
        Err(reason) => NextStep::GiveUp { reason },
    }
}

fn decide(situation: &Situation<'_>, rules: &RetryRules) -> Result<NextStep, EndReason> {
    let Some((last, earlier)) = situation.history.split_last() else {
        return Err(EndReason::NoRepeatHelps { kind: FailureKind::Internal });
    };
    let kind = last.kind;
    match kind {
        FailureKind::RateLimited
        | FailureKind::Overloaded
        | FailureKind::Transient
        | FailureKind::Timeout => {
            if !last.known && earlier.iter().any(|call| !call.known) {
                return Err(EndReason::UnknownTwice);
            }
            may_call_again(situation, rules)?;
            wait(situation, rules, last.retry_after)
        }
        FailureKind::Auth | FailureKind::Config => {
            let probed =
                |call: &FailedCall| matches!(call.kind, FailureKind::Auth | FailureKind::Config);
            if earlier.iter().any(probed) {
                return Err(EndReason::ProbedInVain { kind });
            }
            may_call_again(situation, rules)?;
            wait(situation, rules, None)
        }
        FailureKind::Region => {
            let route = untried_route(situation)?;
            may_call_again(situation, rules)?;
            Ok(NextStep::Reroute { route })
        }
        FailureKind::Input => {
            let refused = last.refused.ok_or(EndReason::NoRepeatHelps { kind })?;
            // Left out once and refused all the same: it is something else that is wrong.
            if earlier.iter().any(|call| call.tier == last.tier && call.refused == Some(refused)) {
                return Err(EndReason::ChangedInVain { kind });
            }
            may_call_again(situation, rules)?;
            Ok(NextStep::Change(Change::LeaveOut(refused)))
        }
        FailureKind::Malformed | FailureKind::Invalid => {
            let wrong = |call: &&FailedCall| {
                matches!(call.kind, FailureKind::Malformed | FailureKind::Invalid)
            };
            let corrected = earlier.iter().filter(wrong).count();
            if corrected >= usize::try_from(rules.max_corrections).unwrap_or(usize::MAX) {
                return Err(EndReason::ChangedInVain { kind });
            }
            may_call_again(situation, rules)?;
            Ok(feedback(situation))
        }
        FailureKind::Moderation => match last.stage {
            Some(ModerationStage::Output) => {
                let step = softer(situation)?;
                may_call_again(situation, rules)?;
                Ok(step)
            }
            // What was asked is refused, by any tier.
            Some(ModerationStage::Input) | None => Err(EndReason::NoRepeatHelps { kind }),
        },
        FailureKind::Empty => {
            if earlier.iter().any(|call| call.kind == kind) {
                return Err(EndReason::ChangedInVain { kind });
            }
            may_call_again(situation, rules)?;
            Ok(feedback(situation))
        }
        FailureKind::Quota
        | FailureKind::TooLarge
        | FailureKind::Truncated
        | FailureKind::PasswordRequired
        | FailureKind::Broken
        | FailureKind::Blank
        | FailureKind::NoPages
        | FailureKind::NoTextLayer
        | FailureKind::TooComplex
        | FailureKind::Storage
        | FailureKind::ReadingFailed
        | FailureKind::NoSlot
        | FailureKind::Internal
        | FailureKind::Abandoned
        | FailureKind::Released
        | FailureKind::Cancelled
        | FailureKind::LeaseLost
        | FailureKind::OutcomeUnknown
        | FailureKind::RunLost
        | FailureKind::Database
        | FailureKind::GaveUp => Err(EndReason::NoRepeatHelps { kind }),
    }
}

fn feedback(situation: &Situation<'_>) -> NextStep {
    NextStep::Change(Change::Feedback { hotter: situation.takes_temperature })
}

/// After a filter of the output: the next tier, each once, one with room before one without. Where
/// there is no ladder, one changed call.
fn softer(situation: &Situation<'_>) -> Result<NextStep, EndReason> {
    let kind = FailureKind::Moderation;
    let tiers = situation.full_tiers.len().max(1);
    let filtered = situation.history.iter().filter(|call| call.kind == kind).count();
    if tiers == 1 {
        return if filtered > 1 {
            Err(EndReason::ChangedInVain { kind })
        } else {
            Ok(feedback(situation))
        };
    }
    let asked = |tier: usize| situation.history.iter().any(|call| call.tier == tier);
    let left = || (0..tiers).filter(|tier| !asked(*tier));
    let with_room = left().find(|tier| situation.full_tiers.get(*tier) == Some(&false));
    let tier = with_room.or_else(|| left().next()).ok_or(EndReason::NoTierLeft { tiers })?;
    Ok(NextStep::Ladder { tier })
}

fn may_call_again(situation: &Situation<'_>, rules: &RetryRules) -> Result<(), EndReason> {
    if situation.output_shown {
        return Err(EndReason::OutputShown);
    }
    let calls = u32::try_from(situation.history.len()).unwrap_or(u32::MAX);
    if calls >= rules.max_attempts {
        return Err(EndReason::AttemptsUsed { calls, max_attempts: rules.max_attempts });
    }
    if situation.since_first_claim > rules.give_up_after {
        return Err(too_late(situation, rules));
    }
    Ok(())
}

fn too_late(situation: &Situation<'_>, rules: &RetryRules) -> EndReason {
    EndReason::TooLate {
        since_first_claim: situation.since_first_claim,
        give_up_after: rules.give_up_after,
    }
}

fn wait(
    situation: &Situation<'_>,
    rules: &RetryRules,
    retry_after: Option<Duration>,
) -> Result<NextStep, EndReason> {
    let waits_left = rules.total_wait.saturating_sub(situation.waited);
    let time_left = rules.give_up_after.saturating_sub(situation.since_first_claim);
    let left = waits_left.min(time_left);
    if let Some(retry_after) = retry_after {
        let duration = retry_after.max(FLOOR);
        if duration > left {
            return Err(EndReason::RetryAfterTooLong { retry_after, left });
        }
        return Ok(NextStep::Wait { duration });
    }
    if left < FLOOR {
        return Err(if waits_left < FLOOR {
            EndReason::WaitUsedUp { waited: situation.waited, total_wait: rules.total_wait }
        } else {
            too_late(situation, rules)
        });
    }
    // A route that refused the region cost no time and says nothing about the load.
    let waited_for =
        situation.history.iter().filter(|call| call.kind != FailureKind::Region).count();
    let duration = backoff(waited_for, situation.jitter, rules.total_wait).min(left);
    Ok(NextStep::Wait { duration })
}

/// Our own wait after failure number `failure` (from 1) of a run: at random between the floor of
/// 100 ms and a ceiling that follows from the total, a quarter of it after the first failure and
/// three quarters after any later one (8 s: 2 s, then 6 s). The caller keeps it within what is left.
pub fn backoff(failure: usize, jitter: f64, total_wait: Duration) -> Duration {
    let quarters = if failure <= 1 { 1 } else { 3 };
    let ceiling = total_wait / 4 * quarters;
    // NaN counts as 0; a clamp keeps a careless source within the promise.
    let jitter = if jitter.is_nan() { 0.0 } else { jitter.clamp(0.0, 1.0) };
    FLOOR + ceiling.saturating_sub(FLOOR).mul_f64(jitter)
}

/// The next route, after the last one tried and round the list, that did not refuse the region.
fn untried_route(situation: &Situation<'_>) -> Result<usize, EndReason> {
    let routes = situation.routes.max(1);
    let (tier, last) = situation.history.last().map_or((0, 0), |call| (call.tier, call.route));
    let refused = |route: usize| {
        situation.history.iter().any(|call| {
            call.tier == tier && call.route == route && call.kind == FailureKind::Region
        })
    };
    (1..=routes)
        .map(|step| (last + step) % routes)
        .find(|route| !refused(*route))
        .ok_or(EndReason::NoRouteLeft { routes })
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "step_properties.rs"]
mod properties;
