//! OpenAI's Chat Completions, and the gateways and servers that speak it.
//!
//! The end mark is a `finish_reason`; `[DONE]` and the usage come behind it, and several servers
//! leave one or both out. So an answer with its reason is whole, however the stream ends then.

use reqwest::header::AUTHORIZATION;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::exchange::Exchange;
use super::http::{Endpoints, credential};
use super::reading::{AnswerText, Progress, Reading, Stop, last_told};
use super::text::to_bytes;
use super::wire::{Content, WireMessage, base64, messages};
use super::{Provider, ProviderSettings, Route, SettingsError, errors};
use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::{CallFailure, Cause};
use crate::domain::prompt::{Answer, CallRequest, Parameter, PromptImage, Tool};
use crate::domain::usage::Usage;

pub(super) struct OpenAi {
    name: String,
    routes: Vec<Route>,
    endpoints: Endpoints,
    exchange: Exchange,
    limit_name: LimitName,
}

/// How the limit on the output is called. OpenAI itself has renamed it, and its newer models
/// refuse the old name; many of those who speak its form know the old name alone, and some pass
/// over an unknown one in silence, which would lift the limit. So the vendor's own hosts get the
/// new name and everybody else the old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitName {
    MaxCompletionTokens,
    MaxTokens,
}

impl LimitName {
    fn of_host(host: &str) -> LimitName {
        let is_in = |domain: &str| {
            host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if is_in("openai.com") || is_in("openai.azure.com") {
            LimitName::MaxCompletionTokens
        } else {
            LimitName::MaxTokens
        }
    }
}

impl LimitName {
    /// The other name where the model at the other end refused this one.
    fn unless_refused(self, request: &CallRequest) -> LimitName {
        match self {
            LimitName::MaxTokens if request.left_out.contains(Parameter::MaxTokens) => {
                LimitName::MaxCompletionTokens
            }
            LimitName::MaxCompletionTokens
                if request.left_out.contains(Parameter::MaxCompletionTokens) =>
            {
                LimitName::MaxTokens
            }
            kept => kept,
        }
    }
}

impl OpenAi {
    pub(super) fn new(settings: ProviderSettings, clock: Clock) -> Result<Self, SettingsError> {
        let key = credential(&settings, "Bearer ")?.map(|key| (AUTHORIZATION, key));
        let endpoints = Endpoints::new(&settings, "/chat/completions", key)?;
        let limit_name = LimitName::of_host(endpoints.first_host().unwrap_or_default());
        let exchange = Exchange::new(&settings, clock)?;
        Ok(OpenAi { name: settings.name, routes: settings.routes, endpoints, exchange, limit_name })
    }
}

impl Provider for OpenAi {
    fn name(&self) -> &str {
        &self.name
    }

    fn routes(&self) -> &[Route] {
        &self.routes
    }

    fn can_leave_out(&self, parameter: Parameter) -> bool {
        match parameter {
            Parameter::Temperature | Parameter::StreamOptions => true,
            // Its other name is taken then.
            Parameter::MaxCompletionTokens => self.limit_name == LimitName::MaxCompletionTokens,
            Parameter::MaxTokens => self.limit_name == LimitName::MaxTokens,
        }
    }

