//! What the database refuses at the commit: a conflict is repeated from memory, anything else ends the
//! run as a fault of ours, with its calls kept.

use serde_json::Value;
use sqlx::Connection;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase, eventually};

/// From now on the first `times` receipts are refused with this SQLSTATE.
async fn refuse_receipts(database: &TestDatabase, times: u32, sqlstate: &str) {
    database
        .execute(&format!(
            "create sequence refusals;
            create function refuse() returns trigger language plpgsql as $$
            begin
                if nextval('refusals') <= {times} then
                    raise exception 'refused by the test' using errcode = '{sqlstate}';
                end if;
                return new;
            end $$;
            create trigger refuse before insert on usage_receipts
                for each row execute function refuse()"
        ))
        .await;
}

async fn refusals(database: &TestDatabase) -> i64 {
    database.count("select last_value from refusals").await
}

/// A conflict so often is met by repeating the transaction: within one go, and beyond it.
async fn conflict(times: u32, sqlstate: &str) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    refuse_receipts(&database, times, sqlstate).await;

    let key = Uuid::new_v4();
    let answer = client.chat(key, "c1", "hello").await;
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert_eq!(refusals(&database).await, i64::from(times) + 1, "tries");
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_eq!(client.chat(key, "c1", "hello").await.bytes, answer.bytes);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serialization_failure_repeats_the_transaction() {
    conflict(2, "40001").await;
}

/// A full disk: nothing was written, which is looked up each time, and the answer is kept meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_for_a_while_is_outlasted() {
    conflict(3, "53100").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicts_that_go_on_are_outlasted() {
    conflict(13, "40P01").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_victim_of_a_deadlock_repeats_the_transaction() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = ProcessNode::on(&database, &provider, &[]).await;
    let store = database.store();
    let client = Client::new(node.address, &new_key(&store, "t1", "client", None).await);
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "one").await.status, 200);
    let (gate, key) = (Gate::closed(), Uuid::new_v4());
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = client.clone();
    let answer = tokio::spawn(async move { asked.chat(key, "c1", "two").await });
    gate.until_reached(1).await;

    // The other way round than the commit: conversation, then record. This session never notices.
    let mut rival = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let its_pid = "select pg_backend_pid()";
    let its_pid: i32 = sqlx::query_scalar(its_pid).fetch_one(&mut rival).await.unwrap();
    let mut locks = rival.begin().await.unwrap();
    sqlx::raw_sql(
        "set local deadlock_timeout = '10min';
        select 1 from conversations where conversation_id = 'c1' for update",
    )
    .execute(&mut *locks)
    .await
    .unwrap();
    gate.open();
    let waiting = format!(
        "select count(*) from pg_stat_activity where {its_pid} = any(pg_blocking_pids(pid))
            and query like '/* commit.chat */%'"
    );
    eventually("the commit waits for the conversation", || async {
        database.count(&waiting).await == 1
    })
    .await;
    // Answered only once the commit has given its record up.
    sqlx::raw_sql("select 1 from request_records where state = 'in_progress' for update")
        .execute(&mut *locks)
        .await
        .unwrap();
    eventually("the commit waits again, for the record", || async {
        database.count(&waiting).await == 1
    })
    .await;
    locks.rollback().await.unwrap();

    assert_eq!(answer.await.unwrap().content(), "Answer to message 3: two");
    // More than once where the commit was faster at the record than the rival that waited for it.
    let repeated = node.events("transaction_repeated");
    let deadlock = |line: &Value| line["error"].as_str().unwrap().contains("deadlock");
    assert!(!repeated.is_empty() && repeated.iter().all(deadlock), "{repeated:?}");
    assert_eq!(provider.count(), 2);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert_clean(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_other_refusal_ends_the_run_and_frees_the_conversation() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    refuse_receipts(&database, 1, "22000").await;

    let key = Uuid::new_v4();
    let answer = client.chat(key, "c1", "hello").await;
    assert_eq!((answer.status, answer.error().as_str()), (500, "internal"));
    assert_eq!(answer.json()["retryable"], false);
    assert!(!String::from_utf8_lossy(&answer.bytes).contains("refused by the test"));
    assert_eq!(database.outcomes().await, (0, 0, 0));
    let passing = "select count(*) from request_records
        where state = 'failed' and not failure_final and failure_kind = 'internal'";
    assert_eq!(database.count(passing).await, 1);
    let free = "select count(*) from conversations where active_key is null and head_seq = 0";
    assert_eq!(database.count(free).await, 1);
    let wasted = "select count(*) from provider_calls where not counted and output_tokens > 0";
    assert_eq!(database.count(wasted).await, 1, "the paid call is kept");
    assert_clean(node.store()).await;

    // A person who asks again, with the same key or another, is answered.
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hi").await.status, 200);
    assert_eq!(client.chat(key, "c1", "hello").await.content(), "Answer to message 3: hello");
    assert_eq!(provider.count(), 3);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}
