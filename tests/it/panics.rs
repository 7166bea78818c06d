//! A panic in the middle of an operation is a passing failure like any other: the client is told, the
//! conversation is free, what was paid for is kept, and the server goes on. And where nothing is made
//! to go wrong, nothing in the log says that it did.

use serde_json::{Value, json};

use crate::support::Pair;
use crate::support::client::Answer;
use crate::support::node::assert_clean;
use crate::support::pair::{CONVERSATION, MESSAGE};

/// Two nodes, of which A panics at this point of every operation.
async fn panicking_at(point: &str) -> (Pair, Answer) {
    let variable = format!("ONCEKEY_FAULT_{}", point.to_uppercase());
    let pair = Pair::start(&[], &[("ONCEKEY_FAULTS", "on"), (&variable, "panic")]).await;
    let answer = pair.ask_a().await.unwrap().unwrap();
    let line = pair.a.until_event("panic", |_| true).await;
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["request_id"], answer.header("x-request-id").unwrap());
    assert_eq!(line["tenant_id"], "t1");
    assert!(line["at"].as_str().unwrap().contains(".rs:"), "{line}");
    (pair, answer)
}

fn assert_internal(answer: &Answer) {
    assert_eq!((answer.status, answer.error().as_str()), (500, "internal"));
    assert_eq!(answer.json()["retryable"], Value::Bool(false));
}

/// The run of the panic has ended as a passing failure, everything is as if it had failed in any
/// other way, and the next run, at a node that does not panic, succeeds.
async fn assert_ended(pair: &Pair, paid_calls: i64) {
    let record = pair.at_a.get(&format!("/v1/requests/{}", pair.key)).await.json();
    assert_eq!(record["state"], "failed");
    assert_eq!(record["failure"], json!({"kind": "internal", "error": "internal", "final": false}));
    let held = "select count(*) from conversations where active_key is not null";
    assert_eq!(pair.database.count(held).await, 0);
    let calls = "select count(*) from provider_calls
        where not counted and failure_kind = 'internal' and output_tokens > 0";
    assert_eq!(pair.database.count(calls).await, paid_calls);
    assert_eq!(pair.at_a.get("/readyz").await.status, 200, "the server goes on");
    assert_internal(&pair.at_a.chat(uuid::Uuid::new_v4(), "c2", MESSAGE).await);

    let answer = pair.ask_b().await;
    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.assert_one_outcome(&answer).await;
    let replay = pair.at_a.chat(pair.key, CONVERSATION, MESSAGE).await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, answer.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_claim_alone() {
    let (pair, answer) = panicking_at("after_claim").await;
    assert_internal(&answer);
    assert_ended(&pair, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_answer_in_hand() {
    let (pair, answer) = panicking_at("after_call").await;
    assert_internal(&answer);
    assert_ended(&pair, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_commit() {
    let (pair, answer) = panicking_at("before_commit").await;
    assert_internal(&answer);
    assert_ended(&pair, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_claim_nothing_is_left() {
    let (pair, answer) = panicking_at("before_claim").await;
    assert_internal(&answer);
    assert_eq!(pair.database.count("select count(*) from request_keys").await, 0);
    assert_eq!(pair.provider.count(), 0);
    let answer = pair.ask_b().await;
    assert_eq!(answer.status, 200);
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_commit_the_outcome_stands_and_the_retry_gets_it() {
    let (pair, answer) = panicking_at("after_commit").await;
    assert_eq!(answer.status, 200, "what was done and paid for is told");
    let replay = pair.at_a.chat(pair.key, CONVERSATION, MESSAGE).await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, answer.bytes);
    assert_eq!(pair.provider.count(), 1);
    pair.assert_one_outcome(&replay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_faults_nothing_is_said_of_any() {
    let pair = Pair::start(&[("ONCEKEY_LOG_LEVEL", "debug")], &[]).await;
    for number in 0..3 {
        let answer = pair.at_a.chat(uuid::Uuid::new_v4(), CONVERSATION, &number.to_string()).await;
        assert_eq!(answer.status, 200);
    }
    let answer = pair.ask_a().await.unwrap().unwrap();
    assert_eq!(answer.status, 200);
    assert!(pair.ask_b().await.replayed());
    assert_eq!(pair.database.outcomes().await, (4, 4, 4));
    assert_clean(&pair.store).await;

    for node in [&pair.a, &pair.b] {
        for line in node.log() {
            let level = line["level"].as_str().unwrap();
            assert!(!["WARN", "ERROR"].contains(&level), "{line}");
            let event = line["event"].as_str().unwrap_or_default();
            for bad in ["fault", "retr", "repeat", "taken_over", "fenced", "fail", "panic", "dead"]
            {
                assert!(!event.contains(bad), "{line}");
            }
        }
    }
    let seen: Vec<_> =
        pair.a.log().iter().filter_map(|line| line["event"].as_str().map(str::to_owned)).collect();
    for good in ["claimed", "provider_call_started", "provider_call_ended", "committed"] {
        assert_eq!(seen.iter().filter(|event| *event == good).count(), 4, "{good}");
    }
}
