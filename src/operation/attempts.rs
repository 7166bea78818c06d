//! The one loop that calls a provider again. It performs what `domain::retry` decides; nothing else
//! in the product repeats a provider call or waits between two.

use std::time::Duration;

use super::calls::{CallLog, NewCall};
use super::models::Model;
use super::request::Prompt;
use super::routes::Routes;
use super::slots::{NoSlot, Slot};
use crate::clock::{Clock, Moment};
use crate::domain::failure::{CallFailure, Cause, Diagnosis, FailureFacts, FailureKind, diagnose};
use crate::domain::ids::TenantId;
use crate::domain::prompt::{Answer, CallRequest};
use crate::domain::retry::{
    Change, EndReason, Ending, FailedCall, NextStep, RetryRules, Shape, Situation, asked_wait,
    feedback, next_step,
};
use crate::faults::{Faults, Point};
use crate::streams::Writer;

/// What the loop needs to know of its run.
pub struct Attempts<'a, 'm, T> {
    pub tenant: &'a TenantId,
    /// The model that was asked for, and those to ask after it.
    pub ladder: &'a [&'m Model],
    /// Makes of a whole answer what is wanted of it, or says what is wrong with it.
    pub accept: &'a (dyn Fn(&Answer) -> Result<T, Cause> + Sync),
    pub clock: &'a Clock,
    pub faults: &'a Faults,
    pub rules: &'a RetryRules,
    pub calls: &'a CallLog,
    pub routes: &'a Routes,
    /// Where the text goes as it comes; nowhere where nobody reads pieces of it.
    pub stream: Option<&'a Writer>,
    /// How long before this run the operation was first claimed.
    pub before_run: Duration,
    /// When this run began.
    pub begun: Moment,
}

/// An answer, and whose it is.
pub struct Answered<'m, T> {
    pub answer: Answer,
    /// What was made of it.
    pub accepted: T,
    pub model: &'m Model,
    /// The call that gave it.
    pub call_no: i32,
}

/// A run's calls came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub kind: FailureKind,
    /// When the provider asked us to come back, where that is beyond this run.
    pub retry_after: Option<Duration>,
    /// Whether a call of this run said so, rather than what others heard before.
    pub heard: bool,
    /// What a person is told, where that is more than the kind tells.
    pub detail: Option<String>,
}

impl Failed {
    /// With nothing more to say than why.
    pub fn of(kind: FailureKind) -> Failed {
        Failed { kind, retry_after: None, heard: false, detail: None }
    }
}

/// Where the loop stands.
struct Progress {
    history: Vec<FailedCall>,
    shape: Shape,
    route: usize,
    /// The sum of the waits between calls.
    waited: Duration,
    /// How the next call differs from the one before, and how long was waited for it.
    changed: Option<String>,
    backed_off: Duration,
    /// Whether a reader has text of the call that failed.
    output_shown: bool,
}

