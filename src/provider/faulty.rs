//! A provider in front of another one, which lets the calls that a fault was asked for come to
//! nothing, as the real one's would: with the same facts, and within the same deadlines.
//!
//! It is put on only where such a fault is asked for, and in front of any kind, so that every way
//! back can be tried with no account.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use super::{Provider, Route};
use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::{
    CallFailure, Cause, DeadlineKind, FailureFacts, TransportFault, VendorError,
};
use crate::domain::prompt::{Answer, CallRequest, Parameter};
use crate::domain::usage::Usage;
use crate::faults::{Fault, Faults};

/// What this can do; a call takes at most one of those that are counted, in this order.
const OURS: [Fault; 5] = [
    Fault::ProviderSlow,
    Fault::ProviderFailOnce,
    Fault::ProviderLimit,
    Fault::ProviderHang,
    Fault::ProviderCut,
];

struct Faulty {
    provider: Arc<dyn Provider>,
    faults: Faults,
    clock: Clock,
    /// Until a call that hears nothing is ended.
    deadline: (DeadlineKind, Duration),
}

/// Puts the faults in front of a provider; the provider as it is where none is asked for. The
/// deadlines are those of its settings: a hanging call is ended by whichever of them is sooner.
pub fn with_faults(
    provider: Arc<dyn Provider>,
    faults: &Faults,
    clock: Clock,
    first_byte_timeout: Duration,
    call_timeout: Duration,
) -> Arc<dyn Provider> {
    if !faults.asks_any(&OURS) {
        return provider;
    }
    let deadline = if call_timeout <= first_byte_timeout {
        (DeadlineKind::Absolute, call_timeout)
    } else {
        (DeadlineKind::FirstByte, first_byte_timeout)
    };
    Arc::new(Faulty { provider, faults: faults.clone(), clock, deadline })
}

