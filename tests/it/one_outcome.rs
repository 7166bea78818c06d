//! One operation, one durable outcome: the plain path, the replay, and the other question.

use serde_json::json;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Reply, ScriptedProvider};
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

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_outlives_the_model_that_gave_it() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let options = NodeOptions::default()
        .set("ONCEKEY_MODELS__OLD__PROVIDER", "main")
        .set("ONCEKEY_MODELS__OLD__UPSTREAM", "fake-model-0");
    let before = TestNode::start(&database, &provider, options).await;
    let client = before.client("t1").await;
    let (answered, failed) = (Uuid::new_v4(), Uuid::new_v4());
    let body = json!({"conversation_id": "c1", "message": "hello", "model": "old"});
    let first = client.send(client.chat_request(answered, &body)).await.unwrap();
    assert_eq!(first.status, 200);
    provider.reply(Reply::file("429_insufficient_quota.json"));
    let refused = client.send(client.chat_request(failed, &body)).await.unwrap();
    assert_eq!(refused.error(), "quota_exhausted");
    assert!(before.shut_down().await);

    // The next deployment does not know the model any more.
    let after = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = client.at(after.address());
    let replay = client.send(client.chat_request(answered, &body)).await.unwrap();
    assert_eq!((replay.status, &replay.bytes), (200, &first.bytes));
    assert!(replay.replayed());
    // What would have to run is refused, and stays as it is.
    for key in [failed, Uuid::new_v4()] {
        let unknown = client.send(client.chat_request(key, &body)).await.unwrap();
        assert_eq!((unknown.status, unknown.error().as_str()), (400, "invalid_request"));
        assert!(unknown.json()["detail"].as_str().unwrap().contains("old"));
    }
    assert_eq!(database.standing(failed).await.2, "failed");
    assert_eq!(database.count("select count(*) from request_keys").await, 2);
    assert_eq!(provider.count(), 2);
    assert!(after.shut_down().await);
}
