//! An answer of the database's that is lost on the way changes nothing: what was written counts once,
//! what was not is written again from memory, and the model is never called twice for it.

use std::time::Duration;

use oncekey::faults::Point;
use sqlx::Connection;
use uuid::Uuid;

use crate::support::behind_proxy::BehindProxy;
use crate::support::clock::TickingClock;
use crate::support::eventually;
use crate::support::node::NodeOptions;
use crate::support::provider::Reply;
use crate::support::proxy::Mode;

/// Prepares the statements of a chat on the pool's one connection, so that each is one round trip.
async fn warm(scene: &BehindProxy) {
    assert_eq!(scene.client.chat(Uuid::new_v4(), "warm", "hello").await.status, 200);
}

/// Sends a chat that goes on while the test meddles.
fn send(scene: &BehindProxy, key: Uuid) -> tokio::task::JoinHandle<crate::support::client::Answer> {
    let client = scene.client.clone();
    tokio::spawn(async move { client.chat(key, "c1", "hello").await })
}

async fn until_record_is(scene: &BehindProxy, key: Uuid, state: &str) {
    let sql = format!(
        "select count(*) from request_records where idempotency_key = '{key}' and state = '{state}'"
    );
    eventually(&format!("the record is {state}"), || async {
        scene.database.count(&sql).await == 1
    })
    .await;
}

