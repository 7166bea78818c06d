//! How far days reach ahead, what should have gone and what the keeper could not do are metrics: each
//! moves with its fault and rests without it.

use std::collections::BTreeMap;

use chrono::Days;
use oncekey::store::partition_name;
use uuid::Uuid;

use crate::support::node::{assert_clean, new_key};
use crate::support::process::ProcessNode;
use crate::support::provider::ScriptedProvider;
use crate::support::{Client, TestDatabase, eventually};

const RUNWAY: &str = "oncekey_partition_runway_days ";
const OVERDUE: &str = "oncekey_partition_overdue_days ";

/// The partition of so many days from today.
fn day_on(days: u64) -> String {
    partition_name(chrono::Utc::now().date_naive() + Days::new(days))
}

/// A day that has been over for so many days less one, without anything in it.
async fn old_day(database: &TestDatabase, days: u64) -> String {
    let day = chrono::Utc::now().date_naive() - Days::new(days);
    let (name, next) = (partition_name(day), day.succ_opt().unwrap());
    database
        .execute(&format!(
            "create table {name} partition of request_records for values from ('{day}') to ('{next}')"
        ))
        .await;
    name
}

async fn is_gone(database: &TestDatabase, table: &str) -> bool {
    database.count(&format!("select count(*) from pg_class where relname = '{table}'")).await == 0
}

/// Failures by what failed, those of none left out; all kinds are known from the start.
async fn failures(node: &ProcessNode) -> BTreeMap<String, f64> {
    let all = node.metrics("oncekey_keeper_failures_total{").await;
    let named = all.into_iter().map(|(series, value)| {
        let what = series.split('"').nth(1).unwrap().to_owned();
        (what, value)
    });
    let named: BTreeMap<_, _> = named.collect();
    for what in
        ["make", "look", "drop", "keys", "forget", "retention", "captures", "round", "claim"]
    {
        assert!(named.contains_key(what), "{what} in {named:?}");
    }
    named.into_iter().filter(|(_, value)| *value > 0.0).collect()
}

/// The keeper's first round has come as far as the keys, whose clearing is the last that it tells.
async fn first_round(node: &ProcessNode) {
    node.until_event("keys_cleared", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_fault_the_runway_is_whole_and_nothing_is_overdue_or_counted() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let old = old_day(&database, 5).await;
    let node = ProcessNode::on(&database, &provider, &[]).await;
    first_round(&node).await;
    assert!(is_gone(&database, &old).await);
    assert_eq!(node.metric(RUNWAY).await, Some(3.0));
    assert_eq!(node.metric(OVERDUE).await, Some(0.0));
    assert_eq!(failures(&node).await, BTreeMap::new());
    assert_eq!(node.events("partitions_failed").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_cannot_be_made_shortens_the_runway_and_holds_up_nothing_else() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let old = old_day(&database, 5).await;
    // Somebody's table has the name.
    database.execute(&format!("create table {} (other int)", day_on(2))).await;
    let node = ProcessNode::on(&database, &provider, &[]).await;
    let kept = |line: &serde_json::Value| line["part"] == "make";
    node.until_event("partitions_failed", kept).await;
    assert_eq!(node.metric(RUNWAY).await, Some(1.0));
    let counted = failures(&node).await;
    assert!(counted["make"] >= 1.0 && counted.len() == 1, "{counted:?}");
    // Old days go all the same.
    assert!(is_gone(&database, &old).await);
    assert_eq!(node.metric(OVERDUE).await, Some(0.0));
    assert_eq!(node.events("keys_cleared").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_a_forgotten_reader_keeps_is_overdue() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let old = old_day(&database, 5).await;
    let mut reader = database.pool.begin().await.unwrap();
    sqlx::query("select count(*) from request_records").execute(&mut *reader).await.unwrap();
    let node = ProcessNode::on(&database, &provider, &[]).await;
    let waits = node.until_event("partition_waits", |_| true).await;
    assert_eq!(waits["table"], old.as_str());
    // It could have gone a day after its end, by the retention; that is three days and this morning.
    let overdue = node.metric(OVERDUE).await.unwrap();
    assert!((3.0..5.0).contains(&overdue), "{overdue}");
    assert_eq!(node.metric(RUNWAY).await, Some(3.0), "days are made meanwhile");
    assert_eq!(failures(&node).await, BTreeMap::new(), "to wait is no failure");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_today_that_cannot_be_made_is_our_fault_and_stores_nothing() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let node = ProcessNode::on(&database, &provider, &[]).await;
    let store = database.store();
    let client = Client::new(node.address, &new_key(&store, "t1", "client", None).await);
    first_round(&node).await;
    let today = day_on(0);
    database.execute(&format!("drop table {today}; create table {today} (other int)")).await;

    let key = Uuid::new_v4();
    let told = client.chat(key, "c1", "hello").await;
    assert_eq!((told.status, told.error().as_str()), (503, "database_unavailable"));
    assert_eq!(told.json()["retryable"], true);
    assert!(told.header("retry-after").is_some());
    assert_eq!(client.get("/readyz").await.status, 503);
    assert_eq!(failures(&node).await["claim"], 1.0);
    assert_eq!(node.events("partitions_failed").len(), 1, "that is what an operator looks for");
    let stored = "select (select count(*) from request_keys) + (select count(*) from conversations)
        + (select count(*) from outbox)";
    assert_eq!(database.count(stored).await, 0);
    assert_eq!(provider.count(), 0);

    database.execute(&format!("drop table {today}")).await;
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    eventually("it is ready", || async { client.get("/readyz").await.status == 200 }).await;
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_clean(&store).await;
}
