//! A model provider that reads scripts, in OpenAI's form: it takes a while over each piece, says what
//! stands in it, or as much as it is told to, and remembers how long its slowest answer took.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::BenchError;
use super::paced::prompt;
use crate::clock::Clock;
use crate::domain::parse::sent;

/// How long it takes over a piece, model by model.
const PLAY: Duration = Duration::from_millis(400);
/// Bytes of one event of a stream.
const EVENT_BYTES: usize = 1_000;

/// What models are called here: one that takes its time, and two that say a lot at once.
pub const SLOW: &str = "play";
pub const LONG: &str = "long";
pub const LONG_BYTES: usize = 500_000;
pub const LONGER: &str = "longer";
pub const LONGER_BYTES: usize = 5_000_000;

/// The provider; it ends when this is dropped.
pub struct Scribe {
    pub address: SocketAddr,
    told: Arc<Told>,
    _serving: JoinSet<()>,
}

/// What it did.
#[derive(Default)]
struct Told {
    calls: AtomicUsize,
    slowest_us: AtomicU64,
}

#[derive(Clone)]
struct Provider {
    clock: Clock,
    told: Arc<Told>,
}

#[derive(Serialize)]
struct Script<'a> {
    title: &'a str,
    characters: Vec<&'a str>,
    dialogue: Vec<Speech<'a>>,
}

#[derive(Serialize)]
struct Speech<'a> {
    character: &'a str,
    line: &'a str,
}

impl Scribe {
    pub async fn start(clock: &Clock) -> Result<Self, BenchError> {
        let told = Arc::new(Told::default());
        let provider = Provider { clock: clock.clone(), told: told.clone() };
        let router =
            Router::new().route("/v1/chat/completions", post(complete)).with_state(provider);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Ends with the set that it is in; whoever calls notices.
            drop(axum::serve(listener.tap_io(prompt), router).await);
        });
        Ok(Self { address, told, _serving: serving })
    }

    /// Calls since the last time that this was asked, and the slowest of them.
    pub fn take(&self) -> (usize, Duration) {
        let slowest = self.told.slowest_us.swap(0, Ordering::Relaxed);
        (self.told.calls.swap(0, Ordering::Relaxed), Duration::from_micros(slowest))
    }
}

async fn complete(State(provider): State<Provider>, Json(asked): Json<Value>) -> Response {
    let begun = provider.clock.now();
    let model = asked["model"].as_str().unwrap_or_default();
    let last = asked["messages"].as_array().and_then(|messages| messages.last());
    let message = last.map_or("", |message| message["content"].as_str().unwrap_or_default());
    let text = sent(message).map_or("", |sent| sent.text);
    let input = match model {
        LONG => as_long_as(LONG_BYTES),
        LONGER => as_long_as(LONGER_BYTES),
        _ => {
            provider.clock.sleep(PLAY).await;
            read(text)
        }
    };
    let body = events(model, &input);
    provider.told.calls.fetch_add(1, Ordering::Relaxed);
    let took = u64::try_from(provider.clock.now().since(begun).as_micros()).unwrap_or(u64::MAX);
    provider.told.slowest_us.fetch_max(took, Ordering::Relaxed);
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

fn read(text: &str) -> String {
    let dialogue: Vec<Speech<'_>> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(character, line)| Speech { character, line })
        .collect();
    written(&Script { title: "", characters: vec!["MARA", "OTTO"], dialogue })
}

fn as_long_as(bytes: usize) -> String {
    let line = "It goes on for a while, and then for a while more.";
    // What a speech takes beside its line.
    let each = line.len() + 32;
    let dialogue = (0..bytes / each).map(|_| Speech { character: "MARA", line }).collect();
    written(&Script { title: "", characters: vec!["MARA"], dialogue })
}

fn written(script: &Script<'_>) -> String {
    // Texts and lists of them are all JSON.
    serde_json::to_string(script).unwrap_or_default()
}

/// A call of the tool in pieces, as a stream.
fn events(model: &str, input: &str) -> String {
    let mut body = String::with_capacity(input.len() * 2);
    let mut say = |delta: Value, reason: Value| {
        let choice = json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
        let chunk = json!({"id": "c", "object": "chat.completion.chunk", "model": model, "choices": choice});
        body.push_str(&format!("data: {chunk}\n\n"));
    };
    let function = json!({"name": "save_script", "arguments": ""});
    let call = json!([{"index": 0, "id": "1", "type": "function", "function": function}]);
    say(json!({"role": "assistant", "tool_calls": call}), Value::Null);
    let mut rest = input;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.floor_char_boundary(EVENT_BYTES));
        let function = json!({"arguments": piece});
        say(json!({"tool_calls": [{"index": 0, "function": function}]}), Value::Null);
        rest = behind;
    }
    say(json!({}), json!("tool_calls"));
    body.push_str(
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n",
    );
    body.push_str("data: [DONE]\n\n");
    body
}
