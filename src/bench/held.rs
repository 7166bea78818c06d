//! A model provider that answers when it is let go: what a run waits for while others wait for it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::BenchError;

/// Calls that have come, and whether they are let go.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    come: usize,
    let_go: bool,
}

/// The provider; it ends when this is dropped.
pub struct Held {
    pub address: SocketAddr,
    calls: Arc<watch::Sender<Calls>>,
    _serving: JoinSet<()>,
}

impl Held {
    pub async fn start() -> Result<Self, BenchError> {
        let calls = Arc::new(watch::Sender::new(Calls::default()));
        let router =
            Router::new().route("/v1/chat/completions", post(complete)).with_state(calls.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Ends with the set that it is in; whoever calls notices.
            drop(axum::serve(listener, router).await);
        });
        Ok(Self { address, calls, _serving: serving })
    }

    /// Ready once so many calls have come, all in all.
    pub async fn until_calls(&self, count: usize) {
        // The sender lives in this value.
        drop(self.calls.subscribe().wait_for(|calls| calls.come >= count).await);
    }

    /// Answers whoever waits, and from now on at once.
    pub fn let_go(&self) {
        self.calls.send_modify(|calls| calls.let_go = true);
    }
}

async fn complete(State(calls): State<Arc<watch::Sender<Calls>>>) -> Json<Value> {
    calls.send_modify(|calls| calls.come += 1);
    drop(calls.subscribe().wait_for(|calls| calls.let_go).await);
    Json(json!({
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "It names one operation; its client makes it up."},
            "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 16, "completion_tokens": 9},
    }))
}
