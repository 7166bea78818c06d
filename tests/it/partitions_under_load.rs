//! Days are made and dropped while claims go on and somebody reads the records for long: no arrival waits
//! for the reader, and no run is taken for dead meanwhile.

use std::path::Path;
use std::sync::Arc;

use chrono::Days;
use oncekey::store::partition_name;
use sqlx::{Postgres, Transaction};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::process::{Ended, run};
use crate::support::provider::{ScriptedProvider, patiently};
use crate::support::{Client, TestDatabase, eventually};

/// Clients that ask one thing after the other, each in a conversation of its own.
struct Load {
    answered: watch::Receiver<usize>,
    stop: watch::Sender<bool>,
    askers: JoinSet<()>,
}

impl Load {
    fn begin(clients: impl IntoIterator<Item = Client>) -> Self {
        let (answered, count) = watch::channel(0);
        let answered = Arc::new(answered);
        let stop = watch::Sender::new(false);
        let mut askers = JoinSet::new();
        for (number, client) in clients.into_iter().enumerate() {
            let (answered, stopped) = (answered.clone(), stop.subscribe());
            askers.spawn(async move {
                while !*stopped.borrow() {
                    let conversation = format!("load{number}");
                    let answer = client.chat(Uuid::new_v4(), &conversation, "hello").await;
                    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
                    answered.send_modify(|answered| *answered += 1);
                }
            });
        }
        Self { answered: count, stop, askers }
    }

    /// Waits until so many more are answered than now, or an asker has failed.
    async fn goes_on(&mut self, more: usize) {
        let before = *self.answered.borrow_and_update();
        let more = self.answered.wait_for(|answered| *answered >= before + more);
        tokio::select! {
            seen = patiently("answers", more) => drop(seen.unwrap()),
            ended = self.askers.join_next() => panic!("an asker ended: {ended:?}"),
        }
    }

    /// How many were answered in all.
    async fn end(mut self) -> usize {
        self.stop.send_replace(true);
        while let Some(asker) = patiently("the last answers", self.askers.join_next()).await {
            asker.unwrap();
        }
        *self.answered.borrow()
    }
}

async fn partitions(url: String, action: &'static str) -> Ended {
    let variables = [("DATABASE_URL".to_owned(), url)];
    run(Path::new("/"), &["partitions", action], &variables).await
}

/// Somebody who counts the records and forgets to end the transaction.
async fn reader(database: &TestDatabase) -> Transaction<'static, Postgres> {
    let mut reader = database.pool.begin().await.unwrap();
    sqlx::query("select count(*) from request_records").execute(&mut *reader).await.unwrap();
    reader
}

/// A node whose keeper has made its first round, with clients.
async fn serving(database: &TestDatabase) -> (ScriptedProvider, TestNode, [Client; 4]) {
    let provider = ScriptedProvider::start().await;
    // Cleared away at the end of that round.
    database
        .execute("insert into request_keys values ('t1', gen_random_uuid(), '2020-02-29')")
        .await;
    let node = TestNode::start(database, &provider, NodeOptions::default()).await;
    eventually("the keeper has cleared old keys away", || async {
        database.count("select count(*) from request_keys").await == 0
    })
    .await;
    let client = node.client("t1").await;
    (provider, node, [client.clone(), client.clone(), client.clone(), client])
}

/// Nobody's run was taken over, and each operation has its one outcome.
async fn assert_each_ran_once(database: &TestDatabase, provider: &ScriptedProvider, count: usize) {
    assert_eq!(provider.count(), count);
    let count = i64::try_from(count).unwrap();
    assert_eq!(database.outcomes().await, (count, count, count));
    let again = "select count(*) from request_records where fence > 1 or attempts > 1";
    assert_eq!(database.count(again).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_go_on_while_a_reader_keeps_an_old_day_and_days_are_made() {
    let database = TestDatabase::new().await;
    let (provider, node, clients) = serving(&database).await;
    let today = chrono::Utc::now().date_naive();
    let (old, after) = (today - Days::new(5), today - Days::new(4));
    let (name, tomorrow) = (partition_name(old), partition_name(today + Days::new(1)));
    database
        .execute(&format!(
            "create table {name} partition of request_records for values from ('{old}') to ('{after}');
            drop table {tomorrow}"
        ))
        .await;

    let mut load = Load::begin(clients);
    load.goes_on(10).await;
    let reader = reader(&database).await;
    let dropping = tokio::spawn(partitions(database.url.clone(), "drop"));
    let half = "select count(*) from pg_inherits where inhdetachpending";
    eventually("the old day is half detached", || async { database.count(half).await == 1 }).await;
    load.goes_on(20).await;
    let ensured = partitions(database.url.clone(), "ensure").await;
    assert!(ensured.stdout.contains(&format!("made {tomorrow}")), "{}", ensured.stdout);
    load.goes_on(20).await;
    assert!(!dropping.is_finished(), "all of that with the reader still there");
    reader.commit().await.unwrap();
    let dropped = patiently("the drop", dropping).await.unwrap();
    assert_eq!(dropped.code, Some(0), "{}{}", dropped.stdout, dropped.stderr);
    assert!(dropped.stdout.contains(&format!("dropped {name}")), "{}", dropped.stdout);
    load.goes_on(10).await;

    let answered = load.end().await;
    assert_each_ran_once(&database, &provider, answered).await;
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_today_is_made_by_arrivals_behind_a_reader() {
    let database = TestDatabase::new().await;
    let (provider, node, clients) = serving(&database).await;
    let today = partition_name(chrono::Utc::now().date_naive());
    database.execute(&format!("drop table {today}")).await;
    let reader = reader(&database).await;
    let mut load = Load::begin(clients);
    load.goes_on(20).await;
    reader.commit().await.unwrap();
    let answered = load.end().await;
    assert_each_ran_once(&database, &provider, answered).await;
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}
