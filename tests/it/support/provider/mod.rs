//! A model provider on loopback that does what a test tells it.
//!
//! It speaks Anthropic's form (`/v1/messages`) and OpenAI's (`/v1/chat/completions`). Each request
//! takes the next [`Reply`] that was queued; with none queued it gets a normal answer, whose text
//! and tokens follow from the prompt (see [`default_answer`], [`default_tokens`]). Every request
//! is kept, and so is a ledger of the tokens that were answered in full.
//!
//! Nothing here sleeps. A test awaits that requests arrive or end, and holds an answer at a moment
//! of its choosing with a [`Gate`].

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod calls;
mod reply;
mod server;
mod wire;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use reply::{Action, Chunking, Reply, fixture};
pub use wire::{Tokens, Wire, default_answer, default_tokens};

/// How long a wait for something that must happen may take before the test fails. No test passes
/// because of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The provider; dropped, it is gone with all its connections.
pub struct ScriptedProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Shared {
    script: Mutex<Script>,
    requests: watch::Sender<Vec<Request>>,
    connections: AtomicUsize,
    /// What `@HTTPDATE` in a reply counts from.
    now: Box<dyn Fn() -> DateTime<Utc> + Send + Sync>,
}

#[derive(Default)]
struct Script {
    replies: std::collections::VecDeque<Reply>,
    /// Asked where no reply is queued.
    decide: Option<Box<Decide>>,
    ledger: Vec<Charge>,
}

type Decide = dyn FnMut(&Request) -> Reply + Send;

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// From 1, in the order of arrival.
    pub number: usize,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub end: End,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is still being answered.
    Open,
    /// The script came to its end.
    Answered,
    /// The client went away before.
    ClientGone,
}

/// Tokens of one answer that was sent to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// [`Request::number`].
    pub number: usize,
    pub model: String,
    pub tokens: Tokens,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The prompt's messages as (role, content), the system prompt left out.
    pub fn messages(&self) -> Vec<(String, String)> {
        wire::messages(&self.body)
    }
}

impl ScriptedProvider {
    /// Listens on a free port.
    pub async fn start() -> ScriptedProvider {
        ScriptedProvider::start_at(Utc::now).await
    }

    /// The same, with a clock of the test's own for the dates in its replies.
    pub async fn start_at(
        now: impl Fn() -> DateTime<Utc> + Send + Sync + 'static,
    ) -> ScriptedProvider {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, _) = watch::channel(Vec::new());
        let shared = Arc::new(Shared {
            script: Mutex::default(),
            requests,
            connections: AtomicUsize::new(0),
            now: Box::new(now),
        });
        let server = tokio::spawn(server::serve(listener, Arc::clone(&shared)));
        ScriptedProvider { address, shared, server }
    }

    /// The base URL, as the vendor's own SDK takes it.
    pub fn base_url(&self, wire: Wire) -> String {
        match wire {
            Wire::Anthropic => format!("http://{}", self.address),
            Wire::OpenAi => format!("http://{}/v1", self.address),
        }
    }

    /// Queues a reply for the next request that has none.
    pub fn reply(&self, reply: Reply) {
        self.script().replies.push_back(reply);
    }

    /// Queues one reply `times` times.
    pub fn reply_times(&self, times: usize, reply: &Reply) {
        (0..times).for_each(|_| self.reply(reply.clone()));
    }

    /// From now on a request for which no reply is queued gets what this says.
    pub fn reply_by(&self, decide: impl FnMut(&Request) -> Reply + Send + 'static) {
        self.script().decide = Some(Box::new(decide));
    }

    /// Replies that were queued and not asked for.
    pub fn unused(&self) -> usize {
        self.script().replies.len()
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.borrow().clone()
    }

    /// How many requests came so far.
    pub fn count(&self) -> usize {
        self.shared.requests.borrow().len()
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Tokens of all answers that were sent to their end.
    pub fn ledger(&self) -> Vec<Charge> {
        self.script().ledger.clone()
    }

    /// Waits until so many requests have come, all in all, and gives the last of them.
    pub async fn until_requests(&self, count: usize) -> Request {
        let what = format!("{count} requests");
        let seen = self.until(&what, |requests| requests.len() >= count).await;
        seen[count - 1].clone()
    }

    /// Waits until the client of this request (from 1) has gone away.
    pub async fn until_client_gone(&self, number: usize) {
        let what = format!("the client of request {number} to go");
        let gone = |request: &Request| request.end == End::ClientGone;
        self.until(&what, |requests| requests.get(number - 1).is_some_and(gone)).await;
    }

    /// Waits until no request is being answered.
    pub async fn until_idle(&self) {
        let open = |request: &Request| request.end == End::Open;
        self.until("no open request", |requests| !requests.iter().any(open)).await;
    }

    async fn until(&self, what: &str, seen: impl Fn(&[Request]) -> bool) -> Vec<Request> {
        let mut requests = self.shared.requests.subscribe();
        let seen = patiently(what, requests.wait_for(|requests| seen(requests))).await;
        seen.map(|requests| requests.clone()).unwrap()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.script.lock().unwrap()
    }
}

impl Drop for ScriptedProvider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A place in an answer where it waits until the test lets it go on. Once open it stays open.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<GateState>>);

#[derive(Debug, Clone, Copy, Default)]
struct GateState {
    reached: usize,
    open: bool,
}

impl Gate {
    pub fn closed() -> Gate {
        Gate(Arc::new(watch::Sender::new(GateState::default())))
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.0.send_modify(|state| state.open = true);
    }

    /// Waits until so many answers, all in all, have come to this gate.
    pub async fn until_reached(&self, count: usize) {
        let mut state = self.0.subscribe();
        let reached = state.wait_for(|state| state.reached >= count);
        patiently("an answer to reach its gate", reached).await.unwrap();
    }

    /// Comes to the gate, and through it once it is open.
    pub async fn pass(&self) {
        self.0.send_modify(|state| state.reached += 1);
        let mut state = self.0.subscribe();
        state.wait_for(|state| state.open).await.unwrap();
    }
}

/// Fails the test, with the reason, where a future that must end does not.
pub async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited in vain for {what}"),
    }
}
