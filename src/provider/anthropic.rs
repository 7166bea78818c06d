//! Anthropic's Messages API.
//!
//! The end mark is `message_stop`. A stop reason alone is not one: it stands in an event before
//! the end, and a stream that ends there was cut.

use reqwest::header::{HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::Value;

use super::exchange::Exchange;
use super::http::{Endpoints, credential};
use super::reading::{AnswerText, Progress, Reading, Stop, last_told};
use super::text::{WireMessage, to_bytes};
use super::{Provider, ProviderSettings, Route, SettingsError, errors};
use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::{CallFailure, Cause};
use crate::domain::prompt::{Answer, CallRequest, Parameter};
use crate::domain::usage::Usage;

/// The version of the wire form that this module reads and writes.
const VERSION: &str = "2023-06-01";

pub(super) struct Anthropic {
    name: String,
    routes: Vec<Route>,
    endpoints: Endpoints,
    exchange: Exchange,
}

impl Anthropic {
    pub(super) fn new(settings: ProviderSettings, clock: Clock) -> Result<Self, SettingsError> {
        let version = HeaderName::from_static("anthropic-version");
        let headers = [(version, HeaderValue::from_static(VERSION))];
        let key = credential(&settings, "")?.map(|key| (HeaderName::from_static("x-api-key"), key));
        let endpoints = Endpoints::new(&settings, "/v1/messages", headers.into_iter().chain(key))?;
        let exchange = Exchange::new(&settings, clock)?;
        Ok(Anthropic { name: settings.name, routes: settings.routes, endpoints, exchange })
    }
}

impl Provider for Anthropic {
    fn name(&self) -> &str {
        &self.name
    }

    fn routes(&self) -> &[Route] {
        &self.routes
    }

    fn can_leave_out(&self, parameter: Parameter) -> bool {
        parameter == Parameter::Temperature
    }

    fn call<'a>(
        &'a self,
        request: &'a CallRequest,
        route: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<Answer, CallFailure>> {
        let request = self.endpoints.request(route, body(request));
        Box::pin(self.exchange.run(request, MessageReading::default(), on_delta))
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    system: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    stream: bool,
}

fn body(request: &CallRequest) -> Vec<u8> {
    let messages = request.messages.iter();
    to_bytes(&Body {
        model: &request.upstream,
        max_tokens: request.max_tokens,
        system: &request.system,
        messages: messages.map(WireMessage::from).collect(),
        temperature: request
            .temperature
            .filter(|_| !request.left_out.contains(Parameter::Temperature)),
        stream: true,
    })
}

#[derive(Default)]
struct MessageReading {
    usage: Usage,
    /// Told by `message_delta`, before the end.
    stop_reason: Option<Stop>,
    ended: bool,
}

impl MessageReading {
    fn tell_usage(&mut self, usage: &Value) {
        last_told(&mut self.usage.input_tokens, &usage["input_tokens"]);
        last_told(&mut self.usage.output_tokens, &usage["output_tokens"]);
        last_told(&mut self.usage.cache_read_tokens, &usage["cache_read_input_tokens"]);
        last_told(&mut self.usage.cache_write_tokens, &usage["cache_creation_input_tokens"]);
    }

    fn tell_stop(&mut self, reason: &Value) {
        let Some(reason) = reason.as_str() else { return };
        self.stop_reason = Some(match reason {
            "max_tokens" | "model_context_window_exceeded" => Stop::MaxTokens,
            "refusal" => Stop::Refused,
            // `end_turn`, `stop_sequence`, and whatever is added: the end mark says it is whole.
            _ => Stop::End,
        });
    }
}

impl Reading for MessageReading {
    fn event(&mut self, event: &Value, answer: &mut AnswerText<'_>) -> Result<Progress, Cause> {
        if let Some(error) = errors::from_json(event) {
            return Err(Cause::InBand { error });
        }
        Ok(match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                self.tell_usage(&event["message"]["usage"]);
                Progress::Began
            }
            "content_block_start" => {
                answer.push(event["content_block"]["text"].as_str().unwrap_or_default())?;
                Progress::Content
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                if delta["type"] == "text_delta" {
                    let text = delta["text"].as_str().unwrap_or_default();
                    answer.push(text)?;
                    // An empty piece is some gateway's keep-alive.
                    if text.is_empty() { Progress::Nothing } else { Progress::Content }
                } else {
                    // Thinking and tool input: no text of the answer, but the model is at work.
                    Progress::Content
                }
            }
            "content_block_stop" => Progress::Content,
            "message_delta" => {
                self.tell_usage(&event["usage"]);
                self.tell_stop(&event["delta"]["stop_reason"]);
                Progress::Content
            }
            "message_stop" => {
                self.ended = true;
                Progress::End
            }
            // `ping`, and what is added later.
            _ => Progress::Nothing,
        })
    }

    fn whole(&mut self, body: &Value, answer: &mut AnswerText<'_>) -> Result<(), Cause> {
        self.tell_usage(&body["usage"]);
        self.tell_stop(&body["stop_reason"]);
        let blocks = body["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        for block in blocks.iter().filter(|block| block["type"] == "text") {
            answer.push(block["text"].as_str().unwrap_or_default())?;
        }
        self.ended = true;
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn stop(&self) -> Option<Stop> {
        // With the end mark and no reason told, the answer is whole all the same.
        self.ended.then(|| self.stop_reason.clone().unwrap_or(Stop::End))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::prompt::{Message, Parameters, Role};

    #[test]
    fn the_body_on_the_wire() {
        let message = |role, content: &str| Message { role, content: content.into() };
        let mut request = CallRequest {
            upstream: "claude".to_owned(),
            system: "Be kind.".into(),
            messages: [message(Role::User, "Hi"), message(Role::Assistant, "Ho")].into(),
            max_tokens: 5,
            temperature: Some(0.5),
            left_out: Parameters::NONE,
        };
        let sent: Value = serde_json::from_slice(&body(&request)).unwrap();
        let messages = serde_json::json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"},
        ]);
        let expected = serde_json::json!({
            "model": "claude", "max_tokens": 5, "temperature": 0.5, "stream": true,
            "system": "Be kind.", "messages": messages,
        });
        assert_eq!(sent, expected);

        request.system = "".into();
        request.temperature = None;
        let sent: Value = serde_json::from_slice(&body(&request)).unwrap();
        let expected = serde_json::json!({
            "model": "claude", "max_tokens": 5, "stream": true, "messages": messages,
        });
        assert_eq!(sent, expected);
    }
}
