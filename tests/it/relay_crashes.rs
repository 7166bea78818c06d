//! A relay that dies, freezes or is slow to mark: everything is delivered all the same, and a repeat is
//! known by its id.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oncekey::faults::{Faults, Point};

use crate::support::TestDatabase;
use crate::support::hook::{Hook, Take};
use crate::support::node::NodeOptions;
use crate::support::outbox::{assert_in_order, put, relay, relay_to, sink, variables};
use crate::support::process::ProcessNode;
use crate::support::provider::Gate;

async fn process(database: &TestDatabase, hook: &Hook, also: &[(&str, &str)]) -> ProcessNode {
    let mut all = variables(&[sink(hook)]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    all.extend(also.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    ProcessNode::start(all).await
}

const HANG: [(&str, &str); 2] =
    [("ONCEKEY_FAULTS", "on"), ("ONCEKEY_FAULT_AFTER_DELIVERY", "hang:1")];

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_delivery_and_mark_the_event_comes_again_as_the_same() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let mut dying = process(&database, &hook, &HANG).await;
    let id = put(&database, "c1", 1).await;
    dying.until_event("fault", |line| line["point"] == "after_delivery").await;
    assert_eq!(hook.taken().len(), 1);
    assert_eq!(database.count("select count(*) from outbox where published_at is null").await, 1);
    dying.kill().await;
    let node = relay_to(&database, &hook).await;
    database.until_published(1).await;
    let taken = hook.taken();
    assert_eq!(taken.len(), 2, "at least once");
    assert!(taken.iter().all(|one| one.id() == id.to_string()));
    assert_eq!(taken[0].body, taken[1].body, "byte for byte");
    assert_eq!(taken[0].header("webhook-id"), taken[1].header("webhook-id"));
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_fault_it_comes_once_and_no_fault_is_told() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let node = process(&database, &hook, &[]).await;
    put(&database, "c1", 1).await;
    database.until_published(1).await;
    assert_eq!(hook.deliveries().len(), 1);
    let told: Vec<_> = ["fault", "faults_on", "delivery_failed", "sink_down", "relay_failed"]
        .into_iter()
        .flat_map(|event| node.events(event))
        .collect();
    assert!(told.is_empty(), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_was_killed_or_frozen_frees_its_shares_within_seconds() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let mut killed = process(&database, &hook, &[]).await;
    let frozen = process(&database, &hook, &[]).await;
    database.until_held_by(2).await;
    let node = relay_to(&database, &hook).await;
    database.until_held_by(3).await;
    frozen.signal("STOP").await;
    killed.kill().await;
    for number in 0..60 {
        put(&database, &format!("c{}", number % 30), number).await;
    }
    database.until_published(60).await;
    database.until_held_by(1).await;
    let before = hook.taken().len();
    // Awake again it finds others at its shares, and takes a part of them in turn.
    frozen.signal("CONT").await;
    database.until_held_by(2).await;
    for number in 60..90 {
        put(&database, &format!("c{}", number % 30), number).await;
    }
    database.until_published(90).await;
    assert_in_order(&hook.taken());
    assert_eq!(hook.taken().len(), before + 30, "nothing twice once all is quiet");
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_while_the_marks_hang_is_not_sent_again_by_the_same_relay() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let gate = Gate::closed();
    let (held, first) = (gate.clone(), Arc::new(AtomicBool::new(true)));
    let faults = Faults::hook(move |point| {
        let hold = point == Point::AfterDelivery && first.swap(false, Ordering::SeqCst);
        let held = held.clone();
        async move {
            if hold {
                held.pass().await;
            }
        }
    });
    let node = relay(&database, &[sink(&hook)], NodeOptions::default().faults(faults)).await;
    put(&database, "c1", 1).await;
    gate.until_reached(1).await;
    put(&database, "c1", 2).await;
    for number in 3..20 {
        put(&database, "c2", number).await;
    }
    hook.until_taken(18).await;
    gate.open();
    database.until_published(19).await;
    assert_eq!(hook.deliveries().len(), 19);
    assert_in_order(&hook.taken());
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_while_marks_are_due_makes_nothing_come_twice() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let gate = Gate::closed();
    let held = gate.clone();
    hook.decide(move |_| Take::Held(held.clone()));
    let node = relay_to(&database, &hook).await;
    put(&database, "c1", 1).await;
    gate.until_reached(1).await;
    // Every session of the product ends; the marks go out on new ones.
    database
        .execute(
            "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name = 'oncekey'",
        )
        .await;
    gate.open();
    database.until_published(1).await;
    assert_eq!(hook.deliveries().len(), 1);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_from_before_the_clock_was_set_back_holds_nothing() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    // As a relay leaves it that died just before the database's clock went an hour back.
    database
        .execute(
            "with relay as (
                insert into event_relays values (gen_random_uuid(), clock_timestamp() + interval '1 hour')
                returning relay_id, held_until)
            insert into event_shares select n, relay_id, held_until from relay, generate_series(0, 31) n",
        )
        .await;
    put(&database, "c1", 1).await;
    let node = relay_to(&database, &hook).await;
    database.until_published(1).await;
    database.until_held_by(1).await;
    node.shut_down().await;
}
