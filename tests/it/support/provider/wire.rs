//! The two vendors' forms of an answer.

use serde_json::{Value, json};

use super::reply::Stop;

/// A vendor's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Anthropic,
    OpenAi,
}

/// Tokens of an answer, cached ones apart from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    pub input: i64,
    pub cache_read: i64,
    /// Not told in OpenAI's form.
    pub cache_write: i64,
    pub output: i64,
}

impl Wire {
    pub(super) fn of_path(path: &str) -> Option<Wire> {
        match path {
            "/v1/messages" => Some(Wire::Anthropic),
            "/v1/chat/completions" => Some(Wire::OpenAi),
            _ => None,
        }
    }
}

/// The text of an answer that no script says otherwise: it follows from the prompt alone.
pub fn default_answer(messages: usize, last: &str) -> String {
    format!("Answer to message {messages}: {last}")
}

/// The tokens of an answer that no script says otherwise: a word is a token.
pub fn default_tokens(prompt: &[(String, String)], answer: &str) -> Tokens {
    let words = |text: &str| text.split_whitespace().count() as i64;
    let input = prompt.iter().map(|(_, content)| words(content)).sum();
    Tokens { input, cache_read: 0, cache_write: 0, output: words(answer) }
}

/// The messages of a request's body as (role, content), without the system prompt.
pub(super) fn messages(body: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let messages =
        messages.iter().map(|message| (text(&message["role"]), text(&message["content"])));
    messages.filter(|(role, _)| role != "system").collect()
}

/// The events of an answer: those before the text, one a delta, those behind it.
pub(super) struct AnswerEvents {
    pub head: Vec<String>,
    pub deltas: Vec<String>,
    pub tail: Vec<String>,
}

/// The name of the tool that a request offers: its answer is that tool's input.
fn tool(body: &Value) -> Option<&str> {
    let tool = &body["tools"][0];
    tool["name"].as_str().or(tool["function"]["name"].as_str())
}

/// The answer to a request of this body; with a tool in it, the text is the tool's input.
pub(super) fn answer_events(
    wire: Wire,
    body: &Value,
    text: &str,
    tokens: Tokens,
    stop: Stop,
) -> AnswerEvents {
    let model = body["model"].as_str().unwrap_or_default();
    let pieces = text.split_inclusive(' ');
    if let Some(tool) = tool(body) {
        return tool_events(wire, model, tool, pieces, tokens, stop);
    }
    match wire {
        Wire::Anthropic => AnswerEvents {
            head: anthropic_head(model, tokens, &json!({"type": "text", "text": ""})),
            deltas: pieces
                .map(|piece| {
                    let delta = json!({"type": "text_delta", "text": piece});
                    named(json!({"type": "content_block_delta", "index": 0, "delta": delta}))
                })
                .collect(),
            tail: anthropic_tail(tokens, stop, "end_turn"),
        },
        Wire::OpenAi => AnswerEvents {
            head: vec![chunk(model, json!({"role": "assistant", "content": ""}), Value::Null)],
            deltas: pieces
                .map(|piece| chunk(model, json!({"content": piece}), Value::Null))
                .collect(),
            tail: openai_tail(model, tokens, stop),
        },
    }
}

fn tool_events<'a>(
    wire: Wire,
    model: &str,
    tool: &str,
    pieces: impl Iterator<Item = &'a str>,
    tokens: Tokens,
    stop: Stop,
) -> AnswerEvents {
    match wire {
        Wire::Anthropic => {
            let block =
                json!({"type": "tool_use", "id": "toolu_scripted", "name": tool, "input": {}});
            AnswerEvents {
                head: anthropic_head(model, tokens, &block),
                deltas: pieces
                    .map(|piece| {
                        let delta = json!({"type": "input_json_delta", "partial_json": piece});
                        named(json!({"type": "content_block_delta", "index": 0, "delta": delta}))
                    })
                    .collect(),
                tail: anthropic_tail(tokens, stop, "tool_use"),
            }
        }
        Wire::OpenAi => {
            let call = |call: Value| chunk(model, json!({"tool_calls": [call]}), Value::Null);
            let function = json!({"name": tool, "arguments": ""});
            let begun =
                json!({"index": 0, "id": "call_1", "type": "function", "function": function});
            AnswerEvents {
                head: vec![call(begun)],
                deltas: pieces
                    .map(|piece| call(json!({"index": 0, "function": {"arguments": piece}})))
                    .collect(),
                tail: openai_tail(model, tokens, stop),
            }
        }
    }
}