impl<'m, T> Attempts<'_, 'm, T> {
    /// Calls until there is an answer or a reason to stop.
    pub async fn run(&self, prompt: &Prompt) -> Result<Answered<'m, T>, Failed> {
        self.go_on(prompt, Vec::new(), Shape::default(), None).await
    }

    /// The same after a call whose answer was taken and found empty: hotter, and told so, once.
    pub async fn run_hotter(&self, prompt: &Prompt) -> Result<Answered<'m, T>, Failed> {
        let facts = FailureFacts { status: Some(200), ..FailureFacts::new(Cause::NothingFound) };
        let diagnosis = diagnose(&facts);
        let hotter = self.model(0).is_some_and(Model::takes_temperature);
        let wrong = feedback(diagnosis.kind, &facts);
        let change = Change::Feedback { hotter };
        let shape = Shape::default().changed(change, wrong);
        let empty = FailedCall::new(&diagnosis, (0, 0), |_| false, None);
        self.go_on(prompt, vec![empty], shape, Some(change.to_string())).await
    }

    async fn go_on(
        &self,
        prompt: &Prompt,
        history: Vec<FailedCall>,
        shape: Shape,
        changed: Option<String>,
    ) -> Result<Answered<'m, T>, Failed> {
        let mut at = Progress {
            history,
            shape,
            route: self.model(0).map_or(0, |model| self.routes.of(model.provider.name())),
            waited: Duration::ZERO,
            changed,
            backed_off: Duration::ZERO,
            output_shown: false,
        };
        loop {
            let model = self.model(at.shape.tier).ok_or(Failed::of(FailureKind::Internal))?;
            let request = prompt.request(model, &at.shape);
            let failure = match self.call(model, &request, &at).await? {
                Ok(answered) => {
                    if let Some(stream) = self.stream {
                        stream.accepted(&answered.answer.text);
                    }
                    return Ok(answered);
                }
                Err(failure) => failure,
            };
            at.output_shown = self.stream.is_some_and(Writer::forget);
            let retry_after = asked_wait(&failure.facts, &request.messages, self.clock.utc_now());
            let diagnosis = diagnose(&failure.facts);
            let place = (at.shape.tier, at.route);
            let can_leave_out =
                |parameter| request.carries(parameter) && model.provider.can_leave_out(parameter);
            at.history.push(FailedCall::new(&diagnosis, place, can_leave_out, retry_after));
            let step = self.next_step(model, &at);
            self.perform(step, model, &mut at, &diagnosis, &failure.facts)
                .await
                .map_err(|reason| self.ended(model, diagnosis.kind, &reason, retry_after))?;
        }
    }

    fn model(&self, tier: usize) -> Option<&'m Model> {
        self.ladder.get(tier).copied()
    }

    fn next_step(&self, model: &Model, at: &Progress) -> NextStep {
        // Asked for only where there is a choice to make.
        let full_tiers: Vec<bool> = match self.ladder {
            [_] => vec![false],
            ladder => ladder.iter().map(|model| model.slots.is_full()).collect(),
        };
        let situation = Situation {
            history: &at.history,
            routes: model.provider.routes().len(),
            full_tiers: &full_tiers,
            takes_temperature: model.takes_temperature(),
            waited: at.waited,
            since_first_claim: self.before_run + self.clock.now().since(self.begun),
            output_shown: at.output_shown,
            jitter: self.clock.chance(),
        };
        next_step(&situation, self.rules)
    }

    /// Waits or changes, as it was decided.
    async fn perform(
        &self,
        step: NextStep,
        model: &Model,
        at: &mut Progress,
        diagnosis: &Diagnosis,
        facts: &FailureFacts,
    ) -> Result<(), EndReason> {
        let kind = diagnosis.kind;
        let calls = at.history.len();
        (at.changed, at.backed_off) = (None, Duration::ZERO);
        match step {
            NextStep::Wait { duration } => {
                let wait_ms = duration.as_millis();
                tracing::info!(event = "retrying", %kind, wait_ms, calls, "calling again");
                self.clock.sleep(duration).await;
                at.waited += duration;
                at.backed_off = duration;
            }
            NextStep::Change(change) => {
                if let Change::LeaveOut(parameter) = change {
                    tracing::warn!(
                        event = "parameter_refused",
                        model = model.name,
                        parameter = parameter.as_str(),
                        "not sent to this model again"
                    );
                    model.refused.remember(parameter);
                }
                tracing::info!(event = "retrying", %kind, wait_ms = 0, calls, %change, "calling again, changed");
                let shape = std::mem::take(&mut at.shape);
                at.shape = shape.changed(change, feedback(kind, facts));
                at.changed = Some(change.to_string());
            }
            NextStep::Reroute { route } => {
                let provider = &model.provider;
                let name = provider.routes().get(route).map_or("", |route| &route.name);
                tracing::info!(event = "retrying", %kind, wait_ms = 0, calls, route = name, "another route");
                self.routes.prefer(provider.name(), route);
                at.route = route;
                at.changed = Some(format!("route {name}"));
            }
            NextStep::Ladder { tier } => {
                let next = self.model(tier);
                let name = next.map_or("", |model| model.name.as_str());
                tracing::info!(event = "retrying", %kind, wait_ms = 0, calls, tier = name, "the next tier");
                at.route = next.map_or(0, |next| self.routes.of(next.provider.name()));
                at.shape = std::mem::take(&mut at.shape).at_tier(tier);
                at.changed = Some(format!("tier {name}"));
            }
            NextStep::GiveUp { reason } => return Err(reason),
        }
        Ok(())
    }

    fn ended(
        &self,
        model: &Model,
        kind: FailureKind,
        reason: &EndReason,
        retry_after: Option<Duration>,
    ) -> Failed {
        end_of_run(kind, reason.ending(), reason);
        if matches!(kind, FailureKind::Auth | FailureKind::Config | FailureKind::Quota) {
            let provider = model.provider.name();
            tracing::error!(event = "provider_alert", %kind, provider, "the provider needs its operator");
        }
        Failed { kind, retry_after, heard: true, detail: None }
    }

    /// A slot, and how long it was waited for.
    async fn slot(&self, model: &Model) -> Result<(Slot, Duration), Failed> {
        let begun = self.clock.now();
        let slot = model.slots.take(self.tenant).await;
        let waited = self.clock.now().since(begun);
        metrics::histogram!("oncekey_slot_wait_seconds").record(waited.as_secs_f64());
        let refused = match slot {
            Ok(slot) => return Ok((slot, waited)),
            Err(refused) => refused,
        };
        let (kind, ending, retry_after) = match refused {
            NoSlot::TimedOut => (FailureKind::NoSlot, Ending::WaitedOut, None),
            NoSlot::Discarded { .. } => (FailureKind::NoSlot, Ending::Discarded, None),
            NoSlot::Latched { left } if waited.is_zero() => {
                (FailureKind::RateLimited, Ending::Discarded, Some(left))
            }
            NoSlot::Latched { left } => (FailureKind::RateLimited, Ending::WaitedOut, Some(left)),
            NoSlot::Closed { left } => (FailureKind::Quota, Ending::Discarded, Some(left)),
        };
        let waited_ms = waited.as_millis();
        end_of_run(kind, ending, &format_args!("no slot: {refused:?}, waited {waited_ms} ms"));
        Err(Failed { kind, retry_after, heard: false, detail: None })
    }

    /// One call under one of the provider's slots, logged at both ends.
    async fn call(
        &self,
        model: &'m Model,
        request: &CallRequest,
        at: &Progress,
    ) -> Result<Result<Answered<'m, T>, CallFailure>, Failed> {
        let provider = &model.provider;
        let (slot, slot_wait) = self.slot(model).await?;
        self.faults.reach(Point::BeforeCall).await;
        let routes = provider.routes();
        let route_name = routes.get(at.route).or(routes.last()).map_or("", |route| &route.name);
        let call_no = self.calls.begin(&NewCall {
            provider: provider.name(),
            model: &model.name,
            route: route_name,
            prices: model.prices,
            price: model.price,
            changed: at.changed.clone(),
            waited: at.backed_off + slot_wait,
            at: self.clock.utc_now(),
        });
        tracing::info!(
            event = "provider_call_started",
            call_no,
            provider = provider.name(),
            model = model.name,
            route = route_name,
            waited_ms = slot_wait.as_millis(),
            changed = at.changed,
            "calling"
        );
        let begun = self.clock.now();
        let mut tell = |text: &str| {
            if let Some(stream) = self.stream {
                stream.push(text);
            }
        };
        let told = provider.call(request, at.route, &mut tell).await;
        let took_ms = self.clock.now().since(begun).as_millis();
        let outcome = match told {
            Ok(answer) => match (self.accept)(&answer) {
                Ok(accepted) => Ok(Answered { answer, accepted, model, call_no }),
                Err(cause) => {
                    let facts = FailureFacts { status: Some(200), ..FailureFacts::new(cause) };
                    Err(CallFailure { facts, usage: answer.usage })
                }
            },
            Err(failure) => Err(failure),
        };
        self.end_call(model, call_no, took_ms, &outcome);
        match &outcome {
            Err(failure) if !answered_all_the_same(&failure.facts) => {
                let retry_after =
                    asked_wait(&failure.facts, &request.messages, self.clock.utc_now());
                slot.failed(diagnose(&failure.facts).kind, begun, retry_after);
            }
            Ok(_) | Err(_) => slot.answered(begun),
        }
        drop(slot);
        self.faults.reach(Point::AfterCall).await;
        Ok(outcome)
    }

    fn end_call(
        &self,
        model: &Model,
        call_no: i32,
        took_ms: u128,
        outcome: &Result<Answered<'m, T>, CallFailure>,
    ) {
        let at = self.clock.utc_now();
        let kind = match outcome {
            Ok(Answered { answer, .. }) => {
                self.calls.answered(call_no, answer.usage, at);
                let stop = answer.stop.as_str();
                tracing::info!(event = "provider_call_ended", call_no, took_ms, stop, "answered");
                "ok"
            }
            Err(failure) => {
                let diagnosis = diagnose(&failure.facts);
                self.calls.failed(call_no, diagnosis.kind, failure.facts.status, failure.usage, at);
                tracing::info!(
                    event = "provider_call_ended",
                    call_no,
                    took_ms,
                    kind = %diagnosis.kind,
                    known = diagnosis.known,
                    facts = failure.facts.summary(),
                    "failed"
                );
                diagnosis.kind.as_str()
            }
        };
        let provider = model.provider.name().to_owned();
        metrics::counter!("oncekey_provider_calls_total", "provider" => provider, "kind" => kind)
            .increment(1);
    }
}

/// Whether the provider gave a whole answer, which is no good to us.
fn answered_all_the_same(facts: &FailureFacts) -> bool {
    match &facts.cause {
        Cause::RuleBroken(_)
        | Cause::NothingFound
        | Cause::AnswerTooLong { .. }
        | Cause::Moderated(_)
        | Cause::OutputLimit => true,
        Cause::Refused { .. }
        | Cause::InBand { .. }
        | Cause::Transport(_)
        | Cause::Deadline { .. }
        | Cause::Cut
        | Cause::Unreadable { .. }
        | Cause::NothingUsable => false,
    }
}

/// One line for a run that makes no further call, with the numbers that decided it.
fn end_of_run(kind: FailureKind, ending: Ending, reason: &dyn std::fmt::Display) {
    let ending = ending.as_str();
    tracing::warn!(event = "run_failed", %kind, ending, %reason, "no further call in this run");
    metrics::counter!("oncekey_run_ends_total", "ending" => ending).increment(1);
}
