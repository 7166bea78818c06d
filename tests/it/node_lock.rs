//! A living node whose lock session is cut off under it takes its lock back before anybody believes
//! that it is dead; one that cannot is replaced, and finds out.

use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::provider::{Action, Gate, Reply};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Pair, TestDatabase, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_session_that_is_terminated_costs_no_run() {
    let pair = Pair::start(&[], &[]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    let node = pair.database.node_at(pair.a.address).await;
    for _ in 0..5 {
        let session = pair.database.lock_session(node).await;
        assert_ne!(session, 0);
        pair.database.execute(&format!("select pg_terminate_backend({session})")).await;
        eventually("the node has its lock back", || async {
            ![0, session].contains(&pair.database.lock_session(node).await)
        })
        .await;
        let alive = pair.ask_b().await;
        assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    }
    gate.open();
    let answer = asked.await.unwrap().unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(pair.provider.count(), 1);
    assert_eq!(pair.fence_and_attempts().await, (1, 1));
    pair.assert_one_outcome(&answer).await;
    assert_eq!(pair.database.node_at(pair.a.address).await, node, "it kept its id");
    assert_eq!(pair.b.events("node_dead").len(), 0);
    assert_eq!(pair.b.events("taken_over").len(), 0);
    assert_eq!(pair.a.events("fenced_off").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_take_its_lock_back_is_replaced_and_goes_on_under_a_new_id() {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(Target::Unix(database.socket())).await;
    let direct = database.url_through(proxy.address.port());
    let pair = Pair::on(database, &[], &[("ONCEKEY_DATABASE_URL_DIRECT", &direct)]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    let node = pair.database.node_at(pair.a.address).await;

    proxy.set(Mode::Refuse);
    proxy.cut();
    let answer = pair.answer_of_b().await;
    assert_eq!(pair.b.events("taken_over")[0]["why"], "OwnerGone");
    let dead = pair.b.until_event("node_dead", |_| true).await;
    assert_eq!(dead["node"], *node.to_string());

    // Alive as it is, it may not write: its run is another's.
    proxy.set(Mode::Pass);
    let fenced = pair.a.until_event("fenced_off", |_| true).await;
    assert_eq!(fenced["stop"], "Lost");
    assert_eq!(asked.await.unwrap().unwrap().bytes, answer.bytes, "its client hears the outcome");
    eventually("it is registered anew", || async {
        let id = pair.database.node_at(pair.a.address).await;
        id > node && pair.database.lock_session(id).await != 0
    })
    .await;
    pair.assert_one_outcome(&answer).await;

    // What it claims from now on is not taken for a dead node's.
    let (gate, key) = (Gate::closed(), uuid::Uuid::new_v4());
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let client = pair.at_a.clone();
    let asked = tokio::spawn(async move { client.chat(key, CONVERSATION, MESSAGE).await });
    gate.until_reached(1).await;
    let alive = pair.at_b.chat(key, CONVERSATION, MESSAGE).await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    gate.open();
    assert_eq!(asked.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_young_incarnation_of_the_database_believes_no_free_lock() {
    let mut pair = Pair::start(&[], &[]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate)));
    let asked = pair.ask_a();
    pair.provider.until_requests(1).await;
    // As after a crash recovery: the lock is free, and nobody has had the time to take it back.
    pair.database.execute("update server_epoch set first_seen = clock_timestamp()").await;
    let node = pair.database.node_at(pair.a.address).await;
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());
    eventually("the lock is free", || async { pair.database.lock_session(node).await == 0 }).await;
    pair.database.age_heartbeats().await;
    // Node B looks three times a second; each of its looks would do.
    let looks = "select count(*) from nodes where suspected_at is not null or dead_at is not null";
    for _ in 0..40 {
        let alive = pair.ask_b().await;
        assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
        assert_eq!(pair.database.count(looks).await, 0);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    pair.database.age_epoch().await;
    let answer = pair.answer_of_b().await;
    pair.assert_one_outcome(&answer).await;
}