impl Faulty {
    async fn answer(
        &self,
        request: &CallRequest,
        route: usize,
        on_delta: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Answer, CallFailure> {
        if let Some(delay) = self.faults.take_duration(Fault::ProviderSlow) {
            self.silence(delay).await?;
        }
        if self.faults.take(Fault::ProviderFailOnce) {
            return Err(refusal(500, "api_error"));
        }
        if self.faults.take(Fault::ProviderLimit) {
            return Err(refusal(429, "rate_limit_error"));
        }
        if self.faults.take(Fault::ProviderHang) {
            self.silence(Duration::MAX).await?;
        }
        if self.faults.take(Fault::ProviderCut) {
            return self.cut_after_first_text(request, route, on_delta).await;
        }
        self.provider.call(request, route, on_delta).await
    }

    /// Nothing comes for so long, or until the deadline ends the call.
    async fn silence(&self, time: Duration) -> Result<(), CallFailure> {
        let (kind, limit) = self.deadline;
        self.clock.sleep(time.min(limit)).await;
        if time < limit { Ok(()) } else { Err(failure(Cause::Deadline { kind, limit })) }
    }

    /// Drops the call, which ends its request, as soon as text has come. A call that ends before is
    /// not hurt.
    async fn cut_after_first_text(
        &self,
        request: &CallRequest,
        route: usize,
        on_delta: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Answer, CallFailure> {
        let flowed = AtomicBool::new(false);
        let mut first_text = |text: &str| {
            // What else has arrived by then is on the far side of the cut.
            if !text.is_empty() && !flowed.swap(true, Ordering::Relaxed) {
                on_delta(text);
            }
        };
        let mut call = self.provider.call(request, route, &mut first_text);
        poll_fn(|context| {
            let polled = call.as_mut().poll(context);
            if !flowed.load(Ordering::Relaxed) {
                return polled;
            }
            let mut cut = failure(Cause::Transport(TransportFault::Body));
            cut.facts.status = Some(200);
            cut.facts.text_flowed = true;
            Poll::Ready(Err(cut))
        })
        .await
    }
}

impl Provider for Faulty {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn routes(&self) -> &[Route] {
        self.provider.routes()
    }

    fn can_leave_out(&self, parameter: Parameter) -> bool {
        self.provider.can_leave_out(parameter)
    }

    fn call<'a>(
        &'a self,
        request: &'a CallRequest,
        route: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<Answer, CallFailure>> {
        Box::pin(self.answer(request, route, on_delta))
    }
}

fn failure(cause: Cause) -> CallFailure {
    CallFailure { facts: FailureFacts::new(cause), usage: Usage::default() }
}

fn refusal(status: u16, kind: &str) -> CallFailure {
    let error = VendorError {
        kind: Some(kind.to_owned()),
        message: Some("a fault that was asked for".to_owned()),
        ..VendorError::default()
    };
    let mut refused = failure(Cause::Refused { html: false, error });
    refused.facts.status = Some(status);
    refused
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::clock::ManualClock;
    use crate::domain::failure::{FailureKind, classify};
    use crate::domain::prompt::{Message, Role};
    use crate::faults::Plan;
    use crate::provider::{ProviderKind, ProviderSettings, build};

    const FIRST_BYTE: Duration = Duration::from_secs(60);

    /// The simulated provider behind these faults.
    fn provider(variables: &[(&str, &str)]) -> (ManualClock, Arc<dyn Provider>) {
        let manual = ManualClock::new(chrono::DateTime::UNIX_EPOCH);
        let call_timeout = Duration::from_secs(600);
        let settings = ProviderSettings {
            name: "main".to_owned(),
            kind: ProviderKind::Simulated {
                first_byte_delay: Duration::ZERO,
                tokens_per_second: 0,
            },
            api_key: None,
            routes: Vec::new(),
            first_byte_timeout: FIRST_BYTE,
            idle_timeout: FIRST_BYTE,
            call_timeout,
            max_answer_bytes: crate::provider::DEFAULT_MAX_ANSWER_BYTES,
        };
        let provider = build(settings, manual.clock()).unwrap();
        let all = variables.iter().chain([&("ONCEKEY_FAULTS", "on")]);
        let plan = Plan::read(all.map(|&(name, text)| (name.to_owned(), text.to_owned())));
        let faults = Faults::asked(plan.unwrap());
        let provider = with_faults(provider, &faults, manual.clock(), FIRST_BYTE, call_timeout);
        (manual, provider)
    }

    fn request() -> CallRequest {
        CallRequest {
            upstream: "simulated".to_owned(),
            system: "".into(),
            messages: [Message { role: Role::User, content: "Good morning".into() }].into(),
            images: [].into(),
            tool: None,
            max_tokens: 100,
            temperature: None,
            left_out: crate::domain::prompt::Parameters::NONE,
        }
    }

    /// How a call that waits for nothing ends, and the text that was shown.
    fn called(provider: &dyn Provider) -> (Result<Answer, CallFailure>, String) {
        let mut shown = String::new();
        let mut show = |text: &str| shown.push_str(text);
        let ended = provider.call(&request(), 0, &mut show).now_or_never().unwrap();
        (ended, shown)
    }

    #[test]
    fn the_first_calls_fail_and_later_ones_pass() {
        let asked =
            [("ONCEKEY_FAULT_PROVIDER_FAIL_ONCE", "2"), ("ONCEKEY_FAULT_PROVIDER_LIMIT", "1")];
        let (_, provider) = provider(&asked);
        for kind in [FailureKind::Transient, FailureKind::Transient, FailureKind::RateLimited] {
            let (ended, shown) = called(&*provider);
            assert_eq!((classify(&ended.unwrap_err().facts), shown.as_str()), (kind, ""));
        }
        let (ended, shown) = called(&*provider);
        assert_eq!(ended.unwrap().text, shown);
    }

    #[test]
    fn a_cut_call_has_shown_its_first_text_and_no_more() {
        let (_, provider) = provider(&[("ONCEKEY_FAULT_PROVIDER_CUT", "1")]);
        let (ended, shown) = called(&*provider);
        let facts = ended.unwrap_err().facts;
        assert_eq!(classify(&facts), FailureKind::Transient);
        assert_eq!((facts.text_flowed, facts.status, shown.as_str()), (true, Some(200), "This "));
        assert!(called(&*provider).0.is_ok());
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the test awaits its only task")]
    async fn a_hanging_call_ends_with_its_deadline() {
        let (manual, provider) = provider(&[("ONCEKEY_FAULT_PROVIDER_HANG", "1")]);
        let call = tokio::spawn(async move { provider.call(&request(), 0, &mut |_| {}).await });
        manual.until_sleeping_for(FIRST_BYTE).await;
        manual.advance(FIRST_BYTE);
        let facts = call.await.unwrap().unwrap_err().facts;
        assert_eq!(classify(&facts), FailureKind::Timeout);
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the test awaits its only task")]
    async fn a_slow_call_is_late_and_whole_unless_its_deadline_is_sooner() {
        for (time, late) in [("59s", true), ("60s", false), ("1h", false)] {
            let (manual, provider) = provider(&[("ONCEKEY_FAULT_PROVIDER_SLOW", time)]);
            let call = tokio::spawn(async move { provider.call(&request(), 0, &mut |_| {}).await });
            let delay = humantime::parse_duration(time).unwrap().min(FIRST_BYTE);
            manual.until_sleeping_for(delay).await;
            manual.advance(delay);
            let ended = call.await.unwrap();
            assert_eq!(ended.is_ok(), late, "{time}");
        }
    }
}
