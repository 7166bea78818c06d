//! An input that can only fail is answered from memory, before anything is spent; and what was our
//! fault, another tenant's, or another model's is held against no input.

use serde_json::json;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

async fn start(options: NodeOptions) -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

fn rejected() -> Reply {
    let error = json!({"type": "error", "error":
        {"type": "invalid_request_error", "message": "messages.0: image is not readable"}});
    Reply::status(400, &[("content-type", "application/json")], error.to_string())
}

async fn ask(client: &Client, message: &str) -> (Uuid, u16, String) {
    let key = Uuid::new_v4();
    let answer = client.chat(key, "c1", message).await;
    let error = if answer.status == 200 { String::new() } else { answer.error() };
    (key, answer.status, error)
}

fn refused() -> (u16, String) {
    (422, "input_rejected".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_third_key_for_an_input_that_failed_under_two_spends_nothing() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    provider.reply_times(2, &rejected());
    for calls in 1..=2 {
        let (key, status, error) = ask(&client, "bad").await;
        assert_eq!((status, error), refused());
        assert_eq!(provider.count(), calls);
        // Its own key replays, which is no further failure.
        assert!(client.chat(key, "c1", "bad").await.replayed());
    }
    for _ in 0..2 {
        let (key, status, error) = ask(&client, "bad").await;
        assert_eq!((status, error), refused());
        let standing = (1, 1, "failed".to_owned(), Some("input".to_owned()));
        assert_eq!(database.standing(key).await, standing);
        assert!(client.chat(key, "c1", "bad").await.replayed());
    }
    assert_eq!(provider.count(), 2);
    assert_eq!(database.count("select failures::bigint from refused_inputs").await, 2);

    // Another input, another tenant and, after its time, the same one again: all are asked about.
    assert_eq!(ask(&client, "good").await.1, 200);
    let other = node.client("t2").await;
    assert_eq!(ask(&other, "bad").await.1, 200);
    database.execute("update refused_inputs set until = clock_timestamp()").await;
    assert_eq!(ask(&client, "bad").await.1, 200);
    assert_eq!(provider.count(), 5);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_model_under_the_same_name_is_asked() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    provider.reply_times(2, &rejected());
    for _ in 0..2 {
        assert_eq!(ask(&client, "bad").await.1, 422);
    }
    assert!(node.shut_down().await);
    let changed = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__UPSTREAM", "fake-model-2");
    let node = TestNode::start(&database, &provider, changed).await;
    let client = client.at(node.address());
    assert_eq!(ask(&client, "bad").await.1, 200);
    assert_eq!(provider.count(), 3);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ours_is_held_against_no_input() {
    let hurried = NodeOptions::default().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
    let (database, provider, node, client) = start(hurried).await;
    for file in [
        "529_overloaded.json",
        "401_auth.json",
        "429_insufficient_quota.json",
        "403_region.json",
        "429_none.json",
    ] {
        for _ in 0..2 {
            provider.reply(Reply::file(file));
            assert!(ask(&client, "good").await.1 >= 429);
        }
    }
    assert_eq!(database.count("select count(*) from refused_inputs").await, 0);
    // A model that rejects whatever it is sent is broken, not the inputs.
    provider.reply_times(12, &rejected());
    for number in 0..12 {
        assert_eq!(ask(&client, &format!("question {number}")).await.1, 422);
    }
    assert_eq!(database.count("select count(*) from refused_inputs").await, 5);
    for number in 5..12 {
        assert_eq!(ask(&client, &format!("question {number}")).await.1, 200, "{number}");
    }
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_begun_anew_is_not_refused_for_what_it_held_before() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    assert_eq!(ask(&client, "a long story").await.1, 200);
    provider.reply_times(2, &Reply::file("413_edge.json"));
    for _ in 0..3 {
        let (_, status, error) = ask(&client, "go on").await;
        assert_eq!((status, error.as_str()), (413, "too_large"));
    }
    assert_eq!(provider.count(), 3, "the third is refused from memory");
    let emptied = client.send(client.request("DELETE", "/v1/conversations/c1")).await.unwrap();
    assert_eq!(emptied.status, 204);
    assert_eq!(ask(&client, "go on").await.1, 200, "it is another prompt now");
    assert_eq!(database.count("select count(*) from turns").await, 2);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_the_operator_mended_is_asked_about_again() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    provider.reply_times(2, &rejected());
    for _ in 0..2 {
        assert_eq!(ask(&client, "hello").await.1, 422);
    }
    assert!(node.shut_down().await);
    let mended = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__MAX_OUTPUT_TOKENS", "64");
    let node = TestNode::start(&database, &provider, mended).await;
    assert_eq!(ask(&client.at(node.address()), "hello").await.1, 200);
    assert!(node.shut_down().await);
}
