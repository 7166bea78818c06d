//! `oncekey partitions` beside a service that goes on: nobody waits for the DBA, whoever reads.

use std::path::Path;

use oncekey::store::partition_name;
use sqlx::{Postgres, Transaction};
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::process::{Ended, run};
use crate::support::provider::{ScriptedProvider, patiently};
use crate::support::{Client, TestDatabase, eventually};

/// A day that is long over, as `days` before today.
async fn old_day(database: &TestDatabase, days: i64) -> String {
    let day = chrono::Utc::now().date_naive() - chrono::TimeDelta::days(days);
    let (name, next) = (partition_name(day), day.succ_opt().unwrap());
    database
        .execute(&format!(
            "create table {name} partition of request_records for values from ('{day}') to ('{next}')"
        ))
        .await;
    name
}

/// Moves everything that was committed to an old day, as if it had happened then.
async fn age(database: &TestDatabase, days: i64) {
    let ages = format!("interval '{days} days'");
    database
        .execute(&format!(
            "update request_records set day = day - {days}, completed_at = completed_at - {ages},
                claimed_at = claimed_at - {ages}, first_claimed_at = first_claimed_at - {ages};
            update request_keys set day = day - {days};
            update usage_receipts set record_day = record_day - {days}, created_at = created_at - {ages}"
        ))
        .await;
}

async fn partitions(database: &TestDatabase, arguments: &[&str], also: &[(&str, &str)]) -> Ended {
    let mut variables = vec![("DATABASE_URL".to_owned(), database.url.clone())];
    variables.extend(also.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let arguments = [&["partitions"], arguments].concat();
    run(Path::new("/"), &arguments, &variables).await
}

fn in_background(database: &TestDatabase, arguments: &'static [&'static str]) -> JoinHandle<Ended> {
    let database = TestDatabase {
        name: database.name.clone(),
        url: database.url.clone(),
        pool: database.pool.clone(),
    };
    tokio::spawn(async move { partitions(&database, arguments, &[]).await })
}

/// Somebody who counts the records and forgets to end the transaction.
async fn reader(database: &TestDatabase) -> Transaction<'static, Postgres> {
    let mut reader = database.pool.begin().await.unwrap();
    sqlx::query("select count(*) from request_records").execute(&mut *reader).await.unwrap();
    reader
}

async fn half_detached(database: &TestDatabase) -> bool {
    database.count("select count(*) from pg_inherits where inhdetachpending").await == 1
}

async fn has_table(database: &TestDatabase, name: &str) -> bool {
    database.count(&format!("select count(*) from pg_class where relname = '{name}'")).await == 1
}

