//! Slow calls hold no connection, and a pool that is used up starves no run: arrivals are told to come
//! back, and the heartbeat has a connection of its own.

use std::time::Duration;

use chrono::TimeDelta;
use sqlx::Connection;
use uuid::Uuid;

use crate::support::clock::TickingClock;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{TestDatabase, eventually};

const OURS: &str = "datname = current_database() and application_name = 'oncekey'";

#[tokio::test(flavor = "multi_thread")]
async fn fifty_slow_calls_run_on_a_pool_of_five() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let options = NodeOptions::default().set("ONCEKEY_DATABASE__POOL", "5");
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    let gate = Gate::closed();
    provider.reply_times(51, &Reply::normal().before_head(Action::Hold(gate.clone())));
    let ask = |number: usize| {
        let client = client.clone();
        let conversation = format!("c{number}");
        tokio::spawn(async move { client.chat(Uuid::new_v4(), &conversation, "hello").await })
    };
    let mut asked: Vec<_> = (0..50).map(ask).collect();
    gate.until_reached(50).await;

    // Nothing of the fifty is in the way of one more.
    asked.push(ask(50));
    gate.until_reached(51).await;
    let running = "select count(*) from request_records where state = 'in_progress'";
    assert_eq!(database.count(running).await, 51);
    eventually("no transaction is open", || async {
        let open = format!(
            "select count(*) from pg_stat_activity where {OURS} and xact_start is not null"
        );
        database.count(&open).await == 0
    })
    .await;
    // The keeper's session of the node's start may not have ended yet.
    let sessions = format!("select count(*) from pg_stat_activity where {OURS}");
    eventually("five, and the node's own", || async { database.count(&sessions).await <= 6 }).await;

    gate.open();
    for answer in asked {
        assert_eq!(answer.await.unwrap().content(), "Answer to message 1: hello");
    }
    assert_eq!(provider.count(), 51);
    assert_eq!(database.outcomes().await, (51, 51, 51));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_used_up_starves_no_run() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let clock = TickingClock::start(TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() }
        .set("ONCEKEY_DATABASE__POOL", "2");
    let node = TestNode::start(&database, &provider, options).await;
    let other = TestNode::start(&database, &provider, NodeOptions::default()).await;
    database.age_epoch().await;
    let client = node.client("t1").await;
    assert_eq!(client.chat(Uuid::new_v4(), "stuck", "hello").await.status, 200);
    let (gate, key) = (Gate::closed(), Uuid::new_v4());
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let ask = |key: Uuid, conversation: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.chat(key, conversation, "hello").await })
    };
    let run = ask(key, "c1");
    gate.until_reached(1).await;

    // Both connections of the pool wait for a row of the test's.
    let mut locker = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let mut lock = locker.begin().await.unwrap();
    sqlx::raw_sql("select 1 from conversations where conversation_id = 'stuck' for update")
        .execute(&mut *lock)
        .await
        .unwrap();
    let stuck = [ask(Uuid::new_v4(), "stuck"), ask(Uuid::new_v4(), "stuck")];
    let held =
        format!("select count(*) from pg_stat_activity where {OURS} and wait_event_type = 'Lock'");
    eventually("the pool is used up", || async { database.count(&held).await == 2 }).await;

    let refused = ask(Uuid::new_v4(), "c2");
    clock.jump(Duration::from_secs(4));
    assert!(!refused.is_finished());
    let refused = clock.hurry(refused).await;
    assert_eq!((refused.status, refused.error().as_str()), (503, "database_unavailable"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(provider.count(), 2, "nothing was asked for it");
    assert_eq!(database.count(&held).await, 2, "the pool is still used up");

    // The run beats all the same, so that to the other node it is alive.
    database.age_heartbeats().await;
    clock.jump(Duration::from_secs(10));
    let fresh = "select count(*) from request_records
        where state = 'in_progress' and heartbeat_at > clock_timestamp() - interval '1 minute'";
    eventually("the run has beaten", || async { database.count(fresh).await == 1 }).await;
    let alive = client.at(other.address()).chat(key, "c1", "hello").await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));

    lock.rollback().await.unwrap();
    gate.open();
    assert_eq!(run.await.unwrap().content(), "Answer to message 1: hello");
    for answer in stuck {
        let status = answer.await.unwrap().status;
        assert!([200, 409, 503].contains(&status), "{status}");
    }
    let record = format!(
        "select count(*) from request_records where idempotency_key = '{key}'
            and state = 'committed' and fence = 1 and attempts = 1"
    );
    assert_eq!(database.count(&record).await, 1, "nobody took it over");
    database.until_settled().await;
    assert_clean(other.store()).await;
    assert!(node.shut_down().await);
    assert!(other.shut_down().await);
}