/// One committed operation under `key`, beside the one that warmed the pool, after so many calls.
async fn assert_one_outcome(scene: &BehindProxy, key: Uuid, attempts: i64, calls: usize) {
    assert_eq!(scene.provider.count(), 1 + calls, "calls of the provider");
    assert_eq!(scene.database.outcomes().await, (2, 2, 2));
    let sql =
        format!("select attempts::bigint from request_records where idempotency_key = '{key}'");
    assert_eq!(scene.database.count(&sql).await, attempts, "attempts");
    assert!(scene.client.chat(key, "c1", "hello").await.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_the_commit_is_lost() {
    let scene = BehindProxy::start(1, NodeOptions::default()).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.at(Point::BeforeCommit, |proxy| proxy.set(Mode::SwallowReplies));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "committed").await;
    scene.proxy.until_swallowed(1).await;
    assert!(!answer.is_finished(), "nobody knows of the commit yet");
    scene.proxy.heal();

    let answer = answer.await.unwrap();
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert!(!answer.replayed(), "this arrival ran");
    assert_one_outcome(&scene, key, 1, 1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_written_again_from_memory() {
    let scene = BehindProxy::start(2, NodeOptions::default()).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.at(Point::BeforeCommit, |proxy| {
        proxy.set(Mode::Refuse);
        proxy.cut();
    });
    let answer = send(&scene, key);
    scene.proxy.until_refused(2).await;
    until_record_is(&scene, key, "in_progress").await;
    scene.proxy.heal();

    assert_eq!(answer.await.unwrap().status, 200);
    assert_one_outcome(&scene, key, 1, 1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_still_runs_on_the_server_is_recognised_as_ours() {
    let scene = BehindProxy::start(2, NodeOptions::default()).await;
    warm(&scene).await;
    let mut blocker = sqlx::PgConnection::connect(&scene.database.url).await.unwrap();
    let mut blocking = blocker.begin().await.unwrap();
    // The commit waits for this row of nobody's with its own record already written and locked.
    sqlx::raw_sql(
        "insert into turns (tenant_id, conversation_id, seq, turn_id, role, content, based_on_seq,
            operation_id, request_id)
        values ('t1', 'c1', 1, gen_random_uuid(), 'user', 'x', 0, gen_random_uuid(), gen_random_uuid())",
    )
    .execute(&mut *blocking)
    .await
    .unwrap();
    let key = Uuid::new_v4();
    let answer = send(&scene, key);
    let waiting = |count: i64| {
        let database = &scene.database;
        move || async move {
            let waits = "select count(*) from pg_stat_activity where datname = current_database()
                and wait_event_type = 'Lock' and query like '/* commit.chat */%'";
            database.count(waits).await == count
        }
    };
    eventually("the commit waits", waiting(1)).await;
    scene.proxy.cut();
    eventually("the repeated commit waits for the first", waiting(2)).await;
    until_record_is(&scene, key, "in_progress").await;
    blocking.rollback().await.unwrap();

    let answer = answer.await.unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    assert_one_outcome(&scene, key, 1, 1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stays_away_leaves_the_outcome_to_the_retry() {
    let clock = TickingClock::start(chrono::TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let scene = BehindProxy::start(1, options).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.at(Point::BeforeCommit, |proxy| proxy.set(Mode::SwallowReplies));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "committed").await;
    scene.proxy.until_swallowed(1).await;
    scene.proxy.set(Mode::Refuse);
    scene.proxy.cut();
    scene.proxy.until_refused(1).await;
    assert!(!answer.is_finished(), "the run still trusts its last beat");
    clock.jump(Duration::from_secs(3_600));

    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (503, "outcome_unknown"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.json()["retryable"], true);
    scene.proxy.heal();
    let again = scene.client.chat_until_answered(key, "c1", "hello").await;
    assert_eq!(again.content(), "Answer to message 1: hello");
    assert_one_outcome(&scene, key, 1, 1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_could_never_be_written_is_run_again_by_the_retry() {
    let clock = TickingClock::start(chrono::TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let scene = BehindProxy::start(1, options).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.at(Point::BeforeCommit, |proxy| {
        proxy.set(Mode::Refuse);
        proxy.cut();
    });
    let answer = send(&scene, key);
    scene.proxy.until_refused(1).await;
    clock.jump(Duration::from_secs(3_600));
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (503, "outcome_unknown"));
    scene.proxy.heal();

    // The record is silent from now on; its hour of silence is over at once.
    until_record_is(&scene, key, "in_progress").await;
    let still = scene.client.chat(key, "c1", "hello").await;
    assert_eq!((still.status, still.error().as_str()), (409, "in_progress"));
    scene
        .database
        .execute(
            "update request_records set heartbeat_at = heartbeat_at - interval '2 hours'
                where state = 'in_progress';
            update server_epoch set first_seen = first_seen - interval '1 day'",
        )
        .await;
    let again = scene.client.chat_until_answered(key, "c1", "hello").await;
    assert_eq!(again.content(), "Answer to message 1: hello");
    assert_one_outcome(&scene, key, 2, 2).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_claim_is_lost() {
    let scene = BehindProxy::start(1, NodeOptions::default()).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.at(Point::BeforeClaim, |proxy| proxy.set(Mode::SwallowReplies));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "in_progress").await;
    scene.proxy.until_swallowed(1).await;
    scene.proxy.heal();

    let answer = answer.await.unwrap();
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert_eq!(answer.header("x-request-id").unwrap(), answer.json()["request_id"]);
    assert_one_outcome(&scene, key, 1, 1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_heard_of_is_released_when_the_database_is_back() {
    let scene = BehindProxy::start(1, NodeOptions::default()).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.at(Point::BeforeClaim, |proxy| proxy.set(Mode::SwallowReplies));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "in_progress").await;
    scene.proxy.until_swallowed(1).await;
    scene.proxy.set(Mode::Refuse);
    scene.proxy.cut();
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (503, "database_unavailable"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(scene.provider.count(), 1);
    scene.proxy.heal();

    until_record_is(&scene, key, "failed").await;
    assert_eq!(scene.client.chat(key, "c1", "hello").await.content(), "Answer to message 1: hello");
    assert_one_outcome(&scene, key, 1, 1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_second_claim_is_lost() {
    let options = NodeOptions::default().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
    let scene = BehindProxy::start(1, options).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.provider.reply(Reply::file("529_overloaded.json"));
    assert_eq!(scene.client.chat(key, "c1", "hello").await.status, 503);
    until_record_is(&scene, key, "failed").await;
    scene.at(Point::BeforeClaim, |proxy| proxy.set(Mode::SwallowRepliesTo("COMMIT")));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "in_progress").await;
    scene.proxy.until_swallowed(1).await;
    scene.proxy.heal();

    assert_eq!(answer.await.unwrap().content(), "Answer to message 1: hello");
    assert_one_outcome(&scene, key, 2, 2).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_final_failure_is_lost() {
    let scene = BehindProxy::start(1, NodeOptions::default()).await;
    scene.provider.reply(Reply::file("400_context_anthropic.json"));
    assert_eq!(scene.client.chat(Uuid::new_v4(), "warm", "hello").await.status, 413);
    let key = Uuid::new_v4();
    scene.provider.reply(Reply::file("400_context_anthropic.json"));
    scene.at(Point::AfterCall, |proxy| proxy.set(Mode::SwallowReplies));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "failed").await;
    scene.proxy.until_swallowed(1).await;
    scene.proxy.heal();

    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (413, "too_large"));
    assert!(!answer.replayed());
    let again = scene.client.chat(key, "c1", "hello").await;
    assert!(again.replayed());
    assert_eq!(again.bytes, answer.bytes);
    assert_eq!(scene.provider.count(), 2);
    assert_eq!(scene.database.outcomes().await, (0, 0, 0));
    assert_eq!(scene.database.count("select count(*) from provider_calls").await, 2);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_passing_failure_is_lost() {
    let options = NodeOptions::default().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
    let scene = BehindProxy::start(1, options).await;
    warm(&scene).await;
    scene.provider.reply(Reply::file("529_overloaded.json"));
    assert_eq!(scene.client.chat(Uuid::new_v4(), "warm", "again").await.status, 503);
    let key = Uuid::new_v4();
    scene.provider.reply(Reply::file("529_overloaded.json"));
    scene.at(Point::AfterCall, |proxy| proxy.set(Mode::SwallowReplies));
    let answer = send(&scene, key);
    until_record_is(&scene, key, "failed").await;
    scene.proxy.until_swallowed(1).await;
    scene.proxy.heal();

    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (503, "provider_busy"));
    assert_eq!(scene.client.chat(key, "c1", "hello").await.content(), "Answer to message 1: hello");
    assert_one_outcome(&scene, key, 2, 3).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_written_once_the_database_is_back() {
    let clock = TickingClock::start(chrono::TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let scene = BehindProxy::start(1, options).await;
    warm(&scene).await;
    let key = Uuid::new_v4();
    scene.provider.reply(Reply::file("400_context_anthropic.json"));
    scene.at(Point::AfterCall, |proxy| {
        proxy.set(Mode::Refuse);
        proxy.cut();
    });
    let answer = send(&scene, key);
    // Half a minute of a database that starts anew.
    for _ in 0..30 {
        scene.proxy.until_refused(scene.proxy.refused() + 1).await;
        clock.jump(Duration::from_secs(1));
    }
    assert!(!answer.is_finished());
    scene.proxy.heal();
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().as_str()), (413, "too_large"));
    assert_eq!(scene.client.chat(key, "c1", "hello").await.bytes, answer.bytes);
    assert_eq!(scene.provider.count(), 2, "paid for once");
    scene.end().await;
}
