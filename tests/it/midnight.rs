//! A key is won once, on whichever side of midnight its requests arrive, and also where what stood
//! under it is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{NaiveTime, TimeDelta, Utc};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{arrival, chat_commit, store_at, won};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use oncekey::store::{ClaimOutcome, CommitOutcome, Store};

/// What brings a clock to ten minutes before the next midnight in UTC, and to five seconds behind
/// it. The first is further away than the second, so that no slow test lives to see its own midnight.
fn around_midnight() -> [Duration; 2] {
    let now = Utc::now();
    let today = now.date_naive().and_time(NaiveTime::MIN).and_utc();
    let mut midnight = today + TimeDelta::days(1);
    if midnight - now < TimeDelta::minutes(10) {
        midnight += TimeDelta::days(1);
    }
    [midnight - TimeDelta::minutes(10), midnight + TimeDelta::seconds(5)]
        .map(|moment| (moment - now).to_std().unwrap())
}

/// A store on each side, with partitions for both days.
async fn stores(database: &TestDatabase) -> [Store; 2] {
    let stores = around_midnight().map(|offset| store_at(database, offset));
    for store in &stores {
        store.ensure_partitions().await.unwrap();
    }
    stores
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_midnight_finds_the_run_from_before_it() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let [before, after] = around_midnight();
    let at = |clock_offset| NodeOptions { clock_offset, ..NodeOptions::default() };
    let before = TestNode::start(&database, &provider, at(before)).await;
    let after = TestNode::start(&database, &provider, at(after)).await;
    let client = before.client("t1").await;
    let later = client.at(after.address());
    let key = Uuid::new_v4();

    let run = tokio::spawn({
        let client = client.clone();
        async move { client.chat(key, "c1", "hello").await }
    });
    provider.until_requests(1).await;
    let told = later.chat(key, "c1", "hello").await;
    assert_eq!((told.status, told.error().as_str()), (409, "in_progress"));
    let busy = later.chat(Uuid::new_v4(), "c1", "another").await;
    assert_eq!((busy.status, busy.error().as_str()), (409, "conversation_busy"));
    gate.open();
    let answer = run.await.unwrap();
    assert_eq!(answer.status, 200);
    for client in [&later, &client] {
        let replay = client.chat(key, "c1", "hello").await;
        assert_eq!((replay.status, &replay.bytes), (200, &answer.bytes));
        assert!(replay.replayed());
    }
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));

    // A new operation of the new day lives in the next partition.
    assert_eq!(later.chat(Uuid::new_v4(), "c1", "next").await.status, 200);
    assert_eq!(database.count("select count(distinct day) from request_records").await, 2);
    assert_eq!(
        database.count("select (max(day) - min(day))::bigint from request_records").await,
        1
    );
    assert_eq!(database.count("select count(distinct record_day) from usage_receipts").await, 2);
    assert_clean(after.store()).await;
    assert!(before.shut_down().await && after.shut_down().await);
}

/// All keys from every task on both sides at once, each task in an order of its own. How often each
/// was won.
async fn race(stores: &[Store; 2], keys: &[Uuid]) -> BTreeMap<Uuid, usize> {
    const TASKS: usize = 8;
    let barrier = Arc::new(Barrier::new(TASKS));
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let store = stores[number % 2].clone();
        let barrier = barrier.clone();
        let mut keys = keys.to_vec();
        // Two tasks, one on each side, share a beginning, so that they meet at every key.
        let start = (number / 2) * keys.len() / TASKS;
        keys.rotate_left(start);
        // Of the later pairs one goes the other way: who loses a key is the slower one at the next, so that
        // else one side could win them all.
        if number >= TASKS / 2 && number % 2 == 1 {
            keys.reverse();
        }
        tasks.spawn(async move {
            // So that no side is still opening its connections while the other one runs through.
            let warm = Uuid::new_v4();
            won(&store, arrival(warm, &warm.to_string())).await;
            let mut won = Vec::new();
            barrier.wait().await;
            for key in keys {
                match store.claim(arrival(key, &key.to_string())).await.unwrap() {
                    ClaimOutcome::Won(claim) => won.push(claim.at.key),
                    ClaimOutcome::Exists(record) => assert_eq!(record.at.key, key),
                    other => panic!("{other:?}"),
                }
            }
            won
        });
    }
    let mut times = BTreeMap::new();
    for key in tasks.join_all().await.into_iter().flatten() {
        *times.entry(key).or_default() += 1;
    }
    times
}

/// The condition that a record is one of these keys'.
fn of(keys: &[Uuid]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
    format!("idempotency_key in ({})", keys.join(", "))
}

fn assert_each_once(keys: &[Uuid], won: &BTreeMap<Uuid, usize>) {
    let twice: Vec<_> = won.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{} of {} keys were won twice", twice.len(), keys.len());
    assert_eq!(won.len(), keys.len(), "every key was won");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_won_on_both_sides_of_midnight() {
    let database = TestDatabase::new().await;
    let stores = stores(&database).await;
    let keys: Vec<Uuid> = (0..250).map(|_| Uuid::new_v4()).collect();
    let won = race(&stores, &keys).await;
    assert_each_once(&keys, &won);
    let counted = |what: &str| format!("select {what} from request_records where {}", of(&keys));
    assert_eq!(database.count(&counted("count(distinct day)")).await, 2);
    assert_eq!(database.count(&counted("count(*)")).await, 250);
    assert_clean(&stores[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_a_record_is_moved_by_one_side_alone() {
    let database = TestDatabase::new().await;
    let stores = stores(&database).await;
    let keys: Vec<Uuid> = (0..250).map(|_| Uuid::new_v4()).collect();
    // As a dropped partition leaves them behind.
    sqlx::query(
        "insert into request_keys (tenant_id, idempotency_key, day)
        select 't1', key, current_date - 9 from unnest($1::uuid[]) key",
    )
    .bind(&keys)
    .execute(&database.pool)
    .await
    .unwrap();
    let won = race(&stores, &keys).await;
    assert_each_once(&keys, &won);
    let records = format!("select count(*) from request_records where {}", of(&keys));
    assert_eq!(database.count(&records).await, 250);
    assert_clean(&stores[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_from_before_midnight_commits_after_it() {
    let database = TestDatabase::new().await;
    let [before, after] = stores(&database).await;
    let claim = won(&before, arrival(Uuid::new_v4(), "c1")).await;
    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(after.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    let receipt = "select record_day::text from usage_receipts";
    assert_eq!(database.text(receipt).await, claim.at.day.to_string());
    let next = won(&after, arrival(Uuid::new_v4(), "c1")).await;
    assert_eq!(next.head_seq, 2);
    assert_eq!(next.at.day, claim.at.day.succ_opt().unwrap());
}
