//! SIGTERM: nothing new begins, what runs may finish, and what cannot is released so that another
//! node starts at once. Nobody's connection holds the exit up.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::node::assert_clean;
use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Pair, TestDatabase, eventually};

/// Far below what a connection may take for a head (30 s) or a body (60 s), and far above what an
/// exit takes.
const SOON: Duration = Duration::from_secs(20);

fn assert_draining(answer: &Answer) {
    assert_eq!((answer.status, answer.error().as_str()), (503, "draining"));
    assert_eq!(answer.json()["retryable"], Value::Bool(true));
    assert!(answer.json()["retry_after_ms"].as_u64().unwrap() > 0);
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_another_node_is_sent_there() {
    let mut pair = Pair::start(&[], &[]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let (key, client) = (pair.key, pair.at_b.clone());
    let running = tokio::spawn(async move { client.chat(key, CONVERSATION, MESSAGE).await });
    gate.until_reached(1).await;
    // Waits at node A for what node B runs: no work of A's, and none that its exit waits for.
    let body = json!({"conversation_id": CONVERSATION, "message": MESSAGE});
    let wait = pair.at_a.chat_request(key, &body).header("prefer", "wait=600");
    let client = pair.at_a.clone();
    let waiting = tokio::spawn(async move { client.send(wait).await.unwrap() });
    eventually("node A waits", || async {
        let looks = "select count(*) from pg_stat_activity
            where datname = current_database() and starts_with(query, '/* watch */')";
        pair.database.count(looks).await > 0
    })
    .await;
    pair.a.signal("TERM").await;
    assert_draining(&waiting.await.unwrap());
    assert_eq!(pair.a.ended().await, Some(0));
    gate.open();
    let answer = running.await.unwrap();
    assert_eq!(answer.status, 200);
    pair.assert_one_outcome(&answer).await;
}

type Asked = tokio::task::JoinHandle<Result<Answer, reqwest::Error>>;

/// Node A with its call held at the provider after one delta.
async fn running(only_a: &[(&str, &str)]) -> (Pair, Gate, Asked) {
    let pair = Pair::start(&[], only_a).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    (pair, gate, asked)
}

async fn told_to_stop(node: &ProcessNode) {
    node.signal("TERM").await;
    node.until_event("draining", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_finishes_and_nothing_new_begins() {
    let mut pair = Pair::start(&[], &[]).await;
    let finished = Uuid::new_v4();
    let before = pair.at_a.chat(finished, "c0", "earlier").await;
    assert_eq!(before.status, 200);
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    told_to_stop(&pair.a).await;

    let calls = pair.provider.count();
    let fresh = Uuid::new_v4();
    assert_draining(&pair.at_a.chat(fresh, "c9", "new").await);
    assert_draining(&pair.at_a.get("/readyz").await);
    assert_eq!(pair.at_a.get("/healthz").await.status, 200);
    let replay = pair.at_a.chat(finished, "c0", "earlier").await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, before.bytes);
    let other = json!({"conversation_id": "c0", "message": "another question"});
    let reused = pair.at_a.send(pair.at_a.chat_request(finished, &other)).await.unwrap();
    assert_eq!((reused.status, reused.error().as_str()), (422, "idempotency_key_reuse"));
    let running = pair.at_a.chat(pair.key, CONVERSATION, MESSAGE).await;
    assert_eq!((running.status, running.error().as_str()), (409, "in_progress"));
    assert_eq!(pair.provider.count(), calls, "none of these was worth a call");
    let record = pair.at_a.get(&format!("/v1/requests/{}", pair.key)).await;
    assert_eq!(record.json()["state"], "in_progress");
    let refused = pair.at_a.get(&format!("/v1/requests/{fresh}")).await;
    assert_eq!(refused.status, 404, "a refused arrival leaves nothing behind");

    gate.open();
    let answer = asked.await.unwrap().unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(pair.a.ended().await, Some(0));
    let replay = pair.ask_b().await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, answer.bytes);
    assert_eq!(pair.database.outcomes().await, (2, 2, 2));
    assert_clean(&pair.store).await;
    assert!(pair.a.events("released").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_does_not_finish_in_time_is_released() {
    let (mut pair, _never, asked) = running(&[("ONCEKEY_LIMITS__DRAIN", "300ms")]).await;
    pair.a.signal("TERM").await;
    let answer = asked.await.unwrap().unwrap();
    assert_draining(&answer);
    // Its verdict was written before its client was told.
    let record = pair.at_b.get(&format!("/v1/requests/{}", pair.key)).await.json();
    assert_eq!(
        (&record["state"], &record["failure"]["kind"]),
        (&json!("failed"), &json!("released"))
    );
    assert_eq!(record["failure"]["final"], false);
    assert_eq!(record["failure"]["error"], "draining");
    pair.provider.until_client_gone(1).await;

    // The very first retry runs.
    let retry = pair.ask_b().await;
    assert_eq!((retry.status, retry.replayed()), (200, false));
    assert_eq!(pair.a.ended().await, Some(1));
    assert_eq!(pair.provider.count(), 2);
    assert_eq!(pair.fence_and_attempts().await, (2, 1), "a released run is not held against it");
    pair.assert_one_outcome(&retry).await;
    let calls =
        "select count(*) from provider_calls where not counted and failure_kind = 'released'";
    assert_eq!(pair.database.count(calls).await, 1, "what was cut is kept");
    assert!(pair.b.events("taken_over").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_client_is_released_too() {
    let (mut pair, _never, asked) = running(&[("ONCEKEY_LIMITS__DRAIN", "300ms")]).await;
    asked.abort();
    pair.a.signal("TERM").await;
    pair.a.until_event("released", |_| true).await;
    assert_eq!(pair.a.ended().await, Some(1));
    let retry = pair.ask_b().await;
    assert_eq!((retry.status, retry.replayed()), (200, false));
    pair.assert_one_outcome(&retry).await;
}

async fn hurried_by(first: &str, second: &str) {
    let (mut pair, _never, asked) = running(&[("ONCEKEY_LIMITS__DRAIN", "1h")]).await;
    pair.a.signal(first).await;
    pair.a.until_event("draining", |_| true).await;
    let alive = pair.ask_b().await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    pair.a.signal(second).await;
    assert_draining(&asked.await.unwrap().unwrap());
    assert_eq!(pair.a.ended().await, Some(1));
    let retry = pair.ask_b().await;
    assert_eq!((retry.status, retry.replayed()), (200, false));
    assert_eq!(pair.fence_and_attempts().await, (2, 1));
    pair.assert_one_outcome(&retry).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_hurries() {
    hurried_by("TERM", "TERM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_counts_as_a_signal() {
    hurried_by("INT", "INT").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_different_signals_do_as_well() {
    hurried_by("TERM", "INT").await;
}

/// Connections that say a part of something and then nothing.
async fn unfinished(node: &ProcessNode, key: &str) -> Vec<TcpStream> {
    let body = format!(
        "POST /v1/chat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
        content-type: application/json\r\nidempotency-key: {}\r\ncontent-length: 1000\r\n\r\n\
        {{\"conversation_id\": \"c7\",",
        Uuid::new_v4()
    );
    let mut open = Vec::new();
    for part in ["", "POST /v1/chat HTTP/1.1\r\nhost: x\r\nauthoriz", &body] {
        let mut connection = TcpStream::connect(node.address).await.unwrap();
        connection.write_all(part.as_bytes()).await.unwrap();
        open.push(connection);
    }
    // One that was of use, and is kept for the next request.
    let mut kept = TcpStream::connect(node.address).await.unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    kept.read_exact(&mut [0; 12]).await.unwrap();
    open.push(kept);
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn no_unfinished_request_holds_the_exit_up() {
    let mut pair = Pair::start(&[], &[]).await;
    let open = unfinished(&pair.a, &pair.at_a.key).await;
    pair.a.signal("TERM").await;
    let ended = tokio::time::timeout(SOON, pair.a.ended()).await;
    assert_eq!(ended.expect("the exit waits for a client"), Some(0));
    drop(open);
    assert_eq!(pair.database.count("select count(*) from request_keys").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_completed_while_draining_is_refused() {
    let (mut pair, gate, asked) = running(&[]).await;
    let key = Uuid::new_v4();
    let body = json!({"conversation_id": "c7", "message": "late"}).to_string();
    let head = format!(
        "POST /v1/chat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
        content-type: application/json\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\
        connection: close\r\n\r\n",
        pair.at_a.key,
        body.len()
    );
    let mut connection = TcpStream::connect(pair.a.address).await.unwrap();
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(&body.as_bytes()[..10]).await.unwrap();
    told_to_stop(&pair.a).await;
    connection.write_all(&body.as_bytes()[10..]).await.unwrap();
    let mut said = String::new();
    connection.read_to_string(&mut said).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("\"draining\""), "{said}");
    assert_eq!(pair.provider.count(), 1);
    gate.open();
    assert_eq!(asked.await.unwrap().unwrap().status, 200);
    assert_eq!(pair.a.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_silent_holds_no_exit_up() {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(Target::Unix(database.socket())).await;
    let through = database.url_through(proxy.address.port());
    let brief = ("ONCEKEY_LIMITS__DRAIN", "100ms");
    let mut pair = Pair::on(database, &[], &[("DATABASE_URL", &through), brief]).await;
    assert_eq!(pair.at_a.get("/readyz").await.status, 200);
    proxy.set(Mode::Freeze);
    let asked = pair.ask_a();
    pair.a.until_event("node_session_lost", |_| true).await;
    pair.a.signal("TERM").await;
    let ended = tokio::time::timeout(SOON, pair.a.ended()).await;
    assert!(ended.expect("the exit waits for a database").is_some());
    drop(asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_node_is_seen_to_be_gone_by_the_others() {
    let mut pair = Pair::start(&[], &[]).await;
    pair.a.signal("TERM").await;
    assert_eq!(pair.a.ended().await, Some(0));
    eventually("its lock is free and its place empty", || async {
        pair.database.count("select count(*) from nodes where dead_at is null").await == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_the_start_is_not_lost() {
    let pair = Pair::start(&[], &[]).await;
    // The start of a third node is held up by a lock on the table in which it registers.
    let mut lock = pair.database.pool.begin().await.unwrap();
    sqlx::query("lock table nodes in access exclusive mode").execute(&mut *lock).await.unwrap();
    let mut third = ProcessNode::begin_on(&pair.database, &pair.provider, &[]);
    pair.database.until_waits_for_lock("nodes.register").await;
    third.signal("TERM").await;
    lock.rollback().await.unwrap();
    assert_eq!(third.ended().await, Some(0));
}
