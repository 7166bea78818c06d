//! A process that stands still: it keeps its lock, so only its silence says that it is gone. When it
//! wakes it can neither beat nor commit, whatever became of its run meanwhile.

use serde_json::Value;

use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::provider::{Action, Gate, Reply};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Answer, Pair, TestDatabase, eventually};

/// So long that the sweep, which looks a dozen times within it, does not come between a test and the
/// silence that it makes up.
const LONG: (&str, &str) = ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "2h");
/// For real silence.
const SHORT: [(&str, &str); 2] =
    [("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "1s"), ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "3s")];

/// Held before the answer's head.
fn held() -> (Reply, Gate) {
    let gate = Gate::closed();
    (Reply::normal().before_head(Action::Hold(gate.clone())), gate)
}

/// Freezes node A while its call is held at the provider, and shows that it counts as alive until it
/// has been silent for too long.
async fn frozen_in_its_call(pair: &Pair) {
    pair.provider.until_requests(1).await;
    pair.a.signal("STOP").await;
    for _ in 0..3 {
        let alive = pair.ask_b().await;
        assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
        assert!(alive.json()["retry_after_ms"].as_u64().unwrap() >= 500);
    }
    pair.database.age_heartbeats().await;
}

async fn assert_lock_is_held(pair: &Pair) {
    let lost = "select count(*) from nodes where suspected_at is not null or dead_at is not null";
    assert_eq!(pair.database.count(lost).await, 0, "a frozen process keeps its lock");
}

fn assert_silence_decided(pair: &Pair) {
    let takeovers = pair.b.events("taken_over");
    assert_eq!(takeovers.len(), 1, "{takeovers:?}");
    assert_eq!(takeovers[0]["why"], "Silent");
}

fn is_problem(answer: &Answer) {
    assert_eq!((answer.status, answer.error().as_str()), (503, "run_lost"));
    assert_eq!(answer.json()["retryable"], Value::Bool(true));
    assert!(answer.header("retry-after").is_some());
}

/// What became of the operation meanwhile is the sleeper's client's answer too.
fn is_the_outcome(of_the_sleeper: &Answer, answer: &Answer) {
    assert!(of_the_sleeper.replayed());
    assert_eq!(of_the_sleeper.bytes, answer.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_wakes_after_the_other_commit() {
    let pair = Pair::start(&[LONG], &[]).await;
    let (reply, gate) = held();
    pair.provider.reply(reply);
    let asked = pair.ask_a();
    frozen_in_its_call(&pair).await;
    let answer = pair.answer_of_b().await;
    assert!(!answer.replayed());
    assert_lock_is_held(&pair).await;
    assert_silence_decided(&pair);

    gate.open();
    pair.a.signal("CONT").await;
    pair.a.until_event("fenced_off", |_| true).await;
    is_the_outcome(&asked.await.unwrap().unwrap(), &answer);
    assert_eq!(pair.a.events("committed").len(), 0);
    assert_eq!(pair.provider.count(), 2);
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_wakes_before_the_other_commit() {
    let pair = Pair::start(&[LONG], &[]).await;
    let (first, gate_of_a) = held();
    let (second, gate_of_b) = held();
    pair.provider.reply(first);
    pair.provider.reply(second);
    let asked = pair.ask_a();
    frozen_in_its_call(&pair).await;
    let (key, client) = (pair.key, pair.at_b.clone());
    let taken = tokio::spawn(async move { client.chat(key, CONVERSATION, MESSAGE).await });
    pair.provider.until_requests(2).await;

    gate_of_a.open();
    pair.a.signal("CONT").await;
    pair.a.until_event("fenced_off", |_| true).await;
    is_problem(&asked.await.unwrap().unwrap());
    assert_eq!(pair.database.outcomes().await, (0, 0, 0), "the sleeper commits nothing");

    gate_of_b.open();
    let answer = taken.await.unwrap();
    assert_eq!(answer.status, 200);
    assert_lock_is_held(&pair).await;
    assert_silence_decided(&pair);
    assert_eq!(pair.provider.count(), 2);
    pair.assert_one_outcome(&answer).await;
    // The call that came to nothing was paid for all the same, and stands there.
    let wasted =
        "select count(*) from provider_calls where not counted and failure_kind is not null";
    assert_eq!(pair.database.count(wasted).await, 1);
    assert_eq!(pair.database.count("select count(*) from provider_calls").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn its_late_beat_lands_nowhere_and_ends_its_call() {
    let beats = [("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "300ms")];
    let pair = Pair::start(&[LONG], &beats).await;
    let (first, _never) = held();
    let (second, gate_of_b) = held();
    pair.provider.reply(first);
    pair.provider.reply(second);
    let asked = pair.ask_a();
    frozen_in_its_call(&pair).await;
    let (key, client) = (pair.key, pair.at_b.clone());
    let taken = tokio::spawn(async move { client.chat(key, CONVERSATION, MESSAGE).await });
    pair.provider.until_requests(2).await;
    pair.database.execute("create table seen as select heartbeat_at from request_records").await;

    pair.a.signal("CONT").await;
    let fenced = pair.a.until_event("fenced_off", |_| true).await;
    assert_eq!(fenced["stop"], "Lost");
    is_problem(&asked.await.unwrap().unwrap());
    pair.provider.until_client_gone(1).await;
    let same = "select count(*) from request_records r join seen using (heartbeat_at)";
    assert_eq!(pair.database.count(same).await, 1, "the beat was for another run");

    gate_of_b.open();
    let answer = taken.await.unwrap();
    assert_eq!(answer.status, 200);
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_trust_itself_after_too_long_a_silence() {
    // Real silence, on the clocks of both: the sleeper need not even ask the database.
    let pair = Pair::start(&SHORT, &[]).await;
    let (reply, _never) = held();
    pair.provider.reply(reply);
    let asked = pair.ask_a();
    pair.provider.until_requests(1).await;
    pair.a.signal("STOP").await;
    // Taken over, or ended by the sweep and claimed again.
    let answer = pair.answer_of_b().await;
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.a.signal("CONT").await;
    pair.a.until_event("fenced_off", |_| true).await;
    is_the_outcome(&asked.await.unwrap().unwrap(), &answer);
    pair.provider.until_client_gone(1).await;
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_beats_do_not_get_through_stops_before_it_can_be_replaced() {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(Target::Unix(database.socket())).await;
    let direct = database.url_through(proxy.address.port());
    let cut_off = [SHORT[0], SHORT[1], ("ONCEKEY_DATABASE_URL_DIRECT", &direct)];
    let pair = Pair::on(database, &[], &cut_off).await;
    let (reply, _never) = held();
    pair.provider.reply(reply);
    let asked = pair.ask_a();
    pair.provider.until_requests(1).await;
    proxy.set(Mode::Freeze);

    let fenced = pair.a.until_event("fenced_off", |_| true).await;
    assert_eq!(fenced["stop"], "Untrusted");
    pair.provider.until_client_gone(1).await;
    is_problem(&asked.await.unwrap().unwrap());
    assert_lock_is_held(&pair).await;
    // Its word still gets through, where its beats do not: the next arrival need not wait.
    let answer = pair.ask_b().await;
    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_takes_its_own_silent_run_over_fences_itself() {
    // The node's own beat must not repair what the test makes old.
    let slow = ("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "10m");
    let mut pair = Pair::start(&[LONG, slow], &[]).await;
    pair.at_b = pair.at_a.clone();
    let (reply, gate) = held();
    pair.provider.reply(reply);
    let asked = pair.ask_a();
    pair.provider.until_requests(1).await;
    let alive = pair.ask_b().await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    pair.database.age_heartbeats().await;
    let answer = pair.ask_b().await;
    assert_eq!((answer.status, answer.replayed()), (200, false));

    gate.open();
    is_the_outcome(&asked.await.unwrap().unwrap(), &answer);
    assert_eq!(pair.a.events("fenced_off").len(), 1);
    assert_eq!(pair.provider.count(), 2);
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_database_forgot_cannot_be_committed_under_the_same_fence() {
    // What a crash of the database does to a claim that it had not written down yet.
    let pair = Pair::start(&[LONG], &[]).await;
    let (first, gate_of_a) = held();
    let (second, gate_of_b) = held();
    pair.provider.reply(first);
    pair.provider.reply(second);
    let asked = pair.ask_a();
    pair.provider.until_requests(1).await;
    pair.a.signal("STOP").await;
    pair.database
        .execute("delete from request_records; delete from request_keys; delete from conversations")
        .await;
    let (key, client) = (pair.key, pair.at_b.clone());
    let claimed = tokio::spawn(async move { client.chat(key, CONVERSATION, MESSAGE).await });
    pair.provider.until_requests(2).await;
    assert_eq!(pair.fence_and_attempts().await, (1, 1), "both hold fence 1");

    gate_of_a.open();
    pair.a.signal("CONT").await;
    pair.a.until_event("fenced_off", |_| true).await;
    is_problem(&asked.await.unwrap().unwrap());
    assert_eq!(pair.database.outcomes().await, (0, 0, 0));
    gate_of_b.open();
    let answer = claimed.await.unwrap();
    assert_eq!(answer.status, 200);
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_nobody_asks_for_again_is_ended_by_the_sweep() {
    let pair = Pair::start(&SHORT, &[]).await;
    let (reply, gate) = held();
    pair.provider.reply(reply);
    let asked = pair.ask_a();
    pair.provider.until_requests(1).await;
    pair.a.signal("STOP").await;
    let run = pair.b.until_event("abandoned", |_| true).await;
    assert!(run["request_id"].is_string() && run["tenant_id"] == "t1");
    eventually("the conversation is free", || async {
        pair.database.count("select count(*) from conversations where active_key is null").await
            == 1
    })
    .await;
    let record = pair.at_b.get(&format!("/v1/requests/{}", pair.key)).await.json();
    assert_eq!(record["state"], "failed");
    assert_eq!(record["failure"]["kind"], "abandoned");
    assert_eq!(record["failure"]["final"], false);

    gate.open();
    pair.a.signal("CONT").await;
    is_problem(&asked.await.unwrap().unwrap());
    let answer = pair.answer_of_b().await;
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.assert_one_outcome(&answer).await;
}
