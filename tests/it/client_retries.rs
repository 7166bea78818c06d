//! The client library against a node whose way to the client breaks, and against answers that no
//! repeat can help: one durable outcome each, and exactly as many requests as help.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use chrono::Utc;
use oncekey::client::{
    Chat, ChatRequest, Client, ClientError, Journal, JournalError, Operation, RetryPolicy, Why,
};
use oncekey::clock::ManualClock;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::TestDatabase;
use crate::support::library::{Kept, Repeats};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, Request, ScriptedProvider, Wire, patiently};
use crate::support::proxy::{Mode, Proxy, Target};

const ANSWER: &str = "Answer to message 1: hello";

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    proxy: Arc<Proxy>,
    api_key: String,
    repeats: Repeats,
    client: Client,
}

impl Scene {
    /// The client reaches the node through the proxy.
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
        let api_key = node.client("t1").await.key;
        let proxy = Arc::new(Proxy::start(Target::Tcp(node.address())).await);
        let repeats = Repeats::new();
        let client = repeats.client(proxy.address, &api_key);
        Self { database, provider, node, proxy, api_key, repeats, client }
    }

    fn hello(&self) -> Operation<Chat> {
        self.client.begin(ChatRequest::new("c1", "hello").metadata("screen", "kitchen"))
    }

    /// The metadata that stands with the user's turn.
    async fn metadata(&self) -> Value {
        let text = self.database.text("select metadata::text from turns where role = 'user'").await;
        serde_json::from_str(&text).unwrap()
    }

    async fn end_with_one_outcome(self) {
        assert_eq!(self.provider.count(), 1);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_did_not_arrive_is_sent_again_and_says_so() {
    let scene = Scene::start().await;
    scene.proxy.set(Mode::Refuse);
    let (client, operation) = (scene.client.clone(), scene.hello());
    let sent = operation.clone();
    let asked = tokio::spawn(async move { client.send(&sent).await });
    scene.proxy.until_refused(1).await;
    scene.proxy.set(Mode::Pass);
    let reply = asked.await.unwrap().unwrap();
    assert_eq!(reply.answer.message.content, ANSWER);
    assert!(!reply.replayed);
    assert_eq!(reply.key, operation.key());
    assert_eq!(reply.request_id.as_ref(), Some(&reply.answer.request_id));
    assert_eq!(scene.repeats.why(), [Why::Lost]);
    let metadata = scene.metadata().await;
    assert_eq!(metadata["attempt"], reply.attempts);
    assert_eq!(metadata["screen"], "kitchen");
    assert!(metadata["sent_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(metadata.get("resumed"), None);
    scene.end_with_one_outcome().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_on_the_way_is_replayed() {
    let scene = Scene::start().await;
    scene.proxy.set(Mode::SwallowReplies);
    let (client, operation) = (scene.client.clone(), scene.hello());
    let asked = tokio::spawn(async move { client.send(&operation).await });
    scene.proxy.until_swallowed(1).await;
    scene.proxy.heal();
    let reply = asked.await.unwrap().unwrap();
    assert_eq!(reply.answer.message.content, ANSWER);
    assert!(reply.replayed);
    assert_ne!(reply.request_id.as_ref(), Some(&reply.answer.request_id), "of an earlier run");
    assert_eq!(reply.attempts, 2);
    assert_eq!(scene.metadata().await["attempt"], 1, "the run is the first sending's");
    scene.end_with_one_outcome().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_connection_was_cut_is_waited_for() {
    let scene = Scene::start().await;
    let gate = Gate::closed();
    scene.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let (client, operation) = (scene.client.clone(), scene.hello());
    let asked = tokio::spawn(async move { client.send(&operation).await });
    gate.until_reached(1).await;
    scene.proxy.cut();
    scene.repeats.until(&Why::Status(409)).await;
    gate.open();
    let reply = asked.await.unwrap().unwrap();
    assert_eq!(reply.answer.message.content, ANSWER);
    assert!(reply.replayed);
    assert_eq!(scene.repeats.why(), [Why::Lost, Why::Status(409)]);
    scene.end_with_one_outcome().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_own_time_out_is_not_sent_again_and_the_operation_runs_on() {
    let scene = Scene::start().await;
    let gate = Gate::closed();
    scene.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let manual = ManualClock::new(Utc::now());
    let timeout = Duration::from_secs(1_600);
    let builder = scene.repeats.builder(scene.proxy.address, &scene.api_key);
    let client = builder.clock(manual.clock()).timeout(timeout).build().unwrap();
    let operation = scene.hello();
    let sent = operation.clone();
    let asked = tokio::spawn(async move { client.send(&sent).await });
    gate.until_reached(1).await;
    patiently("the time-out to run", manual.until_sleeping_for(timeout)).await;
    manual.advance(timeout);
    match asked.await.unwrap() {
        Err(ClientError::TimedOut(timed_out)) => {
            assert_eq!((timed_out.attempts, timed_out.after), (1, timeout));
            assert_eq!(timed_out.key, operation.key());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.repeats.count(), 0);
    gate.open();
    let reply = scene.client.send(&operation).await.unwrap();
    assert_eq!(reply.answer.message.content, ANSWER);
    scene.end_with_one_outcome().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_was_killed_goes_on_with_what_it_kept() {
    let scene = Scene::start().await;
    let gate = Gate::closed();
    scene.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let kept = Kept::default();
    let builder = || scene.repeats.builder(scene.proxy.address, &scene.api_key);
    let client = builder().journal(kept.clone()).build().unwrap();
    let operation = scene.hello();
    let killed = tokio::spawn(async move { client.send(&operation).await });
    gate.until_reached(1).await;
    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    gate.open();

    // The next process has the journal and nothing else.
    let left = kept.all();
    let [(key, bytes)] = left.as_slice() else { panic!("{} are left", left.len()) };
    let operation: Operation<Chat> = Operation::from_kept(bytes).unwrap();
    assert_eq!(operation.key(), key);
    let client = builder().journal(kept.clone()).build().unwrap();
    let reply = client.send(&operation).await.unwrap();
    assert_eq!(reply.answer.message.content, ANSWER);
    assert!(kept.all().is_empty(), "there is nothing more to be had");
    let again = client.send(&operation).await.unwrap();
    assert_eq!(again.body, reply.body);
    scene.end_with_one_outcome().await;
}

/// A server that gives one answer, whatever it is asked.
async fn refusing(status: u16, headers: &[(&str, &str)], body: &Value) -> ScriptedProvider {
    let server = ScriptedProvider::start().await;
    server.reply_times(5, &Reply::status(status, headers, body.to_string()));
    server
}

fn client_of(server: &ScriptedProvider) -> Client {
    let url = server.base_url(Wire::Anthropic);
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    Repeats::new().client(address, "ok_x")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_repeat_cannot_help_is_sent_once() {
    for (status, error, ours) in [
        (400, "invalid_request", false),
        (401, "unauthorized", false),
        (403, "forbidden", false),
        (404, "not_found", false),
        (409, "cancelled", false),
        (410, "erased", false),
        (413, "too_large", false),
        (415, "unsupported_media_type", false),
        (422, "content_filtered", false),
        (422, "idempotency_key_reuse", false),
        (429, "quota_exhausted", false),
        (500, "provider_auth", true),
        (501, "", true),
        (307, "", true),
        (204, "", true),
    ] {
        let body =
            json!({"status": status, "error": error, "detail": "So it is.", "request_id": "r"});
        let headers = [("retry-after", "1"), ("location", "/v1/chat")];
        let headers = if status == 429 || status == 307 { &headers[..] } else { &[] };
        let server = refusing(status, headers, &body).await;
        let kept = Kept::default();
        let url = server.base_url(Wire::Anthropic);
        let client = Client::builder(&url, "ok_x").journal(kept.clone()).build().unwrap();
        let operation = client.begin(ChatRequest::new("c1", "hello"));
        let failed = match client.send(&operation).await {
            Err(ClientError::OurSide(failed)) if ours => failed,
            Err(ClientError::YourInput(failed)) if !ours => failed,
            other => panic!("{status} {error}: {other:?}"),
        };
        assert_eq!(failed.attempts, 1, "{status} {error}");
        assert_eq!(server.count(), 1, "{status} {error}");
        assert_eq!(failed.problem.status, status);
        if status != 204 {
            assert_eq!(failed.problem.error, error);
            assert_eq!(failed.problem.detail, "So it is.");
        }
        let may_come = ours || status == 429;
        assert_eq!(
            kept.all().len(),
            usize::from(may_come),
            "{status} {error}: kept while it helps"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_repeat_may_help_is_sent_three_times_with_one_key_and_one_meaning() {
    for status in [502, 503, 504] {
        // As a gateway in front of the service answers.
        let server = ScriptedProvider::start().await;
        let html = [("content-type", "text/html")];
        server.reply_times(5, &Reply::status(status, &html, "<html>busy</html>"));
        let client = client_of(&server);
        let operation = client.begin(ChatRequest::new("c1", "hello").metadata("screen", "kitchen"));
        match client.send(&operation).await {
            Err(ClientError::OurSide(failed)) => {
                assert_eq!((failed.problem.status, failed.attempts), (status, 3));
            }
            other => panic!("{status}: {other:?}"),
        }
        let requests = server.requests();
        assert_eq!(requests.len(), 3, "{status}");
        for (request, attempt) in requests.iter().zip(1..) {
            assert_eq!(request.path, "/v1/chat");
            assert_eq!(request.header("idempotency-key"), Some(operation.key()));
            assert_eq!(request.body["metadata"]["attempt"], attempt);
            assert_eq!(request.body["metadata"]["screen"], "kitchen");
        }
        let meaning = |request: &Request| {
            let mut body = request.body.clone();
            body.as_object_mut().unwrap().remove("metadata");
            body
        };
        assert_eq!(meaning(&requests[0]), meaning(&requests[1]));
        assert_eq!(meaning(&requests[0]), meaning(&requests[2]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waits_are_one_second_and_three_unless_the_server_asks_for_more() {
    let server = ScriptedProvider::start().await;
    let json = [("content-type", "application/problem+json")];
    let body = json!({"status": 503, "error": "provider_busy", "retry_after_ms": 7_000});
    server.reply(Reply::status(502, &json, "{}").before_head(Action::Close));
    server.reply(Reply::status(502, &json, "{}"));
    server.reply(Reply::status(503, &json, body.to_string()));
    let url = server.base_url(Wire::Anthropic);
    let manual = ManualClock::new(Utc::now());
    let mut policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
    policy.waits.push(Duration::from_secs(5));
    let builder = Client::builder(&url, "ok_x").retry(policy).clock(manual.clock());
    let client = builder.build().unwrap();
    let operation = client.begin(ChatRequest::new("c1", "hello"));
    let asked = tokio::spawn(async move { client.send(&operation).await });
    // The connection closed; 502; 503 that asks for 7 s; the server knows no such path afterwards.
    for wait in [1, 3, 7] {
        let wait_began = manual.until_sleeping_for(Duration::from_secs(wait));
        patiently("a wait to begin", wait_began).await;
        manual.advance(Duration::from_secs(wait));
    }
    server.until_requests(4).await;
    match asked.await.unwrap() {
        Err(ClientError::YourInput(failed)) => assert_eq!(failed.problem.status, 404),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.count(), 4);
}

/// Has no room.
struct Full;

impl Journal for Full {
    fn begun(&self, _: &str, _: &[u8]) -> Result<(), JournalError> {
        Err("no room".into())
    }

    fn ended(&self, key: &str) {
        panic!("{key} did not begin");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_not_sent() {
    let server = ScriptedProvider::start().await;
    let url = server.base_url(Wire::Anthropic);
    let client = Client::builder(&url, "ok_x").journal(Full).build().unwrap();
    let operation = client.begin(ChatRequest::new("c1", "hello"));
    match client.send(&operation).await {
        Err(ClientError::NotSent(reason)) => assert!(reason.contains("no room"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let mut stream = client.stream(&operation);
    assert!(matches!(stream.next().await, Err(ClientError::NotSent(_))));
    assert!(stream.next().await.unwrap().is_none());
    assert_eq!(server.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_use_for_something_else_is_the_callers_matter() {
    let scene = Scene::start().await;
    let operation = scene.hello();
    scene.client.send(&operation).await.unwrap();
    let other = scene
        .client
        .begin_with_key(operation.key(), ChatRequest::new("c1", "something else"))
        .unwrap();
    match scene.client.send(&other).await {
        Err(ClientError::YourInput(failed)) => {
            assert_eq!(failed.problem.error, "idempotency_key_reuse");
            assert_eq!(failed.attempts, 1);
        }
        unexpected => panic!("{unexpected:?}"),
    }
    let record = scene.client.record(operation.key()).await.unwrap();
    assert_eq!((record.state.as_str(), record.attempts), ("committed", 1));
    assert!(matches!(scene.client.record("no-such").await, Err(ClientError::YourInput(_))));
    scene.end_with_one_outcome().await;
}

/// What stands between a failure and the end of its stream does not make it forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_stream_ends_with_the_failure_that_it_was_told() {
    let failed = json!({"status": 502, "error": "provider_failed", "retryable": true});
    let busy = json!({"status": 503, "error": "slot_timeout", "retryable": true});
    let answers = [
        (200, "text/event-stream", format!("id: 1-1\nevent: failed\ndata: {failed}\n\n")),
        (503, "application/problem+json", busy.to_string()),
        (204, "text/event-stream", String::new()),
    ];
    let left = Arc::new(Mutex::new(VecDeque::from(answers)));
    let asked = left.clone();
    let router = Router::new().fallback(move || async move {
        let (status, kind, body) = asked.lock().unwrap().pop_front().unwrap();
        (StatusCode::from_u16(status).unwrap(), [(CONTENT_TYPE, kind)], body)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Repeats::new().client(listener.local_addr().unwrap(), "ok_x");
    let server = tokio::spawn(axum::serve(listener, router).into_future());
    let mut stream = client.attach::<Chat>("a-key").unwrap();
    match patiently("the stream to end", stream.next()).await {
        Err(ClientError::OurSide(failed)) => assert_eq!(failed.problem.error, "provider_failed"),
        other => panic!("{other:?}"),
    }
    assert!(left.lock().unwrap().is_empty());
    server.abort();
}
