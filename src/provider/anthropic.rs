//! Anthropic's Messages API.
//!
//! The end mark is `message_stop`. A stop reason alone is not one: it stands in an event before
//! the end, and a stream that ends there was cut.
//!
//! A tool's input is asked for as it is written. The vendor would hold back each member until it is whole
//! otherwise, and a list of a thousand lines is one member: minutes of silence, which end a call.

use reqwest::header::{HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::exchange::Exchange;
use super::http::{Endpoints, credential};
use super::reading::{AnswerText, Progress, Reading, Stop, last_told};
use super::text::to_bytes;
use super::wire::{WireMessage, base64, messages};
use super::{Provider, ProviderSettings, Route, SettingsError, errors};
use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::{CallFailure, Cause};
use crate::domain::prompt::{Answer, CallRequest, Parameter, PromptImage, Tool};
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
        let reading = MessageReading { tool: request.tool.is_some(), ..MessageReading::default() };
        let request = self.endpoints.request(route, body(request));
        Box::pin(self.exchange.run(request, reading, on_delta))
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    system: &'a str,
    messages: Vec<WireMessage<'a, Part<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<[WireTool<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<ToolChoice<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Image { source: Source<'a> },
    Text { text: &'a str },
}

#[derive(Serialize)]
struct Source<'a> {
    r#type: &'static str,
    media_type: &'a str,
    data: String,
}

#[derive(Serialize)]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
    eager_input_streaming: bool,
}

#[derive(Serialize)]
struct ToolChoice<'a> {
    r#type: &'static str,
    name: &'a str,
    disable_parallel_tool_use: bool,
}

fn part(image: &PromptImage) -> Part<'_> {
    let (media_type, data) = (&image.media_type, base64(image));
    Part::Image { source: Source { r#type: "base64", media_type, data } }
}

fn body(request: &CallRequest) -> Vec<u8> {
    let tool = request.tool.as_deref();
    to_bytes(&Body {
        model: &request.upstream,
        max_tokens: request.max_tokens,
        system: &request.system,
        messages: messages(request, part, |text| Part::Text { text }).collect(),
        temperature: request
            .temperature
            .filter(|_| !request.left_out.contains(Parameter::Temperature)),
        stream: true,
        tools: tool.map(|Tool { name, description, schema }| {
            [WireTool { name, description, input_schema: schema, eager_input_streaming: true }]
        }),
        tool_choice: tool.map(|tool| ToolChoice {
            r#type: "tool",
            name: &tool.name,
            disable_parallel_tool_use: true,
        }),
    })
}

#[derive(Default)]
struct MessageReading {
    /// Whether the answer is a tool's input.
    tool: bool,
    /// What the input of the block that is being told was at its start, as long as no piece of it came.
    untold: Option<String>,
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

impl MessageReading {
    fn say(&self, text: &str, answer: &mut AnswerText<'_>) -> Result<(), Cause> {
        if self.tool { answer.push_beside(text) } else { answer.push(text) }
    }

    fn begin_block(&mut self, block: &Value, answer: &mut AnswerText<'_>) -> Result<(), Cause> {
        self.end_block(answer)?;
        if self.tool && block["type"] == "tool_use" {
            self.untold = Some(input_text(&block["input"]));
        }
        self.say(block["text"].as_str().unwrap_or_default(), answer)
    }

    fn grow_block(
        &mut self,
        delta: &Value,
        answer: &mut AnswerText<'_>,
    ) -> Result<Progress, Cause> {
        let piece = |name: &str| delta[name].as_str().unwrap_or_default();
        let piece = match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => {
                self.say(piece("text"), answer)?;
                piece("text")
            }
            "input_json_delta" if self.tool => {
                let piece = piece("partial_json");
                answer.push(piece)?;
                self.untold.take_if(|_| !piece.is_empty());
                piece
            }
            // Thinking, and the input of tools that were not asked for: no text of the answer, but the
            // model is at work.
            _ => return Ok(Progress::Content),
        };
        // An empty piece is some gateway's keep-alive.
        Ok(if piece.is_empty() { Progress::Nothing } else { Progress::Content })
    }

    /// A block whose input came in no pieces had it all at its start: the vendor's own form of an input
    /// without members, and what some gateways do.
    fn end_block(&mut self, answer: &mut AnswerText<'_>) -> Result<(), Cause> {
        match self.untold.take() {
            Some(input) => answer.push(&input),
            None => Ok(()),
        }
    }
}

/// A tool's input that was told as a value, and no text: written anew, with its members in another order.
fn input_text(input: &Value) -> String {
    match input {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        input => input.to_string(),
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
                self.begin_block(&event["content_block"], answer)?;
                Progress::Content
            }
            "content_block_delta" => self.grow_block(&event["delta"], answer)?,
            "content_block_stop" => {
                self.end_block(answer)?;
                Progress::Content
            }
            "message_delta" => {
                self.tell_usage(&event["usage"]);
                self.tell_stop(&event["delta"]["stop_reason"]);
                Progress::Content
            }
            "message_stop" => {
                self.end_block(answer)?;
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
        for block in blocks {
            match block["type"].as_str().unwrap_or_default() {
                "text" => self.say(block["text"].as_str().unwrap_or_default(), answer)?,
                "tool_use" if self.tool => answer.push(&input_text(&block["input"]))?,
                _ => {}
            }
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
#[path = "anthropic_tests.rs"]
mod tests;
