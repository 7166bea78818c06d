//! One operation, one durable outcome: the plain path, the replay, and the other question.

use serde_json::json;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::ScriptedProvider;
use crate::support::{Client, TestDatabase};

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_commits_once_and_is_replayed_byte_for_byte() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();

    let first = client.chat(key, "c1", "hello").await;
    assert_eq!(first.status, 200, "{:?}", String::from_utf8_lossy(&first.bytes));
    assert!(!first.replayed());
    let second = client.chat(key, "c1", "hello").await;
    assert_eq!(second.bytes, first.bytes);
    assert!(second.replayed());
    let run = first.json()["request_id"].as_str().unwrap().to_owned();
    assert_eq!(second.header("x-idempotent-replay"), Some(run.as_str()));
    assert_eq!(first.header("x-request-id"), Some(run.as_str()));
    assert_ne!(second.header("x-request-id"), Some(run.as_str()));

    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_question_under_a_finished_key_is_refused_and_changes_nothing() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client: Client = node.client("t1").await;
    let key = Uuid::new_v4();
    let first = client.chat(key, "c1", "hello").await;

    let body = json!({"conversation_id": "c1", "message": "hello!"});
    let other = client.send(client.chat_request(key, &body)).await.unwrap();
    assert_eq!((other.status, other.error().as_str()), (422, "idempotency_key_reuse"));
    assert_eq!(client.chat(key, "c1", "hello").await.bytes, first.bytes);
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert!(node.shut_down().await);
}
