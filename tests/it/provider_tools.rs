//! A tool's input over real HTTP: what is pinned is the answer, exactly as the model wrote it.

use std::sync::Arc;

use oncekey::clock::Clock;
use oncekey::domain::failure::{Cause, FailureKind, classify};
use oncekey::domain::parse::{Profile, salvage};
use oncekey::domain::prompt::{Answer, CallRequest, PromptImage, StopReason};
use oncekey::provider::{self, Provider};
use serde_json::{Value, json};

use crate::support::provider::calls::{call_with, connect, request, settings, tool_request};
use crate::support::provider::{Chunking, Reply, ScriptedProvider, Tokens, Wire, fixture};

const WIRES: [Wire; 2] = [Wire::Anthropic, Wire::OpenAi];
const OK: &str = r#"{"title":"Two Kettles","characters":["MARA","OTTO"],"dialogue":[{"character":"MARA","line":"Is it boiling?"}]}"#;

async fn answer(provider: &dyn Provider, server: &ScriptedProvider, reply: Reply) -> Answer {
    server.reply(reply);
    call_with(provider, &tool_request()).await.0.unwrap()
}

/// Events as the vendors send them, in either form.
fn events(data: &[Value]) -> Reply {
    let events = data.iter().map(|data| format!("data: {data}\n\n"));
    Reply::events(events.collect::<String>())
}

fn block(block: Value) -> Value {
    json!({"type": "content_block_start", "index": 0, "content_block": block})
}

fn tool_use(input: Value) -> Value {
    block(json!({"type": "tool_use", "id": "t", "name": "save_script", "input": input}))
}

fn delta(delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": 0, "delta": delta})
}

fn piece(text: &str) -> Value {
    delta(json!({"type": "input_json_delta", "partial_json": text}))
}

fn end() -> [Value; 3] {
    let stop = json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}});
    [json!({"type": "content_block_stop", "index": 0}), stop, json!({"type": "message_stop"})]
}

fn openai(delta: Value, reason: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
}

fn arguments(index: u32, text: &str) -> Value {
    let call = json!({"index": index, "function": {"name": "save_script", "arguments": text}});
    openai(json!({"tool_calls": [call]}), Value::Null)
}

