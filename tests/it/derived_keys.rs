//! Requests without a key: by policy the same request within a window is the same operation, or it is
//! refused, or it is run each time; and the client is told which.

use std::time::Duration;

use chrono::{DurationRound, TimeDelta, Utc};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

/// Windows of an hour, so that no slow test sees the end of one.
fn hourly() -> NodeOptions {
    NodeOptions::default().set("ONCEKEY_IDEMPOTENCY__DERIVE_WINDOW", "1h")
}

async fn start(options: NodeOptions) -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

/// A chat without a key.
fn keyless(client: &Client, body: &Value) -> reqwest::RequestBuilder {
    client
        .request("POST", "/v1/chat")
        .header("content-type", "application/json")
        .body(body.to_string())
}

async fn send(client: &Client, body: &Value) -> Answer {
    client.send(keyless(client, body)).await.unwrap()
}

fn hello() -> Value {
    json!({"conversation_id": "c1", "message": "hello"})
}

/// The key that the service made, and says it made.
fn made_key(answer: &Answer, source: &str) -> Uuid {
    assert_eq!(answer.header("idempotency-key-source"), Some(source));
    answer.header("idempotency-key").unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_at_once_is_one_operation() {
    let (database, provider, node, client) = start(hourly()).await;
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let mut arrivals = JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        arrivals.spawn(async move { send(&client, &hello()).await });
    }
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..19 {
        let told = arrivals.join_next().await.unwrap().unwrap();
        assert_eq!((told.status, told.error().as_str()), (409, "in_progress"));
        keys.insert(made_key(&told, "derived"));
    }
    gate.open();
    let winner = arrivals.join_next().await.unwrap().unwrap();
    assert_eq!(winner.status, 200);
    keys.insert(made_key(&winner, "derived"));
    assert_eq!(keys.len(), 1);
    let replay = send(&client, &hello()).await;
    assert_eq!(replay.bytes, winner.bytes);
    assert!(replay.replayed());
    assert_eq!(keys.len(), 1);
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_eq!(database.text("select key_source from request_records").await, "derived");
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_same_request_is_another_operation() {
    let (database, provider, node, client) = start(hourly()).await;
    let other_tenant = node.client("t2").await;
    let first = made_key(&send(&client, &hello()).await, "derived");

    // What is no part of the meaning makes no difference.
    let spelled = keyless(&client, &hello()).body(
        r#" {"metadata": {"attempt": 2}, "message": "hel\u006co", "conversation_id": "c1"} "#,
    );
    let same = client.send(spelled).await.unwrap();
    assert!(same.replayed());
    assert_eq!(made_key(&same, "derived"), first);

    let others = [
        send(&client, &json!({"conversation_id": "c1", "message": "hello!"})).await,
        send(&client, &json!({"conversation_id": "c2", "message": "hello"})).await,
        send(&other_tenant, &hello()).await,
    ];
    let mut keys = std::collections::BTreeSet::from([first]);
    for other in others {
        assert_eq!(other.status, 200);
        assert!(!other.replayed());
        assert!(keys.insert(made_key(&other, "derived")));
    }
    // An end user's question is that user's.
    let body = json!({"conversation_id": "c3", "message": "hello"});
    for user in ["ann", "bob"] {
        let request = keyless(&client, &body).header("x-end-user", user);
        let answer = client.send(request).await.unwrap();
        assert!(keys.insert(made_key(&answer, "derived")), "{user}");
    }
    assert_eq!(provider.count(), 5, "bob is not shown ann's conversation");
    assert_eq!(database.outcomes().await, (5, 5, 5));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_window_the_same_request_is_a_new_operation_once() {
    let (database, provider, node, client) = start(hourly()).await;
    let age = |span: &str| {
        format!("update derived_keys set first_at = clock_timestamp() - interval '{span}'")
    };
    let first = send(&client, &hello()).await;
    let key = made_key(&first, "derived");
    database.execute(&age("50 minutes")).await;
    let within = send(&client, &hello()).await;
    assert_eq!(made_key(&within, "derived"), key);
    assert_eq!(within.bytes, first.bytes);
    // It is counted from the first arrival, not from the last.
    let first_at = "select count(*) from derived_keys
        where first_at < clock_timestamp() - interval '49 minutes'";
    assert_eq!(database.count(first_at).await, 1);

    database.execute(&age("1 hour")).await;
    let mut arrivals = JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        arrivals.spawn(async move {
            let mut answer = send(&client, &hello()).await;
            while answer.status == 409 {
                tokio::task::yield_now().await;
                answer = send(&client, &hello()).await;
            }
            answer
        });
    }
    let answers = arrivals.join_all().await;
    let next = made_key(&answers[0], "derived");
    assert_ne!(next, key);
    for answer in &answers {
        assert_eq!(made_key(answer, "derived"), next);
        assert_eq!(answer.bytes, answers[0].bytes);
    }
    assert_ne!(answers[0].bytes, first.bytes);
    assert_eq!(provider.count(), 2);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_arrivals_on_two_sides_of_a_full_hour_are_within_one_window() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let now = Utc::now();
    let hour = now.duration_trunc(TimeDelta::hours(1)).unwrap() + TimeDelta::hours(2);
    let at = |moment: TimeDelta| {
        let clock_offset: Duration = (hour + moment - now).to_std().unwrap();
        NodeOptions { clock_offset, ..hourly() }
    };
    let before = TestNode::start(&database, &provider, at(TimeDelta::minutes(-15))).await;
    let after = TestNode::start(&database, &provider, at(TimeDelta::minutes(15))).await;
    let client = before.client("t1").await;
    let first = send(&client, &hello()).await;
    let second = send(&client.at(after.address()), &hello()).await;
    assert_eq!(made_key(&second, "derived"), made_key(&first, "derived"));
    assert_eq!(second.bytes, first.bytes);
    assert_eq!(provider.count(), 1);
    assert!(before.shut_down().await && after.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_that_was_told_names_the_operation_also_when_it_is_sent() {
    let (database, provider, node, client) = start(hourly()).await;
    let first = send(&client, &hello()).await;
    let key = made_key(&first, "derived");
    let record = client.get(&format!("/v1/requests/{key}")).await;
    assert_eq!(record.status, 200);
    assert_eq!(record.json()["key_source"], "derived");
    assert_eq!(record.json()["request_id"].as_str(), first.header("x-request-id"));
    // A client that keeps it is safe beyond the window.
    database.execute("update derived_keys set first_at = first_at - interval '2 hours'").await;
    let again = client.chat(key, "c1", "hello").await;
    assert_eq!(again.bytes, first.bytes);
    assert!(again.replayed());
    assert_eq!(client.chat(key, "c1", "another").await.error(), "idempotency_key_reuse");
    assert_eq!(provider.count(), 1);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_passes_is_run_again_under_the_derived_key() {
    let options =
        hourly().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1").set("ONCEKEY_RETRY__TOTAL_WAIT", "400ms");
    let (database, provider, node, client) = start(options).await;
    provider.reply(Reply::file("529_overloaded.json"));
    let busy = send(&client, &hello()).await;
    assert_eq!(busy.error(), "provider_busy");
    let key = made_key(&busy, "derived");
    let answered = send(&client, &hello()).await;
    assert_eq!(answered.status, 200);
    assert_eq!(made_key(&answered, "derived"), key);
    assert_eq!(database.standing(key).await, (2, 2, "committed".into(), None));
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_key_is_required_a_request_without_one_is_refused() {
    let options = NodeOptions::default().set("ONCEKEY_IDEMPOTENCY__MISSING_KEY", "require");
    let (database, provider, node, client) = start(options).await;
    let refused = send(&client, &hello()).await;
    assert_eq!((refused.status, refused.error().as_str()), (400, "idempotency_key_required"));
    assert!(refused.header("idempotency-key").is_none());
    assert_eq!(provider.count(), 0);
    assert_eq!(database.count("select count(*) from request_keys").await, 0);
    assert_eq!(database.count("select count(*) from derived_keys").await, 0);
    // A broken key is not a missing one.
    let broken = keyless(&client, &hello()).header("idempotency-key", "");
    assert_eq!(client.send(broken).await.unwrap().error(), "idempotency_key_invalid");
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_missing_key_passes_each_request_is_run() {
    let options = NodeOptions::default().set("ONCEKEY_IDEMPOTENCY__MISSING_KEY", "pass");
    let (database, provider, node, client) = start(options).await;
    let first = send(&client, &hello()).await;
    let second = send(&client, &hello()).await;
    let keys = [made_key(&first, "absent"), made_key(&second, "absent")];
    assert_ne!(keys[0], keys[1]);
    assert_eq!(provider.count(), 2);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    for key in keys {
        let record = client.get(&format!("/v1/requests/{key}")).await;
        assert_eq!(record.json()["key_source"], "absent");
    }
    assert_eq!(client.chat(keys[0], "c1", "hello").await.bytes, first.bytes);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}
