//! A provider that is nobody: it answers from the prompt alone, at the pace it is told.
//!
//! The same prompt has the same answer and the same count of tokens, so that whoever tries the
//! service with no account, or tests it, knows what must come out. A chat is echoed; a script is taken
//! apart by its names (`script`), and for any other tool the values are what the text says in lines of
//! `field: value` (`values`).

mod script;
mod values;

use std::time::Duration;

use super::{Provider, Route};
use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::CallFailure;
use crate::domain::parse::{self, Profile, Sent};
use crate::domain::prompt::{Answer, CallRequest, Parameter, StopReason};
use crate::domain::usage::Usage;

pub(super) struct Simulated {
    name: String,
    /// The one profile whose results follow from a text by rule.
    script: Profile,
    routes: [Route; 1],
    clock: Clock,
    first_byte_delay: Duration,
    tokens_per_second: u32,
}

impl Simulated {
    pub(super) fn new(
        name: String,
        clock: Clock,
        first_byte_delay: Duration,
        tokens_per_second: u32,
    ) -> Simulated {
        let routes = [Route { name: "simulated".to_owned(), base_url: String::new() }];
        let script = Profile::script();
        Simulated { name, script, routes, clock, first_byte_delay, tokens_per_second }
    }

    async fn answer(
        &self,
        request: &CallRequest,
        on_delta: &mut (dyn FnMut(&str) + Send),
    ) -> Answer {
        self.clock.sleep(self.first_byte_delay).await;
        let began = self.clock.now();
        let whole = self.reply(request);
        let mut text = String::new();
        let mut told = 0;
        let limit = usize::try_from(request.max_tokens).unwrap_or(usize::MAX);
        for token in whole.split_inclusive(' ').take(limit) {
            if told > 0 && self.tokens_per_second > 0 {
                // From the beginning, so that many short sleeps do not add up their lateness.
                let due = began + Duration::from_secs(1) / self.tokens_per_second * told;
                if due > self.clock.now() {
                    self.clock.sleep_until(due).await;
                }
            }
            on_delta(token);
            text.push_str(token);
            told = told.saturating_add(1);
        }
        let stop = if text.len() < whole.len() { StopReason::MaxTokens } else { StopReason::End };
        let prompt = request.messages.iter().map(|message| words(&message.content));
        let usage = Usage {
            input_tokens: Some(words(&request.system) + prompt.sum::<i64>()),
            output_tokens: Some(i64::from(told)),
            cache_read_tokens: Some(0),
            cache_write_tokens: Some(0),
            reasoning_tokens: None,
        };
        Answer { text, stop, usage }
    }
}

impl Provider for Simulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn routes(&self) -> &[Route] {
        &self.routes
    }

    fn can_leave_out(&self, _: Parameter) -> bool {
        false
    }

    fn call<'a>(
        &'a self,
        request: &'a CallRequest,
        _route: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<Answer, CallFailure>> {
        Box::pin(async { Ok(self.answer(request, on_delta).await) })
    }
}

impl Simulated {
    /// What is said to a prompt.
    fn reply(&self, request: &CallRequest) -> String {
        let said = request.messages.last().map_or("", |message| &*message.content);
        let Some(tool) = &request.tool else {
            let turn = request.messages.len().div_ceil(2);
            let said = said.trim();
            return format!("This is a simulated answer to message {turn}, which says: {said}");
        };
        // In a picture nothing is seen.
        let whole = Sent { first: true, carried: None, text: said };
        let told = parse::sent(said).unwrap_or(whole);
        let told = if request.images.is_empty() { told } else { Sent { text: "", ..told } };
        if tool == self.script.tool() {
            script::read(&told)
        } else {
            values::fill(tool.schema.get(), told.text)
        }
    }
}

