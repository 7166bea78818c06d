//! A process that is killed at any step of an operation: the same request at another node ends in one
//! durable outcome, and no later than the dead process's lock is seen to be free. The 60 s of silence
//! are for processes that are frozen or cut off.

use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::node::{NodeOptions, TestNode};
use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply};
use crate::support::{Client, Pair};

const FAULTS: (&str, &str) = ("ONCEKEY_FAULTS", "on");

/// Kills node A when its operation has come to this point, and asks node B until it answers.
async fn killed_at(point: &str) -> (Pair, Answer) {
    let variable = format!("ONCEKEY_FAULT_{}", point.to_uppercase());
    let mut pair = Pair::start(&[], &[FAULTS, (&variable, "hang")]).await;
    let asked = pair.ask_a();
    pair.a.until_event("fault", |line| line["point"] == point).await;
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err(), "a killed process answers nobody");
    let answer = pair.answer_of_b().await;
    pair.assert_one_outcome(&answer).await;
    (pair, answer)
}

/// Node B took the one run of node A over because its owner was gone, long before its silence meant
/// anything.
async fn assert_taken_over(pair: &Pair) {
    pair.b.until_event("node_dead", |_| true).await;
    let takeovers = pair.b.events("taken_over");
    assert_eq!(takeovers.len(), 1, "{takeovers:?}");
    assert_eq!(takeovers[0]["why"], "OwnerGone");
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    // The first beat of the dead run was its claim, or later.
    let soon = "select count(*) from request_records
        where claimed_at - first_claimed_at < interval '60 s'";
    assert_eq!(pair.database.count(soon).await, 1, "it was not the silence that decided");
    assert_eq!(pair.b.events("abandoned").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_claim_nothing_is_left_to_take_over() {
    let (pair, answer) = killed_at("before_claim").await;
    assert!(!answer.replayed());
    assert_eq!(pair.provider.count(), 1);
    assert_eq!(pair.fence_and_attempts().await, (1, 1));
    assert_eq!(pair.b.events("taken_over").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_claim_alone() {
    let (pair, _) = killed_at("after_claim").await;
    assert_eq!(pair.provider.count(), 1);
    assert_taken_over(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_call() {
    let (pair, _) = killed_at("before_call").await;
    assert_eq!(pair.provider.count(), 1);
    assert_taken_over(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_answer_in_hand() {
    let (pair, _) = killed_at("after_call").await;
    assert_eq!(pair.provider.count(), 2);
    assert_taken_over(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_commit() {
    let (pair, _) = killed_at("before_commit").await;
    assert_eq!(pair.provider.count(), 2);
    assert_taken_over(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_commit_and_before_the_reply_the_outcome_is_replayed() {
    let (pair, answer) = killed_at("after_commit").await;
    assert!(answer.replayed());
    assert_eq!(pair.provider.count(), 1);
    assert_eq!(pair.fence_and_attempts().await, (1, 1));
    assert_eq!(pair.b.events("taken_over").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn during_the_call() {
    let mut pair = Pair::start(&[], &[]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    let alive = pair.ask_b().await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());

    let answer = pair.answer_of_b().await;
    assert_eq!(pair.provider.count(), 2);
    assert_taken_over(&pair).await;
    pair.assert_one_outcome(&answer).await;
    // What the dead run had called is not known here any more; the record shows the takeover.
    assert_eq!(pair.database.count("select count(*) from provider_calls").await, 1);
}

/// Brings node A's commit to a stop inside its one statement, behind a lock of the test's own on the
/// conversation, and kills node A there. The lock and the session of the commit.
async fn killed_inside_the_commit(
    pair: &mut Pair,
) -> (sqlx::Transaction<'static, sqlx::Postgres>, i64) {
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    let mut lock = pair.database.pool.begin().await.unwrap();
    sqlx::query("select from conversations for update").execute(&mut *lock).await.unwrap();
    gate.open();
    let session = pair.database.until_waits_for_lock("commit.chat").await;
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());
    (lock, session)
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_commit_that_lands_after_all() {
    let mut pair = Pair::start(&[], &[]).await;
    let (lock, _) = killed_inside_the_commit(&mut pair).await;
    // The server has the whole statement and does not know that nobody waits for it. Node B is about
    // to take the run over, and waits behind it.
    let (key, client) = (pair.key, pair.at_b.clone());
    let asked =
        tokio::spawn(async move { client.chat_until_answered(key, CONVERSATION, MESSAGE).await });
    pair.database.until_waits_for_lock("record.lock").await;
    lock.rollback().await.unwrap();
    let answer = asked.await.unwrap();
    assert!(answer.replayed(), "judged again under the lock, the run had ended well");
    assert_eq!(pair.provider.count(), 1);
    assert_eq!(pair.fence_and_attempts().await, (1, 1));
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_commit_that_is_undone() {
    let mut pair = Pair::start(&[], &[]).await;
    let (lock, session) = killed_inside_the_commit(&mut pair).await;
    pair.database.execute(&format!("select pg_terminate_backend({session})")).await;
    lock.rollback().await.unwrap();
    let answer = pair.answer_of_b().await;
    assert_eq!(pair.provider.count(), 2);
    assert_taken_over(&pair).await;
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_started_again_finds_its_former_self_dead() {
    let mut pair = Pair::start(&[], &[FAULTS, ("ONCEKEY_FAULT_AFTER_CALL", "hang")]).await;
    let asked = pair.ask_a();
    pair.a.until_event("fault", |_| true).await;
    // Nobody else is there to see it.
    pair.b.kill().await;
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());
    pair.b = ProcessNode::on(&pair.database, &pair.provider, &[]).await;
    pair.at_b = pair.at_b.at(pair.b.address);
    let answer = pair.answer_of_b().await;
    assert_eq!(pair.provider.count(), 2);
    assert_taken_over(&pair).await;
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_frees_its_conversation_for_others() {
    let mut pair = Pair::start(&[], &[FAULTS, ("ONCEKEY_FAULT_BEFORE_COMMIT", "hang")]).await;
    let asked = pair.ask_a();
    pair.a.until_event("fault", |_| true).await;
    let other = Uuid::new_v4();
    let busy = pair.at_b.chat(other, CONVERSATION, "another question").await;
    assert_eq!((busy.status, busy.error().as_str()), (409, "conversation_busy"));
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());

    let answer = pair.at_b.chat_until_answered(other, CONVERSATION, "another question").await;
    assert_eq!(answer.status, 200);
    // The first question comes back and builds on the second one's answer.
    pair.answer_of_b().await;
    let asked = pair.provider.requests();
    assert_eq!(asked.last().unwrap().messages().len(), 3);
    assert_eq!(pair.database.outcomes().await, (2, 2, 2));
    crate::support::node::assert_clean(&pair.store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_kills_its_process_is_given_up() {
    let two_runs = ("ONCEKEY_RETRY__MAX_RUNS", "2");
    let hang = ("ONCEKEY_FAULT_BEFORE_CALL", "hang");
    let mut pair = Pair::start(&[two_runs, FAULTS, hang], &[]).await;
    let third = NodeOptions::default().set(two_runs.0, two_runs.1);
    let third = TestNode::start(&pair.database, &pair.provider, third).await;

    let asked = pair.ask_a();
    pair.a.until_event("fault", |_| true).await;
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());
    let (key, client) = (pair.key, pair.at_b.clone());
    let asked = tokio::spawn(async move { until_no_answer(&client, key).await });
    pair.b.until_event("fault", |_| true).await;
    pair.b.kill().await;
    asked.await.unwrap();

    let client = pair.at_a.at(third.address());
    let answer = client.chat_until_answered(pair.key, CONVERSATION, MESSAGE).await;
    assert_eq!((answer.status, answer.error().as_str()), (422, "gave_up"));
    let again = client.chat(pair.key, CONVERSATION, MESSAGE).await;
    assert!(again.replayed());
    assert_eq!(again.bytes, answer.bytes);
    assert_eq!(pair.provider.count(), 0);
    assert_eq!(pair.database.outcomes().await, (0, 0, 0));
    crate::support::node::assert_clean(&pair.store).await;
    assert!(third.shut_down().await);
}

/// Asks for as long as there are answers.
async fn until_no_answer(client: &Client, key: Uuid) {
    while let Ok(answer) = client.try_chat(key, CONVERSATION, MESSAGE).await {
        assert_eq!(answer.error(), "in_progress");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
