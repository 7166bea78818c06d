//! A receiver of webhooks on loopback that answers as a test decides, and keeps all that it got.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::provider::{Gate, patiently};

/// One delivery as it came.
#[derive(Debug, Clone)]
pub struct Delivered {
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body as JSON.
    pub event: Value,
    /// What it was answered with; 0 while it is not.
    pub status: u16,
}

impl Delivered {
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    pub fn id(&self) -> &str {
        self.event["id"].as_str().unwrap()
    }

    pub fn subject(&self) -> &str {
        self.event["subject"].as_str().unwrap()
    }

    /// The number that [`super::outbox::put`] gave it.
    pub fn number(&self) -> i64 {
        self.event["data"]["number"].as_i64().unwrap()
    }
}

/// What becomes of a delivery.
#[derive(Debug, Clone)]
pub enum Take {
    Status(u16),
    With(u16, Vec<(&'static str, String)>, String),
    /// Taken once the gate opens.
    Held(Gate),
    /// Answered with this status and a body that begins and never ends.
    Endless(u16),
    /// Read, and never answered.
    Hang,
}

type Decide = dyn FnMut(&Delivered) -> Take + Send;

struct Shared {
    deliveries: watch::Sender<Vec<Delivered>>,
    decide: Mutex<Box<Decide>>,
}

/// A receiver; it stops when dropped.
pub struct Hook {
    port: u16,
    shared: Arc<Shared>,
    serving: Option<(JoinHandle<()>, CancellationToken)>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some((serving, _)) = &self.serving {
            serving.abort();
        }
    }
}

impl Hook {
    /// One that takes everything.
    pub async fn start() -> Hook {
        Self::deciding(|_| Take::Status(204)).await
    }

    pub async fn deciding(decide: impl FnMut(&Delivered) -> Take + Send + 'static) -> Hook {
        let shared = Arc::new(Shared {
            deliveries: watch::Sender::new(Vec::new()),
            decide: Mutex::new(Box::new(decide)),
        });
        let mut hook = Hook { port: 0, shared, serving: None };
        hook.listen().await;
        hook
    }

    /// Listens again, on the same port, after [`Hook::close`].
    pub async fn listen(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(take).with_state(self.shared.clone());
        let over = CancellationToken::new();
        let ended = over.clone().cancelled_owned();
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).with_graceful_shutdown(ended).await.unwrap();
        });
        self.serving = Some((serving, over));
    }

    /// Takes no connection any more, and closes those it has once they are answered.
    pub async fn close(&mut self) {
        if let Some((serving, over)) = self.serving.take() {
            over.cancel();
            patiently("the hook to close", serving).await.unwrap();
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    /// From now on decides so.
    pub fn decide(&self, decide: impl FnMut(&Delivered) -> Take + Send + 'static) {
        *self.shared.decide.lock().unwrap() = Box::new(decide);
    }

    pub fn deliveries(&self) -> Vec<Delivered> {
        self.shared.deliveries.borrow().clone()
    }

    /// What it has taken, in its order.
    pub fn taken(&self) -> Vec<Delivered> {
        let mut all = self.deliveries();
        all.retain(|one| (200..300).contains(&one.status));
        all
    }

    /// Waits until the deliveries are as asked.
    pub async fn until(&self, what: &str, asked: impl Fn(&[Delivered]) -> bool) -> Vec<Delivered> {
        let mut deliveries = self.shared.deliveries.subscribe();
        let seen = deliveries.wait_for(|all| asked(all));
        patiently(what, seen).await.unwrap().clone()
    }

    /// Waits until it has taken so many different events.
    pub async fn until_taken(&self, count: usize) -> Vec<Delivered> {
        self.until(&format!("{count} events to be taken"), |all| {
            let taken = all.iter().filter(|one| (200..300).contains(&one.status));
            taken.map(Delivered::id).collect::<std::collections::BTreeSet<_>>().len() >= count
        })
        .await;
        self.taken()
    }
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    let event = serde_json::from_slice(&body).unwrap();
    let delivered = Delivered { headers, body: body.to_vec(), event, status: 0 };
    let take = (shared.decide.lock().unwrap())(&delivered);
    let mut place = 0;
    shared.deliveries.send_modify(|all| {
        place = all.len();
        all.push(delivered);
    });
    let (status, headers, body) = match take {
        Take::Status(status) => (status, Vec::new(), Body::empty()),
        Take::With(status, headers, text) => (status, headers, Body::from(text)),
        Take::Held(gate) => {
            gate.pass().await;
            (204, Vec::new(), Body::empty())
        }
        Take::Endless(status) => {
            let begun = stream::iter([Ok::<_, Infallible>("thanks")]);
            (status, Vec::new(), Body::from_stream(begun.chain(stream::pending())))
        }
        Take::Hang => std::future::pending().await,
    };
    shared.deliveries.send_modify(|all| all[place].status = status);
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}