fn anthropic_head(model: &str, tokens: Tokens, block: &Value) -> Vec<String> {
    let message = json!({
        "id": "msg_scripted", "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "usage": anthropic_usage(Tokens { output: 1, ..tokens }),
    });
    vec![
        named(json!({"type": "message_start", "message": message})),
        named(json!({"type": "content_block_start", "index": 0, "content_block": block})),
    ]
}

fn anthropic_tail(tokens: Tokens, stop: Stop, end: &str) -> Vec<String> {
    let reason = match stop {
        Stop::End => end,
        Stop::MaxTokens => "max_tokens",
    };
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    vec![
        named(json!({"type": "content_block_stop", "index": 0})),
        named(json!({"type": "message_delta", "delta": delta, "usage": anthropic_usage(tokens)})),
        named(json!({"type": "message_stop"})),
    ]
}

fn anthropic_usage(tokens: Tokens) -> Value {
    json!({
        "input_tokens": tokens.input, "cache_read_input_tokens": tokens.cache_read,
        "cache_creation_input_tokens": tokens.cache_write, "output_tokens": tokens.output,
    })
}

fn openai_tail(model: &str, tokens: Tokens, stop: Stop) -> Vec<String> {
    let usage = json!({
        "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "model": model,
        "choices": [], "usage": openai_usage(tokens),
    });
    vec![
        chunk(model, json!({}), json!(openai_stop(stop))),
        format!("data: {usage}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ]
}

fn openai_usage(tokens: Tokens) -> Value {
    let prompt = tokens.input + tokens.cache_read;
    json!({
        "prompt_tokens": prompt, "completion_tokens": tokens.output,
        "total_tokens": prompt + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
    })
}

fn openai_stop(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "stop",
        Stop::MaxTokens => "length",
    }
}

/// A whole answer in one JSON body; with a tool in the request, the text is its input.
pub(super) fn whole(wire: Wire, body: &Value, text: &str, tokens: Tokens) -> Value {
    let model = &body["model"];
    let input = || serde_json::from_str::<Value>(text).unwrap();
    let block = match tool(body) {
        Some(name) => json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": input()}),
        None => json!({"type": "text", "text": text}),
    };
    let message = match tool(body) {
        Some(name) => json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": name, "arguments": text}},
        ]}),
        None => json!({"role": "assistant", "content": text}),
    };
    match wire {
        Wire::Anthropic => json!({
            "id": "msg_scripted", "type": "message", "role": "assistant", "model": model,
            "content": [block], "stop_reason": "end_turn", "usage": anthropic_usage(tokens),
        }),
        Wire::OpenAi => json!({
            "id": "chatcmpl-scripted", "object": "chat.completion", "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": openai_usage(tokens),
        }),
    }
}

fn named(event: Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

fn chunk(model: &str, delta: Value, finish_reason: Value) -> String {
    let chunk = json!({
        "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        "usage": null,
    });
    format!("data: {chunk}\n\n")
}

/// A stream's bytes cut behind each blank line, so that joined they are the same bytes.
pub(super) fn split_events(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = |mark: &[u8]| {
            rest.windows(mark.len()).position(|window| window == mark).map(|at| at + mark.len())
        };
        let ends = [end(b"\n\n"), end(b"\r\n\r\n")];
        let (event, behind) = rest.split_at(ends.into_iter().flatten().min().unwrap_or(rest.len()));
        events.push(event.to_vec());
        rest = behind;
    }
    events
}
