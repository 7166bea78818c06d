//! Only the database's clock decides: a node whose own is wrong, or is set in the middle of a run, takes
//! nothing over and loses nothing, and the times inside keys are never read.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::{NoContext, Timestamp, Uuid};

use crate::support::clock::TickingClock;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

const TODAY: &str = "select count(*) from request_records r join request_keys k using (tenant_id, idempotency_key, day)
    where r.day = (clock_timestamp() at time zone 'UTC')::date
        and abs(extract(epoch from clock_timestamp() - r.first_claimed_at)) < 600";

async fn node_at(
    database: &TestDatabase,
    provider: &ScriptedProvider,
    clock: &TickingClock,
) -> TestNode {
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    TestNode::start(database, provider, options).await
}

async fn assert_alive(client: &Client, key: Uuid) {
    for _ in 0..3 {
        let alive = client.chat(key, "c1", "hello").await;
        assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
        let wait = alive.json()["retry_after_ms"].as_u64().unwrap();
        assert!((500..=10_000).contains(&wait), "{wait}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clocks_and_clocks_that_are_set_take_nothing_over() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let (right, fast) =
        (TickingClock::start(TimeDelta::zero()), TickingClock::start(TimeDelta::seconds(90)));
    let slow = TickingClock::start(TimeDelta::days(-3));
    let a = node_at(&database, &provider, &right).await;
    let b = node_at(&database, &provider, &fast).await;
    let c = node_at(&database, &provider, &slow).await;
    database.age_epoch().await;
    let at_a = a.client("t1").await;
    let (at_b, at_c) = (at_a.at(b.address()), at_a.at(c.address()));
    let (gate, key) = (Gate::closed(), Uuid::new_v4());
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let run = tokio::spawn({
        let client = at_a.clone();
        async move { client.chat(key, "c1", "hello").await }
    });
    gate.until_reached(1).await;

    assert_alive(&at_b, key).await;
    assert_alive(&at_c, key).await;
    right.step_date(TimeDelta::minutes(-2));
    assert_alive(&at_a, key).await;
    fast.step_date(TimeDelta::days(400));
    slow.step_date(TimeDelta::days(-400));
    assert_alive(&at_b, key).await;
    assert_alive(&at_c, key).await;
    right.step_date(TimeDelta::days(1));
    assert_alive(&at_a, key).await;

    gate.open();
    let answer = run.await.unwrap();
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert_eq!(at_b.chat(key, "c1", "hello").await.bytes, answer.bytes);
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_eq!(database.count(TODAY).await, 1);
    assert_clean(a.store()).await;
    for node in [a, b, c] {
        assert!(node.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn days_and_runs_are_the_databases_whatever_the_nodes_think() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    for (number, date) in ["1970-01-01T00:00:00Z", "2031-12-31T23:59:59Z"].into_iter().enumerate() {
        let clock = TickingClock::start_at(date.parse::<DateTime<Utc>>().unwrap());
        let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() }
            .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
        let node = TestNode::start(&database, &provider, options).await;
        let client = node.client("t1").await;
        let (conversation, key) = (format!("c{number}"), Uuid::new_v4());
        // A passing failure and a second claim, whose give-up rules look at times as well.
        provider.reply(Reply::file("529_overloaded.json"));
        assert_eq!(client.chat(key, &conversation, "hello").await.status, 503);
        assert_eq!(client.chat(key, &conversation, "hello").await.status, 200);
        let ready = client.get("/readyz").await;
        assert_eq!(ready.status, 200, "{}", String::from_utf8_lossy(&ready.bytes));
        assert_clean(node.store()).await;
        assert!(node.shut_down().await);
    }
    assert_eq!(database.count(TODAY).await, 2);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    let late = "select count(*) from usage_receipts
        where abs(extract(epoch from clock_timestamp() - created_at)) > 600
            or record_day <> (clock_timestamp() at time zone 'UTC')::date";
    assert_eq!(database.count(late).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_inside_a_key_is_never_read() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let dates = ["1970-01-01T00:00:00Z", "2030-06-01T12:00:00Z", "9999-12-31T23:59:59Z"];
    for (number, date) in dates.into_iter().enumerate() {
        let seconds = date.parse::<DateTime<Utc>>().unwrap().timestamp();
        let time = Timestamp::from_unix(NoContext, u64::try_from(seconds).unwrap(), 0);
        let (key, conversation) = (Uuid::new_v7(time), format!("c{number}"));
        let answer = client.chat(key, &conversation, "hello").await;
        assert_eq!(answer.status, 200, "{date}");
        assert_eq!(client.chat(key, &conversation, "hello").await.bytes, answer.bytes);
    }
    assert_eq!(database.count(TODAY).await, 3);
    assert_eq!(database.outcomes().await, (3, 3, 3));
    assert_eq!(provider.count(), 3);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}