#[tokio::test]
async fn recorded_streams_are_read_exactly_wherever_they_are_cut() {
    let server = ScriptedProvider::start().await;
    let provider = connect(&server, Wire::Anthropic);
    let cut = r#"{"title":"Two Kettles","characters":["MARA","OTTO"],"dialogue":[{"character":"MARA","line":"Is it boil"#;
    for (file, text, stop) in [
        ("anthropic_tool_ok.sse", OK, StopReason::End),
        ("tool_truncated_max_tokens.sse", cut, StopReason::MaxTokens),
        ("tool_truncated_valid_json.sse", r#"{"title":"Two Kettles"}"#, StopReason::MaxTokens),
    ] {
        let length = fixture(&format!("sse/{file}")).len();
        let one_cut = (1..length).step_by(13).map(|at| Chunking::Sizes(vec![at]));
        for chunking in [Chunking::Events, Chunking::OneByte].into_iter().chain(one_cut) {
            let reply = Reply::events_file(file).chunking(chunking);
            let answer = answer(&*provider, &server, reply).await;
            assert_eq!((answer.text.as_str(), answer.stop), (text, stop), "{file}");
        }
    }
}

#[tokio::test]
async fn inputs_come_through_as_the_model_wrote_them_and_are_salvaged() {
    let server = ScriptedProvider::start().await;
    let script = Profile::script();
    let mut readable = 0;
    for file in
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tool")).unwrap()
    {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let third = text.floor_char_boundary(text.len() / 3);
        let (a, rest) = text.split_at(third);
        let (b, c) = rest.split_at(third);
        for wire in WIRES {
            let reply = match wire {
                Wire::Anthropic => {
                    let told = [tool_use(json!({})), piece(""), piece(a), piece(b), piece(c)];
                    events(&[&told[..], &end()].concat())
                }
                Wire::OpenAi => {
                    let told = [a, b, c].map(|piece| arguments(0, piece));
                    events(&[&told[..], &[openai(json!({}), json!("stop"))]].concat())
                }
            };
            let answer = answer(&*connect(&server, wire), &server, reply).await;
            assert_eq!(answer.text, text, "{wire:?}");
            readable += usize::from(salvage(&script, &answer.text).is_ok());
        }
    }
    assert_eq!(readable, 2 * 8, "all but the corrupt one");
}

#[tokio::test]
async fn what_is_said_beside_the_tool_is_no_answer_but_where_there_is_no_other() {
    let server = ScriptedProvider::start().await;
    let anthropic = connect(&server, Wire::Anthropic);
    let text = |text: &str| {
        [
            block(json!({"type": "text", "text": ""})),
            delta(json!({"type": "text_delta", "text": text})),
        ]
    };
    let tool = [tool_use(json!({})), piece(OK)];
    let both = [&text("Here it is: ")[..], &tool, &text("Done.")[..], &end()].concat();
    assert_eq!(answer(&*anthropic, &server, events(&both)).await.text, OK);
    let alone = [&text("There is ")[..], &text("no script.")[..], &end()].concat();
    assert_eq!(answer(&*anthropic, &server, events(&alone)).await.text, "There is no script.");

    let openai_provider = connect(&server, Wire::OpenAi);
    let said = openai(json!({"content": "Here it is: "}), Value::Null);
    let stop = openai(json!({}), json!("tool_calls"));
    let both = [said.clone(), arguments(0, OK), said.clone(), stop.clone()];
    assert_eq!(answer(&*openai_provider, &server, events(&both)).await.text, OK);
    assert_eq!(
        answer(&*openai_provider, &server, events(&[said, stop])).await.text,
        "Here it is: "
    );
}

#[tokio::test]
async fn whole_answers_from_servers_that_do_not_stream_are_taken() {
    let server = ScriptedProvider::start().await;
    let tokens = Tokens { input: 5, cache_read: 0, cache_write: 0, output: 3 };
    for wire in WIRES {
        let answer = answer(&*connect(&server, wire), &server, Reply::whole(OK, tokens)).await;
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(&answer.text), read(OK));
        assert_eq!((answer.stop, answer.usage.output_tokens), (StopReason::End, Some(3)));
    }
    let message =
        json!({"tool_calls": [{"function": {"name": "save_script", "arguments": {"a": 1}}}]});
    let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string();
    let object = Reply::status(200, &[("content-type", "application/json")], body);
    let told = answer(&*connect(&server, Wire::OpenAi), &server, object).await;
    assert_eq!(told.text, r#"{"a":1}"#, "an object where text belongs");
}

#[tokio::test]
async fn an_input_that_came_in_no_pieces_is_the_one_at_its_start() {
    let server = ScriptedProvider::start().await;
    let provider = connect(&server, Wire::Anthropic);
    for (input, text) in [(json!({}), "{}"), (json!({"title": "x"}), r#"{"title":"x"}"#)] {
        let told = [&[tool_use(input), piece("")][..], &end()].concat();
        assert_eq!(answer(&*provider, &server, events(&told)).await.text, text);
    }
}

/// The first alone would be a script with its second half missing, and nobody would know.
#[tokio::test]
async fn two_calls_of_the_tool_are_not_taken_for_one() {
    let server = ScriptedProvider::start().await;
    let other = r#"{"characters":["OTTO"],"dialogue":[{"character":"OTTO","line":"Not yet."}]}"#;
    for (second, readable) in [(other, false), (OK, true)] {
        let told = [tool_use(json!({})), piece(OK), tool_use(json!({})), piece(second)];
        let anthropic = events(&[&told[..], &end()].concat());
        let stop = openai(json!({}), json!("stop"));
        let openai = events(&[arguments(0, OK), arguments(1, second), stop]);
        for (wire, reply) in [(Wire::Anthropic, anthropic), (Wire::OpenAi, openai)] {
            let answer = answer(&*connect(&server, wire), &server, reply).await;
            assert_eq!(salvage(&Profile::script(), &answer.text).is_ok(), readable, "{wire:?}");
        }
    }
}

/// In words, and in pieces of kilobytes.
#[tokio::test]
async fn an_input_of_megabytes_is_put_together_within_its_limit() {
    let server = ScriptedProvider::start().await;
    for (said, lines) in [("yet? ".repeat(10), 6_000), ("x".repeat(5_000) + " ", 1_000)] {
        let line = json!({"character": "MARA", "line": said});
        let dialogue = vec![line.to_string(); lines].join(",");
        let text = format!(r#"{{"characters":["MARA"],"dialogue":[{dialogue}]}}"#);
        let whole = text.len();
        for (wire, limit) in
            [(Wire::Anthropic, whole), (Wire::OpenAi, whole), (Wire::OpenAi, whole - 1)]
        {
            let mut settings = settings(&server, wire);
            settings.max_answer_bytes = limit;
            let provider = provider::build(settings, Clock::system()).unwrap();
            server.reply(Reply::text(&text));
            let (told, pieces) = call_with(&*provider, &tool_request()).await;
            if limit == whole {
                assert!(told.unwrap().text == text && pieces == text, "{wire:?}");
            } else {
                let facts = told.unwrap_err().facts;
                assert_eq!(facts.cause, Cause::AnswerTooLong { limit_bytes: limit });
                assert_eq!(classify(&facts), FailureKind::Malformed);
                assert!(pieces.len() <= limit);
            }
        }
    }
}

#[tokio::test]
async fn the_request_pins_the_tool_and_carries_the_pictures() {
    let server = ScriptedProvider::start().await;
    let image =
        PromptImage { media_type: "image/webp".to_owned(), bytes: b"webp".as_slice().into() };
    let with_image = CallRequest { images: Arc::new([image]), ..tool_request() };
    for wire in WIRES {
        server.reply(Reply::text(OK));
        let (answer, _) = call_with(&*connect(&server, wire), &with_image).await;
        assert_eq!(answer.unwrap().text, OK);
        let sent = server.requests().pop().unwrap();
        let parts = sent.body["messages"].as_array().unwrap().last().unwrap()["content"].clone();
        assert_eq!(parts[1]["text"], "How are you?", "{wire:?}");
        match wire {
            Wire::Anthropic => {
                assert_eq!(sent.body["tool_choice"]["name"], "save_script");
                assert_eq!(parts[0]["source"]["data"], "d2VicA==");
            }
            Wire::OpenAi => {
                assert_eq!(sent.body["tool_choice"]["function"]["name"], "save_script");
                assert_eq!(parts[0]["image_url"]["url"], "data:image/webp;base64,d2VicA==");
            }
        }
    }
    server.reply(Reply::text("Fine."));
    let (answer, _) = call_with(&*connect(&server, Wire::Anthropic), &request()).await;
    assert_eq!(answer.unwrap().text, "Fine.");
    let sent = server.requests().pop().unwrap().body;
    assert!(sent.get("tools").is_none() && sent.get("tool_choice").is_none(), "{sent}");
}
