//! The one loop that calls a provider again. It performs what `domain::retry` decides; nothing else
//! in the product repeats a provider call or waits between two.

use std::time::Duration;

use super::calls::{CallLog, NewCall};
use super::models::Model;
use crate::clock::{Clock, Moment};
use crate::domain::failure::{CallFailure, FailureKind, diagnose};
use crate::domain::prompt::{Answer, CallRequest};
use crate::domain::retry::{
    EndReason, FailedCall, NextStep, RetryRules, Situation, asked_wait, next_step,
};
use crate::faults::{Faults, Point};

/// What the loop needs to know of its run.
pub struct Attempts<'a> {
    pub model: &'a Model,
    pub clock: &'a Clock,
    pub faults: &'a Faults,
    pub rules: &'a RetryRules,
    pub calls: &'a CallLog,
    /// How long before this run the operation was first claimed.
    pub before_run: Duration,
    /// When this run began.
    pub begun: Moment,
}

/// A run's calls came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub kind: FailureKind,
    /// When the provider asked us to come back, where that is beyond this run.
    pub retry_after: Option<Duration>,
}

impl Attempts<'_> {
    /// Calls until there is an answer or a reason to stop.
    pub async fn run(&self, request: &CallRequest) -> Result<Answer, Failed> {
        let mut history: Vec<FailedCall> = Vec::new();
        let mut waited = Duration::ZERO;
        let mut route = 0;
        loop {
            let failure = match self.call(request, route).await? {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let retry_after = asked_wait(&failure.facts, self.clock.utc_now());
            let diagnosis = diagnose(&failure.facts);
            history.push(FailedCall::new(&diagnosis, route, retry_after));
            let situation = Situation {
                history: &history,
                routes: self.model.provider.routes().len(),
                waited,
                since_first_claim: self.before_run + self.clock.now().since(self.begun),
                output_shown: false,
                jitter: self.clock.chance(),
            };
            match next_step(&situation, self.rules) {
                NextStep::Wait { duration } => {
                    tracing::info!(
                        event = "retrying",
                        kind = %diagnosis.kind,
                        wait_ms = duration.as_millis(),
                        calls = history.len(),
                        "calling again"
                    );
                    self.clock.sleep(duration).await;
                    waited += duration;
                }
                NextStep::Reroute { route: next } => {
                    tracing::info!(event = "retrying", kind = %diagnosis.kind, route = next, "another route");
                    route = next;
                }
                NextStep::GiveUp { reason } => {
                    return Err(self.ended(diagnosis.kind, &reason, retry_after));
                }
            }
        }
    }

    fn ended(
        &self,
        kind: FailureKind,
        reason: &EndReason,
        retry_after: Option<Duration>,
    ) -> Failed {
        tracing::warn!(event = "run_failed", %kind, %reason, "no further call in this run");
        if matches!(kind, FailureKind::Auth | FailureKind::Config | FailureKind::Quota) {
            tracing::error!(
                event = "provider_alert",
                %kind,
                provider = self.model.provider.name(),
                "the provider needs its operator"
            );
        }
        Failed { kind, retry_after }
    }

    /// One call under one of the provider's slots, logged at both ends.
    async fn call(
        &self,
        request: &CallRequest,
        route: usize,
    ) -> Result<Result<Answer, CallFailure>, Failed> {
        let provider = &self.model.provider;
        let begun = self.clock.now();
        let slot = self.model.slots.take(self.clock).await;
        let waited = self.clock.now().since(begun);
        metrics::histogram!("oncekey_slot_wait_seconds").record(waited.as_secs_f64());
        let Some(_slot) = slot else {
            tracing::warn!(event = "run_failed", kind = %FailureKind::NoSlot, waited_ms = waited.as_millis(), "gave up waiting for a slot");
            return Err(Failed { kind: FailureKind::NoSlot, retry_after: None });
        };
        self.faults.reach(Point::BeforeCall).await;
        let routes = provider.routes();
        let route_name = routes.get(route).or(routes.last()).map_or("", |route| &route.name);
        let call_no = self.calls.begin(&NewCall {
            provider: provider.name(),
            model: &self.model.name,
            route: route_name,
            changed: None,
            at: self.clock.utc_now(),
        });
        tracing::info!(
            event = "provider_call_started",
            call_no,
            provider = provider.name(),
            model = self.model.name,
            route = route_name,
            slot_wait_ms = waited.as_millis(),
            "calling"
        );
        let begun = self.clock.now();
        let outcome = provider.call(request, route, &mut |_| {}).await;
        let took_ms = self.clock.now().since(begun).as_millis();
        let at = self.clock.utc_now();
        let kind = match &outcome {
            Ok(answer) => {
                self.calls.answered(answer.usage, at);
                tracing::info!(
                    event = "provider_call_ended",
                    call_no,
                    took_ms,
                    stop = answer.stop.as_str(),
                    "answered"
                );
                "ok"
            }
            Err(failure) => {
                let diagnosis = diagnose(&failure.facts);
                self.calls.failed(diagnosis.kind, failure.facts.status, failure.usage, at);
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
        let provider = provider.name().to_owned();
        metrics::counter!("oncekey_provider_calls_total", "provider" => provider, "kind" => kind)
            .increment(1);
        self.faults.reach(Point::AfterCall).await;
        Ok(outcome)
    }
}