/// A node whose keeper has made its first round, and a client.
async fn serving() -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    // Cleared away at the end of that round.
    database
        .execute("insert into request_keys values ('t1', gen_random_uuid(), '2020-02-29')")
        .await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    eventually("the keeper has cleared old keys away", || async {
        database.count("select count(*) from request_keys").await == 0
    })
    .await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_long_reader_requests_go_on_while_days_are_made_and_dropped() {
    let (database, provider, node, client) = serving().await;
    let table = old_day(&database, 5).await;
    let old = client.chat(Uuid::new_v4(), "old", "hello").await;
    assert_eq!(old.status, 200);
    age(&database, 5).await;
    let tomorrow = partition_name(chrono::Utc::now().date_naive().succ_opt().unwrap());
    database.execute(&format!("drop table {tomorrow}")).await;

    let reader = reader(&database).await;
    let dropping = in_background(&database, &["drop"]);
    eventually("the old day is half detached", || half_detached(&database)).await;
    let ensured = partitions(&database, &["ensure"], &[]).await;
    assert_eq!(ensured.code, Some(0), "{}", ensured.stderr);
    assert!(ensured.stdout.contains(&format!("made {tomorrow}")), "{}", ensured.stdout);
    let mut arrivals = JoinSet::new();
    for number in 0..20 {
        let client = client.clone();
        let conversation = format!("c{number}");
        arrivals.spawn(async move { client.chat(Uuid::new_v4(), &conversation, "hello").await });
    }
    for answer in patiently("20 answers", arrivals.join_all()).await {
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    }
    // All of that with the reader still there.
    assert!(!dropping.is_finished() && has_table(&database, &table).await);
    reader.commit().await.unwrap();
    let dropped = patiently("the drop", dropping).await.unwrap();
    assert_eq!(dropped.code, Some(0), "{}{}", dropped.stdout, dropped.stderr);
    assert!(dropped.stdout.contains(&format!("dropped {table}")), "{}", dropped.stdout);
    assert!(!has_table(&database, &table).await);
    assert_eq!(provider.count(), 21);
    assert_eq!(database.outcomes().await, (21, 21, 21));
    assert_eq!(database.count("select count(*) from request_keys").await, 20);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_that_was_cancelled_is_finished_by_the_next_one() {
    let database = TestDatabase::new().await;
    let table = old_day(&database, 5).await;
    let reader = reader(&database).await;
    let dropping = in_background(&database, &["drop"]);
    eventually("the old day is half detached", || half_detached(&database)).await;
    // As a DBA does; it may hit the detaching or, a moment later, the second form of it.
    eventually("the drop was cancelled", || async {
        let cancel = "select count(*) from pg_stat_activity, lateral pg_cancel_backend(pid)
            where datname = current_database() and pid <> pg_backend_pid()
                and query like 'alter table request_records detach%' and wait_event_type = 'Lock'";
        database.count(cancel).await;
        dropping.is_finished()
    })
    .await;
    let cancelled = dropping.await.unwrap();
    assert_eq!(cancelled.code, Some(1), "{}", cancelled.stdout);
    assert!(cancelled.stderr.contains("run this again"), "{}", cancelled.stderr);
    assert_eq!(cancelled.stderr.lines().count(), 1);
    assert!(half_detached(&database).await);

    let again = in_background(&database, &["drop"]);
    reader.commit().await.unwrap();
    let dropped = patiently("the drop", again).await.unwrap();
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    assert!(dropped.stdout.contains(&format!("dropped {table}")), "{}", dropped.stdout);
    assert!(!has_table(&database, &table).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_drops_at_once_drop_each_day_once() {
    let database = TestDatabase::new().await;
    for days in 3..9 {
        old_day(&database, days).await;
    }
    let both = [in_background(&database, &["drop"]), in_background(&database, &["drop"])];
    let mut printed = String::new();
    for one in both {
        let ended = patiently("a drop", one).await.unwrap();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        printed += &ended.stdout;
    }
    assert_eq!(printed.matches("dropped request_records_").count(), 6, "{printed}");
    assert_eq!(
        database
            .count(
                "select count(*) from pg_inherits i join pg_class c
        on c.oid = i.inhparent where c.relname = 'request_records'"
            )
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_together_let_old_days_go() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let tables = [old_day(&database, 5).await, old_day(&database, 4).await];
    let (one, other) = tokio::join!(
        TestNode::start(&database, &provider, NodeOptions::default()),
        TestNode::start(&database, &provider, NodeOptions::default()),
    );
    for table in &tables {
        eventually("the old day is gone", || async { !has_table(&database, table).await }).await;
    }
    let client = one.client("t1").await;
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert_clean(one.store()).await;
    assert!(one.shut_down().await && other.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_while_a_reader_is_in_the_way_stops_at_once() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let table = old_day(&database, 5).await;
    let reader = reader(&database).await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    eventually("the old day is half detached", || half_detached(&database)).await;
    assert!(patiently("the node to stop", node.shut_down()).await);
    reader.commit().await.unwrap();
    let dropped = partitions(&database, &["drop"], &[]).await;
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    assert!(!has_table(&database, &table).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_and_dry_run_show_what_drop_would_do() {
    let (database, _provider, node, client) = serving().await;
    let empty = old_day(&database, 6).await;
    let held = old_day(&database, 5).await;
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    age(&database, 5).await;
    // Yesterday's night, completed inside the retention.
    database.execute("update request_records set completed_at = clock_timestamp()").await;

    let listed = partitions(&database, &["list"], &[]).await;
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let line = |name: &str| {
        let lines = listed.stdout.lines().find(|line| line.starts_with(name));
        lines.unwrap_or_else(|| panic!("{name} in {}", listed.stdout)).to_owned()
    };
    let today = partition_name(chrono::Utc::now().date_naive());
    assert!(line("partition ").ends_with("may be dropped"));
    assert!(
        line(&empty).ends_with("-  -                     yes") || line(&empty).ends_with("yes")
    );
    assert!(line(&held).contains("no: an answer in it is kept until "));
    assert!(line(&today).ends_with("no: it is today's"));

    let before = database.count("select count(*) from pg_inherits").await;
    let dry = partitions(&database, &["drop", "--dry-run"], &[]).await;
    assert_eq!(dry.code, Some(0));
    assert!(dry.stdout.contains(&format!(
        "alter table request_records detach partition {empty} concurrently;\ndrop table {empty};\n"
    )));
    assert!(dry.stdout.contains(&format!("-- {held} stays: ")), "{}", dry.stdout);
    let statements = dry.stdout.lines().filter(|line| !line.starts_with("--")).count();
    assert_eq!(statements, 2);
    assert_eq!(database.count("select count(*) from pg_inherits").await, before);

    // Days younger than asked for stay, and so do answers inside the retention, whatever is asked.
    let kept = partitions(&database, &["drop", "--older-than", "30d"], &[]).await;
    assert!(kept.stdout.contains(&format!("kept {empty}: it is too young until ")));
    let dropped = partitions(&database, &["drop", "--older-than", "1h"], &[]).await;
    assert!(dropped.stdout.contains(&format!("kept {held}: an answer in it is kept until ")));
    assert!(dropped.stdout.contains(&format!("dropped {empty}")));
    assert!(has_table(&database, &held).await && !has_table(&database, &empty).await);
    assert_eq!(partitions(&database, &["drop", "--older-than", "soon"], &[]).await.code, Some(2));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retention_is_the_configured_one_and_time_can_be_moved_for_tests() {
    let (database, _provider, node, client) = serving().await;
    let key = Uuid::new_v4();
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    assert!(node.shut_down().await);
    let today = partition_name(chrono::Utc::now().date_naive());
    let faults = ("ONCEKEY_FAULTS", "on");
    let later = ("ONCEKEY_FAULT_CLOCK_OFFSET", "3days");
    let week = ("ONCEKEY_IDEMPOTENCY__RETENTION", "7d");
    assert_eq!(partitions(&database, &["drop"], &[later]).await.code, Some(2));
    let kept = partitions(&database, &["drop"], &[faults, later, week]).await;
    assert!(kept.stdout.contains(&format!("kept {today}: it is too young")), "{}", kept.stdout);
    let kept = partitions(&database, &["drop", "--older-than", "1d"], &[faults, later, week]).await;
    assert!(kept.stdout.contains(&format!("kept {today}: an answer in it")), "{}", kept.stdout);
    let dropped = partitions(&database, &["drop"], &[faults, later]).await;
    assert!(dropped.stdout.contains(&format!("dropped {today}")), "{}", dropped.stdout);
    assert!(dropped.stdout.contains("1 keys and 0 derived keys cleared away"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_tomorrow_is_a_warning_and_a_missing_today_is_made() {
    let (database, provider, node, client) = serving().await;
    let day = chrono::Utc::now().date_naive();
    let drop_day = |days| {
        let name = partition_name(day + chrono::Days::new(days));
        let database = &database;
        async move { database.execute(&format!("drop table {name}")).await }
    };
    assert!(client.get("/readyz").await.json()["warnings"].is_null());
    drop_day(2).await;
    assert!(client.get("/readyz").await.json()["warnings"].is_null(), "tomorrow is there");
    drop_day(1).await;
    let ready = client.get("/readyz").await;
    assert_eq!(ready.status, 200);
    assert!(ready.json()["warnings"][0].as_str().unwrap().contains("tomorrow"));
    drop_day(0).await;
    assert_eq!(client.get("/readyz").await.status, 503);
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    let ready = client.get("/readyz").await;
    assert_eq!(ready.status, 200);
    assert!(ready.json()["warnings"][0].as_str().unwrap().contains("tomorrow"));
    assert_eq!(partitions(&database, &["ensure"], &[]).await.code, Some(0));
    assert!(client.get("/readyz").await.json()["warnings"].is_null());
    assert_eq!(provider.count(), 1);
    assert!(node.shut_down().await);
}
