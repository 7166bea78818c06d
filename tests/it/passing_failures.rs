//! A passing failure never sticks to its key; a final one is remembered; and an operation that fails
//! too often, for too long or at an empty account is ended for good by the arrival that meets it.

use serde_json::json;
use uuid::Uuid;

use crate::claims::assert_says_when;
use crate::support::client::Answer;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

/// A node whose runs end quickly: two calls each, hardly a wait between them.
fn hurried() -> NodeOptions {
    NodeOptions::default()
        .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "2")
        .set("ONCEKEY_RETRY__TOTAL_WAIT", "400ms")
}

async fn start(options: NodeOptions) -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

fn assert_same_replay(replay: &Answer, first: &Answer) {
    assert_eq!((replay.status, &replay.bytes), (first.status, &first.bytes));
    assert!(replay.replayed());
    let run = first.json()["request_id"].as_str().unwrap().to_owned();
    assert_eq!(replay.header("x-idempotent-replay"), Some(run.as_str()));
    assert_ne!(replay.header("x-request-id"), Some(run.as_str()));
    assert_eq!(replay.header("content-type"), first.header("content-type"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overload_that_outlives_the_run_does_not_stick() {
    let (database, provider, node, client) = start(hurried()).await;
    provider.reply_times(2, &Reply::file("529_overloaded.json"));
    let key = Uuid::new_v4();

    let busy = client.chat(key, "c1", "hello").await;
    assert_eq!((busy.status, busy.error().as_str()), (503, "provider_busy"));
    assert!(busy.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(busy.json()["retryable"], true);
    assert_eq!(provider.count(), 2);
    assert_eq!(database.outcomes().await, (0, 0, 0));
    let standing = (1, 1, "failed".to_owned(), Some("overloaded".to_owned()));
    assert_eq!(database.standing(key).await, standing);
    let first = client.get(&format!("/v1/requests/{key}")).await.json();
    assert_eq!((&first["state"], &first["attempts"]), (&json!("failed"), &json!(1)));
    assert_eq!(first["failure"]["final"], false);
    assert_eq!(first["request_id"].as_str(), busy.header("x-request-id"));

    let answered = client.chat(key, "c1", "hello").await;
    assert_eq!(answered.status, 200);
    assert!(!answered.replayed());
    assert_eq!(database.standing(key).await, (2, 2, "committed".into(), None));
    let second = client.get(&format!("/v1/requests/{key}")).await.json();
    assert_eq!(second["operation_id"], first["operation_id"]);
    assert_eq!(second["request_id"].as_str(), answered.header("x-request-id"));
    assert_same_replay(&client.chat(key, "c1", "hello").await, &answered);
    assert_eq!(provider.count(), 3);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    // What the first run spent is kept, and none of it is in the answer.
    let calls =
        "select count(*) from provider_calls where counted = (call_no = 1 and status = 200)";
    assert_eq!(database.count(calls).await, 3);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_passing_kind_leaves_its_key_and_its_conversation_free() {
    let (database, provider, node, client) =
        start(hurried().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1")).await;
    let html = || Reply::status(502, &[("content-type", "text/html")], "<html>bad gateway</html>");
    let failures = [
        (Reply::file("529_overloaded.json"), 503, "provider_busy"),
        (Reply::file("429_none.json"), 503, "provider_busy"),
        (html(), 502, "provider_failed"),
        (Reply::reset(), 502, "provider_failed"),
        (Reply::events_file("eof_no_stop.sse"), 502, "provider_failed"),
        (Reply::file("401_auth.json"), 500, "provider_auth"),
        (Reply::file("429_insufficient_quota.json"), 429, "quota_exhausted"),
        (Reply::file("403_region.json"), 503, "region_refused"),
    ];
    let count = failures.len();
    for (number, (reply, status, error)) in failures.into_iter().enumerate() {
        provider.reply(reply);
        let key = Uuid::new_v4();
        let failed = client.chat(key, "c1", &format!("question {number}")).await;
        assert_eq!((failed.status, failed.error().as_str()), (status, error), "{number}");
        assert_eq!(failed.json()["retryable"], (502..=504).contains(&status));
        // Another operation has the conversation at once, and so has the same one.
        let other = client.chat(Uuid::new_v4(), "c1", "another").await;
        assert_eq!(other.status, 200, "{error}: {}", String::from_utf8_lossy(&other.bytes));
        let again = client.chat(key, "c1", &format!("question {number}")).await;
        assert_eq!(again.status, 200, "{error}: {}", String::from_utf8_lossy(&again.bytes));
        assert_eq!(database.standing(key).await, (2, 2, "committed".into(), None));
    }
    assert_eq!(provider.count(), 3 * count);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_failure_is_stored_and_replayed() {
    let (database, provider, node, client) = start(hurried()).await;
    let refused = json!({"type": "error", "error":
        {"type": "invalid_request_error", "message": "messages: at least one message is required"}});
    let refused = Reply::status(400, &[("content-type", "application/json")], refused.to_string());
    let failures = [
        (refused, 422, "input_rejected"),
        (Reply::file("400_context_anthropic.json"), 413, "too_large"),
        (Reply::file("413_edge.json"), 413, "too_large"),
    ];
    for (number, (reply, status, error)) in failures.into_iter().enumerate() {
        provider.reply(reply);
        let key = Uuid::new_v4();
        let message = format!("question {number}");
        let failed = client.chat(key, "c1", &message).await;
        assert_eq!((failed.status, failed.error().as_str()), (status, error));
        assert!(!failed.replayed());
        assert!(failed.header("retry-after").is_none());
        assert_eq!(failed.json()["retryable"], false);
        assert_eq!(failed.json()["request_id"].as_str(), failed.header("x-request-id"));
        for _ in 0..2 {
            assert_same_replay(&client.chat(key, "c1", &message).await, &failed);
        }
        assert_eq!(client.chat(key, "c1", "hello?").await.error(), "idempotency_key_reuse");
        let record = client.get(&format!("/v1/requests/{key}")).await.json();
        assert_eq!(record["failure"]["final"], true);
        assert_eq!(record["failure"]["error"], error);
        assert_eq!(provider.count(), number + 1);
    }
    assert_eq!(database.outcomes().await, (0, 0, 0));
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

/// The arrival that meets a spent operation ends it, in the name of its last run.
async fn assert_gives_up(client: &Client, database: &TestDatabase, key: Uuid, last_run: &str) {
    let gave_up = client.chat(key, "c1", "hello").await;
    assert_eq!((gave_up.status, gave_up.error().as_str()), (422, "gave_up"));
    assert_eq!(gave_up.json()["request_id"], last_run);
    assert_eq!(gave_up.json()["retryable"], false);
    assert_same_replay(&client.chat(key, "c1", "hello").await, &gave_up);
    let (_, _, state, kind) = database.standing(key).await;
    assert_eq!((state.as_str(), kind.as_deref()), ("failed", Some("gave_up")));
    let record = client.get(&format!("/v1/requests/{key}")).await.json();
    assert_eq!(record["request_id"], last_run);
    assert_eq!(record["failure"]["final"], true);
    // The conversation is free for others.
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "another").await.status, 200);
}

fn request_id(answer: &Answer) -> String {
    answer.header("x-request-id").unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_used_up_its_runs_is_ended() {
    let (database, provider, node, client) = start(
        hurried().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1").set("ONCEKEY_RETRY__MAX_RUNS", "3"),
    )
    .await;
    provider.reply_times(3, &Reply::file("529_overloaded.json"));
    let key = Uuid::new_v4();
    let mut last_run = String::new();
    for run in 1..=3 {
        let busy = client.chat(key, "c1", "hello").await;
        assert_eq!((busy.status, busy.error().as_str()), (503, "provider_busy"), "run {run}");
        last_run = request_id(&busy);
    }
    assert_gives_up(&client, &database, key, &last_run).await;
    assert_eq!(provider.count(), 4, "three runs, and another operation's");
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_began_too_long_ago_is_ended() {
    let (database, provider, node, client) = start(hurried()).await;
    provider.reply_times(2, &Reply::file("529_overloaded.json"));
    let key = Uuid::new_v4();
    let last_run = request_id(&client.chat(key, "c1", "hello").await);
    let age = |span: &str| {
        format!(
            "update request_records set first_claimed_at = clock_timestamp() - interval '{span}'"
        )
    };
    database.execute(&age("2 hours 59 minutes")).await;
    // One that is not over the limit runs; its next one is.
    provider.reply_times(2, &Reply::file("529_overloaded.json"));
    let again = client.chat(key, "c1", "hello").await;
    assert_eq!(again.error(), "provider_busy");
    assert_ne!(request_id(&again), last_run);
    database.execute(&age("3 hours 1 second")).await;
    assert_gives_up(&client, &database, key, &request_id(&again)).await;
    assert_eq!(provider.count(), 5);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_quota_hit_ends_the_operation() {
    let (database, provider, node, client) = start(hurried()).await;
    let key = Uuid::new_v4();
    provider.reply(Reply::file("429_insufficient_quota.json"));
    let first = client.chat(key, "c1", "hello").await;
    assert_eq!((first.status, first.error().as_str()), (429, "quota_exhausted"));
    assert_eq!(first.json()["retryable"], false);
    provider.reply(Reply::file("429_insufficient_quota.json"));
    let second = client.chat(key, "c1", "hello").await;
    assert_eq!((second.status, second.error().as_str()), (422, "gave_up"));
    assert_eq!(second.json()["request_id"].as_str(), second.header("x-request-id"));
    assert_eq!(provider.count(), 2);
    assert_same_replay(&client.chat(key, "c1", "hello").await, &second);
    assert_eq!(provider.count(), 2);
    assert_eq!(database.outcomes().await, (0, 0, 0));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_loses_its_node_counts_and_is_not_taken_over_for_ever() {
    let (database, provider, node, client) =
        start(hurried().set("ONCEKEY_RETRY__MAX_RUNS", "2")).await;
    database.age_epoch().await;
    let gate = Gate::closed();
    provider.reply_times(2, &Reply::normal().before_head(Action::Hold(gate.clone())));
    let key = Uuid::new_v4();
    let orphan = "update request_records set owner = 700 where state = 'in_progress'";
    let mut runs = Vec::new();
    for run in 1..=2 {
        let client = client.clone();
        runs.push(tokio::spawn(async move { client.chat(key, "c1", "hello").await }));
        provider.until_requests(run).await;
        let waits = client_409(&node, &database, key).await;
        assert_says_when(&waits);
        database.execute(orphan).await;
    }
    assert_eq!(database.standing(key).await, (2, 2, "in_progress".into(), None));
    let last_run = database.text("select request_id::text from request_records").await;
    assert_gives_up(&client, &database, key, &last_run).await;
    // The runs that were written off come back with answers that nobody may write any more.
    gate.open();
    for run in runs {
        assert_eq!(run.await.unwrap().error(), "gave_up", "what became of the operation");
    }
    assert_eq!(database.outcomes().await, (1, 1, 1), "another operation's");
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

async fn client_409(node: &TestNode, database: &TestDatabase, key: Uuid) -> Answer {
    assert_eq!(database.standing(key).await.2, "in_progress");
    let told = node.client("t1").await.chat(key, "c1", "hello").await;
    assert_eq!((told.status, told.error().as_str()), (409, "in_progress"));
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_released_or_cancelled_is_not_held_against_the_operation() {
    let (database, provider, draining, client) =
        start(hurried().set("ONCEKEY_RETRY__MAX_RUNS", "1")).await;
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let key = Uuid::new_v4();
    let cut = tokio::spawn({
        let client = client.clone();
        async move { client.chat(key, "c1", "hello").await }
    });
    provider.until_requests(1).await;
    draining.app().lifecycle().drain();
    draining.app().lifecycle().cut_runs();
    let cut = cut.await.unwrap();
    assert_eq!((cut.status, cut.error().as_str()), (503, "draining"));
    let released = (1, 1, "failed".to_owned(), Some("released".to_owned()));
    assert_eq!(database.standing(key).await, released);
    provider.until_client_gone(1).await;

    let options =
        hurried().set("ONCEKEY_RETRY__MAX_RUNS", "1").set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
    let node = TestNode::start(&database, &provider, options).await;
    let client = client.at(node.address());
    for (fence, kind) in [(2, "cancelled"), (3, "released")] {
        // Its run may start although it is the only one allowed, and is not counted.
        provider.reply(Reply::file("529_overloaded.json"));
        assert_eq!(client.chat(key, "c1", "hello").await.error(), "provider_busy");
        let failed = (fence, 1, "failed".to_owned(), Some("overloaded".to_owned()));
        assert_eq!(database.standing(key).await, failed);
        let ended = format!("update request_records set failure_kind = '{kind}'");
        database.execute(&ended).await;
    }
    let answered = client.chat(key, "c1", "hello").await;
    assert_eq!(answered.status, 200);
    assert_eq!(database.standing(key).await, (4, 1, "committed".into(), None));
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
    assert!(draining.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_says_stop_names_no_time_to_come_back() {
    let (_database, provider, node, client) = start(hurried()).await;
    let headers = [("content-type", "application/json"), ("retry-after", "5")];
    for (status, code, calls) in [(400, "input_rejected", 1), (401, "provider_auth", 2)] {
        let error = json!({"error": {"type": "some_error", "message": "No."}}).to_string();
        provider.reply_times(calls, &Reply::status(status, &headers, error));
        let ended = client.chat(Uuid::new_v4(), "c1", &format!("hello {status}")).await;
        assert_eq!(ended.error(), code);
        assert_eq!(ended.header("retry-after"), None);
        assert_eq!(ended.json().get("retry_after_ms"), None);
        assert_eq!(ended.json()["retryable"], false);
    }
    assert!(node.shut_down().await);
}
