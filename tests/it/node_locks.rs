//! A node is dead once its lock was found free in two looks a second apart, by a database that has
//! been up for long enough: never after one look, and never while it can still come back.

use uuid::Uuid;

use crate::support::direct::{arrival, living_store, register, store_at, taken_over, won};
use crate::support::{TestDatabase, eventually};
use oncekey::domain::ids::NodeId;
use oncekey::store::{NodeSession, Registration, Store};
use std::time::Duration;

/// A detector on a database that has been up for long, and another node.
async fn detector_and_node(database: &TestDatabase) -> (Store, NodeSession, NodeId, NodeSession) {
    let (store, detector) = living_store(database).await;
    let other = store_at(database, Duration::ZERO);
    let (node, session) = register(&other).await;
    (store, detector, node, session)
}

/// Ends a node's session and waits until the server has given its lock back.
async fn end(database: &TestDatabase, node: NodeId, session: NodeSession) {
    drop(session);
    eventually("the node's lock is free", || async {
        let held = format!(
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database
            where d.datname = current_database() and l.locktype = 'advisory' and l.objid = {node}"
        );
        database.count(&held).await == 0
    })
    .await;
}

async fn suspected(database: &TestDatabase) -> i64 {
    database.count("select count(*) from nodes where suspected_at is not null").await
}

/// As if the first of two looks had been longer ago than the second that must lie between.
async fn age_suspicion(database: &TestDatabase) {
    database.execute("update nodes set suspected_at = suspected_at - interval '1 s'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_is_death_only_in_a_second_look_a_second_later() {
    let database = TestDatabase::new().await;
    let (store, mut detector, node, session) = detector_and_node(&database).await;
    let own = store.node();
    assert_eq!(detector.detect_dead(own).await.unwrap(), []);
    assert_eq!(suspected(&database).await, 0);

    end(&database, node, session).await;
    assert_eq!(detector.detect_dead(own).await.unwrap(), []);
    assert_eq!(suspected(&database).await, 1);
    // Looks before the second is over do not add up, however slow this test is.
    let fresh = "update nodes set suspected_at = clock_timestamp() + interval '1 hour'
        where suspected_at is not null";
    for _ in 0..3 {
        database.execute(fresh).await;
        assert_eq!(detector.detect_dead(own).await.unwrap(), []);
    }
    database.execute("update nodes set suspected_at = suspected_at - interval '1 hour 1 s'").await;
    assert_eq!(detector.detect_dead(own).await.unwrap(), [node]);
    assert_eq!(database.count("select count(*) from nodes where dead_at is not null").await, 1);
    assert_eq!(detector.detect_dead(own).await.unwrap(), [], "told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_locks_again_between_two_looks_is_alive() {
    let database = TestDatabase::new().await;
    let (store, mut detector, node, session) = detector_and_node(&database).await;
    let own = store.node();
    // It registers again, as after a broken session.
    end(&database, node, session).await;
    detector.detect_dead(own).await.unwrap();
    age_suspicion(&database).await;
    let mut again = store.open_node_session().await.unwrap();
    assert_eq!(again.register(node, "").await.unwrap(), Registration::Registered);
    assert_eq!(suspected(&database).await, 0);
    assert_eq!(detector.detect_dead(own).await.unwrap(), []);

    // It has the lock back and has not said so yet: the look itself clears the suspicion.
    end(&database, node, again).await;
    detector.detect_dead(own).await.unwrap();
    age_suspicion(&database).await;
    let mut silent = store.open_node_session().await.unwrap();
    silent.hold_lock(node).await.unwrap();
    assert_eq!(detector.detect_dead(own).await.unwrap(), []);
    assert_eq!(suspected(&database).await, 0);

    // An older session of the node stands for it as well as a new one.
    let mut newer = store.open_node_session().await.unwrap();
    assert_eq!(newer.register(node, "").await.unwrap(), Registration::Registered);
    end(&database, node, silent).await;
    newer.hold_lock(node).await.unwrap();
    assert_eq!(detector.detect_dead(own).await.unwrap(), []);
    assert_eq!(suspected(&database).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_young_database_declares_nobody_dead() {
    let database = TestDatabase::new().await;
    let (store, mut detector, node, session) = detector_and_node(&database).await;
    let own = store.node();
    end(&database, node, session).await;
    let young = "insert into server_epoch values (true, clock_timestamp() - interval '11 s')
        on conflict (one) do update set first_seen = excluded.first_seen";
    let suspect = "update nodes set suspected_at = clock_timestamp() - interval '1 minute'
        where node_id <> ";
    for epoch in [young, "truncate server_epoch"] {
        database.execute(epoch).await;
        database.execute(&format!("{suspect}{own}")).await;
        for _ in 0..2 {
            assert_eq!(detector.detect_dead(own).await.unwrap(), [], "{epoch}");
            assert_eq!(suspected(&database).await, 0, "a look that says nothing is no first look");
        }
    }
    database.age_epoch().await;
    detector.detect_dead(own).await.unwrap();
    age_suspicion(&database).await;
    assert_eq!(detector.detect_dead(own).await.unwrap(), [node]);
}

#[tokio::test(flavor = "multi_thread")]
async fn detectors_neither_see_each_other_nor_themselves() {
    let database = TestDatabase::new().await;
    let (store, mut detector, node, session) = detector_and_node(&database).await;
    let own = store.node();
    end(&database, node, session).await;
    // Another detector in the middle of its look.
    let mut looking = database.pool.begin().await.unwrap();
    let shared = "select pg_try_advisory_xact_lock_shared($1, $2)";
    let locked: bool = sqlx::query_scalar(shared)
        .bind(0x6F6B_6E64)
        .bind(node.0)
        .fetch_one(&mut *looking)
        .await
        .unwrap();
    assert!(locked);
    detector.detect_dead(own).await.unwrap();
    assert_eq!(suspected(&database).await, 1);
    looking.rollback().await.unwrap();

    // A node that has lost its lock and looks before it has locked again.
    let mut unlocked = store.open_node_session().await.unwrap();
    end(&database, own, detector).await;
    age_suspicion(&database).await;
    assert_eq!(unlocked.detect_dead(own).await.unwrap(), [node]);
    assert_eq!(unlocked.own_standing(own).await.unwrap(), Some(Registration::Registered));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_is_for_ever_and_a_dead_nodes_runs_are_taken_over_at_once() {
    let database = TestDatabase::new().await;
    let (store, mut detector, _, _session) = detector_and_node(&database).await;
    let other = store_at(&database, Duration::ZERO);
    let (node, session) = register(&other).await;
    let run = won(&other, arrival(Uuid::new_v4(), "c1")).await;
    end(&database, node, session).await;
    detector.detect_dead(store.node()).await.unwrap();
    age_suspicion(&database).await;
    assert_eq!(detector.detect_dead(store.node()).await.unwrap(), [node]);

    let mut back = other.open_node_session().await.unwrap();
    assert_eq!(back.register(node, "").await.unwrap(), Registration::Dead);
    assert_eq!(back.own_standing(node).await.unwrap(), Some(Registration::Dead));
    assert_eq!(taken_over(&store, &run).await.guard.fence.0, 2);
    // An id is never given twice, also where the table of nodes was emptied.
    database.execute("truncate nodes").await;
    assert_eq!(back.own_standing(node).await.unwrap(), None);
    assert!(store.new_node_id().await.unwrap() > node);
}
