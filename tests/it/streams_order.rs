//! A streamed chat: what comes, in which order, under which ids and headers, and that the plain form
//! of the same operation is the same answer.

use serde_json::json;
use uuid::Uuid;

use crate::support::events::{Event, names_of, text_of};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, Events, TestDatabase};

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    client: Client,
    key: Uuid,
}

const TEXT: &str = "one two three";

impl Scene {
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
        let client = node.client("t1").await;
        Self { database, provider, node, client, key: Uuid::new_v4() }
    }

    async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.id.as_deref().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_as_the_provider_speaks() {
    let scene = Scene::start().await;
    let gates = [Gate::closed(), Gate::closed(), Gate::closed()];
    let mut reply = Reply::text(TEXT);
    for (deltas, gate) in gates.iter().enumerate() {
        reply = reply.after(deltas + 1, Action::Hold(gate.clone()));
    }
    scene.provider.reply(reply);
    let mut stream = scene.client.stream(scene.key, "c1", "hello").await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers["cache-control"], "no-store");
    assert_eq!(stream.headers["x-accel-buffering"], "no");
    let arrival = stream.headers["x-request-id"].to_str().unwrap().to_owned();

    let mut events = vec![stream.event().await];
    assert_eq!(events[0].data, json!({"request_id": arrival}));
    // Each piece is there before the provider has said the next.
    for (piece, gate) in ["one ", "two ", "three"].iter().zip(&gates) {
        let event = stream.event().await;
        assert_eq!(event.text(), *piece);
        events.push(event);
        gate.open();
    }
    events.extend(stream.rest().await);
    assert_eq!(names_of(&events), ["started", "delta", "completed"]);
    assert_eq!(ids(&events), ["1-1", "1-2", "1-3", "1-4", "1-5"]);

    let plain = scene.client.chat(scene.key, "c1", "hello").await;
    assert!(plain.replayed());
    assert_eq!(plain.json(), events.last().unwrap().data);
    assert_eq!(plain.content(), TEXT);
    assert_eq!(text_of(&events), TEXT);
    assert_eq!(plain.json()["request_id"], arrival);
    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.database.outcomes().await, (1, 1, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_event_comes_after_the_commit() {
    let scene = Scene::start().await;
    // The commit waits for a lock that the test holds.
    let gate = Gate::closed();
    scene.provider.reply(Reply::text(TEXT).after(3, Action::Hold(gate.clone())));
    let mut stream = scene.client.stream(scene.key, "c1", "hello").await;
    stream.until_text("three").await;
    let mut lock = scene.database.pool.begin().await.unwrap();
    sqlx::query("select from request_records for update").execute(&mut *lock).await.unwrap();
    gate.open();
    scene.database.until_waiting(1).await;
    let record = scene.client.get(&format!("/v1/requests/{}", scene.key)).await;
    assert_eq!(record.json()["state"], "in_progress");
    let mut rest = tokio::spawn(async move { stream.rest().await });
    // Nothing can come before the lock is let go; that it does not is seen by the order of the two.
    let early = tokio::time::timeout(std::time::Duration::from_millis(200), &mut rest).await;
    assert!(early.is_err(), "the stream ended before the commit: {early:?}");
    lock.rollback().await.unwrap();
    let rest = rest.await.unwrap();
    assert_eq!(names_of(&rest), ["completed"]);
    let record = scene.client.get(&format!("/v1/requests/{}", scene.key)).await;
    assert_eq!(record.json()["state"], "committed");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accept_header_asks_for_a_stream_too() {
    let scene = Scene::start().await;
    let body = json!({"conversation_id": "c1", "message": "hello"});
    let request = scene.client.chat_request(scene.key, &body).header("accept", "text/event-stream");
    let events = Events::open(request).await.rest().await;
    assert_eq!(names_of(&events), ["started", "delta", "completed"]);
    // A stream that is asked for in the body wins over the header.
    let request = scene.client.stream_request(scene.key, "c1", "hello");
    let again = Events::open(request.header("accept", "application/json")).await.rest().await;
    assert_eq!(again, events, "the same events under the same ids");
    // Asked for plainly, it is the plain answer, whatever it was begun as.
    let plain = scene.client.chat(scene.key, "c1", "hello").await;
    assert_eq!(plain.json(), events.last().unwrap().data);
    assert_eq!(scene.provider.count(), 1);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_before_anything_streams_is_a_plain_problem() {
    let scene = Scene::start().await;
    let refused = |request| async { Events::try_open(request).await.err().expect("a refusal") };
    let no_model = json!({"conversation_id": "c1", "message": "m", "model": "x", "stream": true});
    let answer = refused(scene.client.chat_request(scene.key, &no_model)).await;
    assert_eq!((answer.status, answer.error().as_str()), (400, "invalid_request"));
    let unknown = scene.client.with_key("ok_unknown");
    let answer = refused(unknown.stream_request(scene.key, "c1", "hello")).await;
    assert_eq!((answer.status, answer.error().as_str()), (401, "unauthorized"));

    let gate = Gate::closed();
    scene.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let mut stream = scene.client.stream(scene.key, "c1", "hello").await;
    gate.until_reached(1).await;
    let answer = refused(scene.client.stream_request(scene.key, "c1", "other")).await;
    assert_eq!((answer.status, answer.error().as_str()), (422, "idempotency_key_reuse"));
    let answer = refused(scene.client.stream_request(Uuid::new_v4(), "c1", "hello")).await;
    assert_eq!((answer.status, answer.error().as_str()), (409, "conversation_busy"));
    assert!(answer.json()["retry_after_ms"].is_u64());
    // Who does not ask for a stream is told that it runs.
    let answer = scene.client.chat(scene.key, "c1", "hello").await;
    assert_eq!((answer.status, answer.error().as_str()), (409, "in_progress"));
    gate.open();
    assert_eq!(names_of(&stream.rest().await).last(), Some(&"completed"));
    assert_eq!(scene.provider.count(), 1);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_made_is_told_in_the_head() {
    let scene = Scene::start().await;
    let body = json!({"conversation_id": "c1", "message": "hello", "stream": true});
    let request = || {
        let request = scene.client.request("POST", "/v1/chat");
        request.header("content-type", "application/json").body(body.to_string())
    };
    let mut first = Events::open(request()).await;
    assert_eq!(first.headers["idempotency-key-source"], "derived");
    let key = first.headers["idempotency-key"].clone();
    let events = first.rest().await;
    let mut second = Events::open(request()).await;
    assert_eq!(second.headers["idempotency-key"], key);
    assert_eq!(second.headers["idempotency-replayed"], "true");
    assert_eq!(second.rest().await, events);
    assert_eq!(scene.provider.count(), 1);
    scene.end().await;
}