/// A word is a token here.
fn words(text: &str) -> i64 {
    i64::try_from(text.split_whitespace().count()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::domain::prompt::{Message, Parameters, Role};
    use futures_util::FutureExt;

    fn request(max_tokens: u32) -> CallRequest {
        let user = |content: &str| Message { role: Role::User, content: content.into() };
        CallRequest {
            upstream: "simulated".to_owned(),
            system: "Be kind.".into(),
            messages: [user("Good  morning 🫖")].into(),
            images: [].into(),
            tool: None,
            max_tokens,
            temperature: None,
            left_out: Parameters::NONE,
        }
    }

    const TEXT: &str = "This is a simulated answer to message 1, which says: Good  morning 🫖";

    #[test]
    fn the_answer_and_its_cost_follow_from_the_prompt() {
        let clock = ManualClock::new(chrono::DateTime::UNIX_EPOCH).clock();
        let provider = Simulated::new("main".to_owned(), clock, Duration::ZERO, 0);
        let mut deltas = Vec::new();
        let mut on_delta = |delta: &str| deltas.push(delta.to_owned());
        let request = request(100);
        let called = provider.call(&request, 0, &mut on_delta).now_or_never();
        let answer = called.unwrap().unwrap();
        assert_eq!(answer.text, TEXT);
        assert_eq!(deltas.concat(), TEXT);
        assert_eq!(answer.stop, StopReason::End);
        assert_eq!(answer.usage.input_tokens, Some(5));
        assert_eq!(answer.usage.output_tokens, Some(deltas.len() as i64));
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the test awaits its only task")]
    async fn it_keeps_its_pace_and_its_limit() {
        let manual = ManualClock::new(chrono::DateTime::UNIX_EPOCH);
        let delay = Duration::from_millis(300);
        let provider = Simulated::new("main".to_owned(), manual.clock(), delay, 50);
        let call = tokio::spawn(async move {
            let request = request(3);
            provider.call(&request, 0, &mut |_| {}).await.unwrap()
        });
        manual.until_sleeping_for(delay).await;
        manual.advance(delay);
        for _ in 0..2 {
            manual.until_sleeping_for(Duration::from_millis(20)).await;
            manual.advance(Duration::from_millis(20));
        }
        let answer = call.await.unwrap();
        assert_eq!(answer.text, "This is a ");
        assert_eq!(answer.stop, StopReason::MaxTokens);
        assert_eq!(answer.usage.output_tokens, Some(3));
    }

    /// The prompt of a parse of this text, in one part.
    fn parse_request(profile: &Profile, text: &str) -> CallRequest {
        let chunk = parse::chunk(text, 10_000).remove(0);
        let content = profile.message(&chunk, text, 1).into();
        CallRequest {
            system: profile.instructions().clone(),
            messages: [Message { role: Role::User, content }].into(),
            tool: Some(profile.tool().clone()),
            ..request(1_000)
        }
    }

    fn answer(request: &CallRequest) -> Answer {
        let clock = ManualClock::new(chrono::DateTime::UNIX_EPOCH).clock();
        let provider = Simulated::new("main".to_owned(), clock, Duration::ZERO, 0);
        provider.call(request, 0, &mut |_| {}).now_or_never().unwrap().unwrap()
    }

    const KETTLES: &str = "Two Kettles\n\nMARA: Is it boiling?\n\nOTTO\nNot yet.\n";

    #[test]
    fn a_script_is_taken_apart_and_keeps_the_schema() {
        let script = Profile::script();
        let answer = answer(&parse_request(&script, KETTLES));
        let salvaged = parse::salvage(&script, &answer.text).unwrap();
        let expected = serde_json::json!({
            "title": "Two Kettles", "characters": ["MARA", "OTTO"],
            "dialogue": [
                {"character": "MARA", "line": "Is it boiling?"}, {"character": "OTTO", "line": "Not yet."},
            ],
        });
        assert_eq!((salvaged.value, salvaged.repairs), (expected, 0));
        assert_eq!(answer.stop, StopReason::End);
        assert!(answer.usage.output_tokens >= Some(5), "words are counted");
    }

    #[test]
    fn a_limit_cuts_the_input_and_a_picture_shows_nothing() {
        let script = Profile::script();
        let mut request = parse_request(&script, KETTLES);
        request.max_tokens = 3;
        let cut = answer(&request);
        assert_eq!((cut.stop, cut.usage.output_tokens), (StopReason::MaxTokens, Some(3)));
        assert!(parse::salvage(&script, &cut.text).is_err());

        let image = crate::domain::prompt::PromptImage {
            media_type: "image/png".to_owned(),
            bytes: bytes::Bytes::from_static(b"png"),
        };
        let seen = CallRequest { images: [image].into(), max_tokens: 1_000, ..request };
        let value = parse::salvage(&script, &answer(&seen).text).unwrap().value;
        assert!(script.is_empty(&value), "{value}");
    }
}
