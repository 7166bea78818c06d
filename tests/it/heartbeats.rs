//! A run beats while it works and not a moment longer; one that is no longer its own, or cannot know
//! whether it is, stops its provider call and commits nothing.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::direct::{arrival, beating, chat_commit, failure, living_store, won};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, patiently};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Client, TestDatabase, eventually};
use oncekey::domain::record::StoredAnswer;
use oncekey::faults::{Faults, Point};
use oncekey::store::{Beat, CommitOutcome, Failure};

/// Beats often and is never stale by itself.
fn lively() -> NodeOptions {
    NodeOptions::default()
        // No other deadline ends a call in the time of a test.
        .set("ONCEKEY_PROVIDERS__MAIN__FIRST_BYTE_TIMEOUT", "9m")
        .set("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "100ms")
        .set("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "10m")
}

/// Trusts itself for three seconds after a beat.
fn doubtful() -> NodeOptions {
    lively().set("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "4s")
}

fn spawn_chat(client: &Client, key: Uuid, conversation: &'static str) -> JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.chat(key, conversation, "hello").await })
}

fn held(provider: &ScriptedProvider) -> Gate {
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    gate
}

/// The run was dropped, told its client to ask again, and left its call behind as wasted.
async fn assert_lost(database: &TestDatabase, answer: &Answer) {
    assert_eq!((answer.status, answer.error().as_str()), (503, "run_lost"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(database.outcomes().await, (0, 0, 0));
    let wasted =
        "select count(*) from provider_calls where not counted and failure_kind = 'run_lost'";
    assert_eq!(database.count(wasted).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_beat_lands_on_a_finished_record() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let mut runs = Vec::new();
    for conversation in ["c1", "c2", "c3"] {
        runs.push(won(&store, arrival(Uuid::new_v4(), conversation)).await);
    }
    let answer = StoredAnswer { status: 422, body: b"{}".to_vec() };
    let refused = Failure { answer: Some(answer), ..failure(&runs[2], "input") };
    let commit = chat_commit(&runs[0], "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    for failure in [failure(&runs[1], "transient"), refused] {
        assert_eq!(store.fail(failure).await.unwrap(), CommitOutcome::Committed);
    }

    let rows = "select string_agg(r::text, '') from request_records r";
    let before = database.text(rows).await;
    let all: Vec<_> = runs.iter().map(beating).collect();
    assert_eq!(session.beat(&all).await.unwrap(), [Beat::Lost; 3]);
    assert_eq!(database.text(rows).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_being_written_holds_up_no_other_beat() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let stuck = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    let free = won(&store, arrival(Uuid::new_v4(), "c2")).await;
    let runs = [beating(&stuck), beating(&free)];
    let mut other = database.pool.begin().await.unwrap();
    let lock = "select from request_records where idempotency_key = $1 for update";
    sqlx::query(lock).bind(stuck.at.key).execute(&mut *other).await.unwrap();
    assert_eq!(session.beat(&runs).await.unwrap(), [Beat::Passed, Beat::Landed]);
    other.rollback().await.unwrap();
    assert_eq!(session.beat(&runs).await.unwrap(), [Beat::Landed; 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stops_beating_before_its_verdict_is_written() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let (at_commit, go_on) = (Arc::new(watch::Sender::new(0)), Arc::new(watch::Sender::new(false)));
    let faults = Faults::hook({
        let (at_commit, go_on) = (at_commit.clone(), go_on.clone());
        move |point| {
            let (at_commit, mut go_on) = (at_commit.clone(), go_on.subscribe());
            async move {
                if point == Point::BeforeCommit {
                    at_commit.send_modify(|count| *count += 1);
                    go_on.wait_for(|open| *open).await.unwrap();
                }
            }
        }
    });
    let node = TestNode::start(&database, &provider, lively().faults(faults)).await;
    let client = node.client("t1").await;
    let (ending, working) = (Uuid::new_v4(), Uuid::new_v4());
    let ending_run = spawn_chat(&client, ending, "c1");
    patiently("the commit", at_commit.subscribe().wait_for(|count| *count == 1)).await.unwrap();
    let gate = held(&provider);
    let working_run = spawn_chat(&client, working, "c2");
    provider.until_requests(2).await;

    let heard = async |key: Uuid| {
        let sql = format!(
            "select heartbeat_at::text from request_records where idempotency_key = '{key}'"
        );
        database.text(&sql).await
    };
    let before = heard(ending).await;
    for _ in 0..3 {
        let last = heard(working).await;
        eventually("the working run beats", || async { heard(working).await != last }).await;
    }
    assert_eq!(heard(ending).await, before);

    go_on.send_replace(true);
    gate.open();
    assert_eq!(ending_run.await.unwrap().status, 200);
    assert_eq!(working_run.await.unwrap().status, 200);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_taken_over_drops_its_call_at_the_next_beat() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let gate = held(&provider);
    let node = TestNode::start(&database, &provider, lively()).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();
    let run = spawn_chat(&client, key, "c1");
    provider.until_requests(1).await;
    let taken =
        "update request_records set fence = 2, attempts = 2, request_id = gen_random_uuid(),
        heartbeat_at = clock_timestamp()";
    database.execute(taken).await;
    let record = "select r::text from request_records r";
    let before = database.text(record).await;

    provider.until_client_gone(1).await;
    assert_lost(&database, &run.await.unwrap()).await;
    assert_eq!(database.text(record).await, before);
    gate.open();
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_declared_dead_drops_its_runs_and_comes_back_as_another() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let _gate = held(&provider);
    let node = TestNode::start(&database, &provider, lively()).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();
    let run = spawn_chat(&client, key, "c1");
    provider.until_requests(1).await;
    let dead = node.store().node();
    database.execute("update nodes set dead_at = clock_timestamp()").await;

    provider.until_client_gone(1).await;
    assert_lost(&database, &run.await.unwrap()).await;
    eventually("the node has a new id", || async { node.store().node() != dead }).await;
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    let owner = database.count("select owner from request_records").await;
    assert_eq!(owner, i64::from(node.store().node().0));
    assert_ne!(owner, i64::from(dead.0));
    let registered = "select count(*) from nodes where dead_at is null";
    assert_eq!(database.count(registered).await, 1);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_beat_drops_its_call_before_it_can_be_replaced() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let proxy = Proxy::start(Target::Unix(database.socket())).await;
    let gate = held(&provider);
    let options =
        doubtful().set("ONCEKEY_DATABASE_URL_DIRECT", &database.url_through(proxy.address.port()));
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();
    let run = spawn_chat(&client, key, "c1");
    provider.until_requests(1).await;
    proxy.set(Mode::Freeze);

    provider.until_client_gone(1).await;
    assert_lost(&database, &run.await.unwrap()).await;
    gate.open();
    proxy.set(Mode::Pass);
    assert_eq!(client.chat_until_answered(key, "c1", "hello").await.status, 200);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_after_the_trust_has_run_out_is_not_committed() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let (at_commit, go_on) =
        (Arc::new(watch::Sender::new(false)), Arc::new(watch::Sender::new(false)));
    let faults = Faults::hook({
        let (at_commit, go_on) = (at_commit.clone(), go_on.clone());
        move |point| {
            let (at_commit, mut go_on) = (at_commit.clone(), go_on.subscribe());
            async move {
                if point == Point::BeforeCommit {
                    at_commit.send_replace(true);
                    go_on.wait_for(|open| *open).await.unwrap();
                }
            }
        }
    });
    let node = TestNode::start(&database, &provider, doubtful().faults(faults)).await;
    let client = node.client("t1").await;
    // Nobody may take the run over, so that nothing but its own doubt can stop it.
    database.execute("truncate server_epoch").await;
    let key = Uuid::new_v4();
    let run = spawn_chat(&client, key, "c1");
    patiently("the commit", at_commit.subscribe().wait_for(|there| *there)).await.unwrap();
    eventually("the last beat is too old", || async {
        let old = "select count(*) from request_records
            where state = 'in_progress' and heartbeat_at < clock_timestamp() - interval '3 s'";
        database.count(old).await == 1
    })
    .await;
    go_on.send_replace(true);

    assert_lost(&database, &run.await.unwrap()).await;
    let (fence, attempts, state, _) = database.standing(key).await;
    assert_eq!((fence, attempts, state.as_str()), (1, 1, "failed"));
    assert_eq!(client.chat_until_answered(key, "c1", "hello").await.status, 200);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_run_that_beats_is_left_alone() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let gate = held(&provider);
    let nodes = [
        TestNode::start(&database, &provider, lively()).await,
        TestNode::start(&database, &provider, lively()).await,
    ];
    let client = nodes[0].client("t1").await;
    let key = Uuid::new_v4();
    let run = spawn_chat(&client, key, "c1");
    provider.until_requests(1).await;
    database.age_epoch().await;
    // It has run for an hour; what counts is the last beat.
    let hour = "update request_records set claimed_at = claimed_at - interval '1 hour',
        first_claimed_at = first_claimed_at - interval '1 hour'";
    database.execute(hour).await;
    for node in [&nodes[1], &nodes[0], &nodes[1]] {
        let told = client.at(node.address()).chat(key, "c1", "hello").await;
        assert_eq!((told.status, told.error().as_str()), (409, "in_progress"));
        // It has had more than its time, so the next look may come soon.
        assert!(told.json()["retry_after_ms"].as_u64().unwrap() <= 5_000);
    }
    gate.open();
    assert_eq!(run.await.unwrap().status, 200);
    assert_eq!(provider.count(), 1);
    assert_eq!(database.standing(key).await, (1, 1, "committed".into(), None));
    for node in nodes {
        assert!(node.shut_down().await);
    }
}