    fn call<'a>(
        &'a self,
        request: &'a CallRequest,
        route: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<Answer, CallFailure>> {
        let reading = ChunkReading { tool: request.tool.is_some(), ..ChunkReading::default() };
        let request = self.endpoints.request(route, body(request, self.limit_name));
        Box::pin(self.exchange.run(request, reading, on_delta))
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a, Part<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<[WireTool<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<ToolChoice<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    ImageUrl { image_url: ImageUrl },
    Text { text: &'a str },
}

#[derive(Serialize)]
struct ImageUrl {
    url: String,
}

/// Without `parallel_tool_calls`, which several models and servers refuse.
#[derive(Serialize)]
struct WireTool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

#[derive(Serialize)]
struct ToolChoice<'a> {
    r#type: &'static str,
    function: Name<'a>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

fn part(image: &PromptImage) -> Part<'_> {
    let url = format!("data:{};base64,{}", image.media_type, base64(image));
    Part::ImageUrl { image_url: ImageUrl { url } }
}

fn body(request: &CallRequest, limit_name: LimitName) -> Vec<u8> {
    let system = (!request.system.is_empty())
        .then_some(WireMessage { role: "system", content: Content::Text(&request.system) });
    let messages = messages(request, part, |text| Part::Text { text });
    let tool = request.tool.as_deref();
    let sent = |parameter| !request.left_out.contains(parameter);
    let limit_name = limit_name.unless_refused(request);
    let limit = |name| (name == limit_name).then_some(request.max_tokens);
    to_bytes(&Body {
        model: &request.upstream,
        messages: system.into_iter().chain(messages).collect(),
        max_completion_tokens: limit(LimitName::MaxCompletionTokens),
        max_tokens: limit(LimitName::MaxTokens),
        temperature: request.temperature.filter(|_| sent(Parameter::Temperature)),
        stream: true,
        stream_options: sent(Parameter::StreamOptions)
            .then_some(StreamOptions { include_usage: true }),
        tools: tool.map(|Tool { name, description, schema }| {
            let function = Function { name, description, parameters: schema };
            [WireTool { r#type: "function", function }]
        }),
        tool_choice: tool
            .map(|tool| ToolChoice { r#type: "function", function: Name { name: &tool.name } }),
    })
}

#[derive(Default)]
struct ChunkReading {
    /// Whether the answer is a tool's input.
    tool: bool,
    prompt_tokens: Option<i64>,
    cached_tokens: Option<i64>,
    completion_tokens: Option<i64>,
    reasoning_tokens: Option<i64>,
    stop: Option<Stop>,
    refused_in_words: bool,
}

impl ChunkReading {
    fn tell_usage(&mut self, usage: &Value) {
        last_told(&mut self.prompt_tokens, &usage["prompt_tokens"]);
        last_told(&mut self.cached_tokens, &usage["prompt_tokens_details"]["cached_tokens"]);
        last_told(&mut self.completion_tokens, &usage["completion_tokens"]);
        let details = &usage["completion_tokens_details"];
        last_told(&mut self.reasoning_tokens, &details["reasoning_tokens"]);
    }

    fn tell_stop(&mut self, reason: &Value) {
        // Some gateways say an empty reason with every chunk.
        let Some(reason) = reason.as_str().filter(|reason| !reason.is_empty()) else { return };
        self.stop = Some(match reason {
            "length" => Stop::MaxTokens,
            "content_filter" => Stop::Refused,
            "error" => Stop::Broken,
            // `stop`, `tool_calls`, and whatever is added: the reason says that it is whole.
            _ => Stop::End,
        });
    }

    fn say(&self, text: &str, answer: &mut AnswerText<'_>) -> Result<(), Cause> {
        if self.tool { answer.push_beside(text) } else { answer.push(text) }
    }

    /// The text of a message or a delta, and whether there was anything of the model in it.
    fn tell(&mut self, message: &Value, answer: &mut AnswerText<'_>) -> Result<bool, Cause> {
        let filled = |name: &str| match &message[name] {
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(_) => true,
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        };
        self.refused_in_words |= filled("refusal");
        match &message["content"] {
            Value::String(text) => self.say(text, answer)?,
            // In parts, from models that think in the same field.
            Value::Array(parts) => {
                for part in parts.iter().filter(|part| part["type"] == "text") {
                    self.say(part["text"].as_str().unwrap_or_default(), answer)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
        }
        if self.tool {
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                match &call["function"]["arguments"] {
                    Value::String(piece) => answer.push(piece)?,
                    // From servers that forget to write it as text.
                    input @ Value::Object(_) => answer.push(&input.to_string())?,
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
                }
            }
        }
        // Reasoning under the names that gateways give it, and tool input that was not asked for, are
        // no text of the answer, but the model is at work.
        let names = ["content", "refusal", "reasoning", "reasoning_content", "tool_calls"];
        Ok(names.into_iter().any(filled))
    }
}

impl Reading for ChunkReading {
    fn event(&mut self, event: &Value, answer: &mut AnswerText<'_>) -> Result<Progress, Cause> {
        if let Some(error) = errors::from_json(event) {
            return Err(Cause::InBand { error });
        }
        self.tell_usage(&event["usage"]);
        let choice = &event["choices"][0];
        let worked = self.tell(&choice["delta"], answer)?;
        self.tell_stop(&choice["finish_reason"]);
        let told = worked || self.stop.is_some() || event["usage"].is_object();
        Ok(match (told, event["choices"].is_array()) {
            (true, _) => Progress::Content,
            (false, true) => Progress::Began,
            (false, false) => Progress::Nothing,
        })
    }

    fn done_word(&self) -> Option<&'static str> {
        Some("[DONE]")
    }

    fn whole(&mut self, body: &Value, answer: &mut AnswerText<'_>) -> Result<(), Cause> {
        self.tell_usage(&body["usage"]);
        let choice = &body["choices"][0];
        if choice.is_null() {
            return Err(Cause::NothingUsable);
        }
        self.tell(&choice["message"], answer)?;
        self.tell_stop(&choice["finish_reason"]);
        Ok(())
    }

    /// The vendor counts cached tokens among those of the prompt; here they stand apart.
    fn usage(&self) -> Usage {
        let cached = self.cached_tokens.unwrap_or(0);
        Usage {
            input_tokens: self.prompt_tokens.map(|prompt| prompt.saturating_sub(cached).max(0)),
            output_tokens: self.completion_tokens,
            cache_read_tokens: self.cached_tokens,
            cache_write_tokens: None,
            reasoning_tokens: self.reasoning_tokens,
        }
    }

    fn stop(&self) -> Option<Stop> {
        let stop = self.stop.clone()?;
        Some(if self.refused_in_words && stop == Stop::End { Stop::Refused } else { stop })
    }
}

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
