//! Clients that go away and sockets that fall silent cost the pool nothing: no connection comes back
//! inside somebody's transaction, none is lost, and nobody waits for ever.

use std::time::Duration;

use chrono::TimeDelta;
use oncekey::faults::Point;
use sqlx::Connection;
use uuid::Uuid;

use crate::support::behind_proxy::BehindProxy;
use crate::support::clock::TickingClock;
use crate::support::node::{NodeOptions, assert_clean, new_key};
use crate::support::process::ProcessNode;
use crate::support::provider::ScriptedProvider;
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Client, TestDatabase, eventually};

const OURS: &str = "datname = current_database() and application_name = 'oncekey'";

/// So many sessions of the pool do something at once: each is held by a lock of the test's.
async fn assert_capacity(database: &TestDatabase, client: &Client, size: usize) {
    let mut locker = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let mut lock = locker.begin().await.unwrap();
    sqlx::raw_sql("lock table api_keys in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let asked: Vec<_> = (0..size + 2)
        .map(|number| {
            let client = client.clone();
            let conversation = format!("capacity-{number}");
            tokio::spawn(async move { client.chat(Uuid::new_v4(), &conversation, "hi").await })
        })
        .collect();
    let held =
        format!("select count(*) from pg_stat_activity where {OURS} and wait_event_type = 'Lock'");
    eventually("every connection of the pool is in use", || async {
        database.count(&held).await == i64::try_from(size).unwrap()
    })
    .await;
    lock.rollback().await.unwrap();
    for answer in asked {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_that_go_away_leave_nothing_behind() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let proxy = Proxy::start(Target::Unix(database.socket())).await;
    let through = database.url_through(proxy.address.port());
    let node = ProcessNode::on(
        &database,
        &provider,
        &[
            ("DATABASE_URL", &through),
            ("ONCEKEY_DATABASE_URL_DIRECT", &database.url),
            ("ONCEKEY_DATABASE__POOL", "2"),
        ],
    )
    .await;
    let store = database.store();
    let client = Client::new(node.address, &new_key(&store, "t1", "client", None).await);
    assert_eq!(client.chat(Uuid::new_v4(), "before", "hi").await.status, 200);

    proxy.set(Mode::DelayReplies(Duration::from_millis(200)));
    let gone: Vec<_> = (0..200u64)
        .map(|number| {
            let client = client.clone();
            // From 50 to 250 ms, spread so that neighbours differ.
            let patience = Duration::from_millis(50 + (number * 37) % 200);
            tokio::spawn(async move {
                let conversation = format!("gone-{number}");
                let asked = client.try_chat(Uuid::new_v4(), &conversation, "hi");
                tokio::time::timeout(patience, asked).await.is_err()
            })
        })
        .collect();
    let mut left = 0;
    for gone in gone {
        left += usize::from(gone.await.unwrap());
    }
    assert!(left > 150, "only {left} clients went away");

    proxy.set(Mode::Pass);
    let all: Vec<_> = (0..20)
        .map(|number| {
            let client = client.clone();
            let conversation = format!("normal-{number}");
            tokio::spawn(async move { client.chat(Uuid::new_v4(), &conversation, "hi").await })
        })
        .collect();
    for answer in all {
        assert_eq!(answer.await.unwrap().content(), "Answer to message 1: hi");
    }
    let normal = |table: &str, column: &str| {
        format!("select count(distinct {column}) from {table} where {column} like 'normal-%'")
    };
    assert_eq!(database.count(&normal("turns", "conversation_id")).await, 20);
    assert_eq!(database.count(&normal("outbox", "aggregateid")).await, 20);
    database.until_settled().await;
    let (operations, receipts, events) = database.outcomes().await;
    assert_eq!((operations, receipts), (events, events));
    assert!(operations >= 21);
    assert_clean(&store).await;

    let stuck =
        format!("select count(*) from pg_stat_activity where {OURS} and state like 'idle in%'");
    eventually("no session idles in a transaction", || async { database.count(&stuck).await == 0 })
        .await;
    assert_capacity(&database, &client, 2).await;
    let poisoned: Vec<_> = node
        .raw_log()
        .into_iter()
        .filter(|line| line.contains("25P02") || line.contains("25P01") || line.contains("panic"))
        .collect();
    assert!(poisoned.is_empty(), "{poisoned:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_falls_silent_costs_a_request_and_no_place() {
    let clock = TickingClock::start(TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let scene = BehindProxy::start(2, options).await;
    assert_capacity(&scene.database, &scene.client, 2).await;
    let before = scene.provider.count();

    // Both connections of the pool, without a word to either end.
    scene.proxy.silence();
    let (client, key) = (scene.client.clone(), Uuid::new_v4());
    let answer =
        clock.hurry(tokio::spawn(async move { client.chat(key, "c1", "hello").await })).await;
    assert_eq!((answer.status, answer.error().as_str()), (503, "database_unavailable"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(scene.provider.count(), before);

    // The other one is in doubt now: it is asked, and replaced.
    let client = scene.client.clone();
    let answer =
        clock.hurry(tokio::spawn(async move { client.chat(key, "c1", "hello").await })).await;
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert_eq!(scene.provider.count(), before + 1);
    assert_capacity(&scene.database, &scene.client, 2).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_on_a_socket_that_falls_silent_is_looked_up_and_written() {
    let clock = TickingClock::start(TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let scene = BehindProxy::start(2, options).await;
    scene.at(Point::BeforeCommit, Proxy::silence);
    let (client, key) = (scene.client.clone(), Uuid::new_v4());
    let answer =
        clock.hurry(tokio::spawn(async move { client.chat(key, "c1", "hello").await })).await;
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert!(scene.trap.sprung());
    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.database.outcomes().await, (1, 1, 1));
    assert_capacity(&scene.database, &scene.client, 2).await;
    scene.end().await;
}
