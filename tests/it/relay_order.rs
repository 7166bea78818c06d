//! Events of a conversation reach a sink in their order, whoever relays them and whatever fails.

use std::collections::BTreeMap;

use sqlx::Connection;
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::hook::{Hook, Take};
use crate::support::node::NodeOptions;
use crate::support::outbox::{INSERT, assert_in_order, put, relay, relay_to, sink};

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_share_the_work_and_send_nothing_twice() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let (a, b) = (relay_to(&database, &hook).await, relay_to(&database, &hook).await);
    database.until_held_by(2).await;
    for number in 0..200 {
        put(&database, &format!("c{}", number % 20), number).await;
    }
    database.until_published(200).await;
    let taken = hook.taken();
    assert_eq!(taken.len(), 200, "each once");
    assert_in_order(&taken);
    let split = "select count(*) from event_shares group by relay_id order by 1";
    assert_eq!(database.count(split).await, 16, "and both hold as many shares");
    a.shut_down().await;
    b.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn order_holds_over_two_relays_and_a_sink_that_fails_at_every_turn() {
    let database = TestDatabase::new().await;
    let mut calls = 0;
    let hook = Hook::deciding(move |_| {
        calls += 1;
        match calls % 11 {
            3 => Take::Status(500),
            5 => Take::Status(422),
            7 => Take::With(429, vec![("retry-after", "0.05".into())], String::new()),
            9 => Take::Status(302),
            _ => Take::Status(200),
        }
    })
    .await;
    // Far from giving up: each event is only unlucky.
    let options = || NodeOptions::default().set("ONCEKEY_OUTBOX__GIVE_UP_AFTER", "1h");
    let a = relay(&database, &[sink(&hook)], options()).await;
    let b = relay(&database, &[sink(&hook)], options()).await;
    for number in 0..60 {
        put(&database, &format!("c{}", number % 6), number).await;
    }
    database.until_published(60).await;
    assert_in_order(&hook.taken());
    a.shut_down().await;
    b.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_not_skipped_and_a_gap_blocks_nothing() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let node = relay_to(&database, &hook).await;
    let mut late = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let insert = |id: Uuid, number: i64| sqlx::query(INSERT).bind(id).bind("late").bind(number);
    // A number that is never used.
    let mut undone = late.begin().await.unwrap();
    insert(Uuid::now_v7(), 0).execute(&mut *undone).await.unwrap();
    undone.rollback().await.unwrap();
    let mut open = late.begin().await.unwrap();
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    insert(first, 1).execute(&mut *open).await.unwrap();

    // A later number of another conversation, seen and published meanwhile.
    sqlx::query(INSERT)
        .bind(second)
        .bind("early")
        .bind(2_i64)
        .execute(&database.pool)
        .await
        .unwrap();
    let taken = hook.until_taken(1).await;
    assert_eq!(taken[0].id(), second.to_string());
    database.until_published(1).await;
    open.commit().await.unwrap();
    let taken = hook.until_taken(2).await;
    assert_eq!(taken[1].id(), first.to_string());
    database.until_published(2).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_whose_event_is_not_answered_holds_up_no_other() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|one| match (one.subject(), one.number()) {
        ("stuck", 0) => Take::Hang,
        _ => Take::Status(200),
    })
    .await;
    let node = relay_to(&database, &hook).await;
    put(&database, "stuck", 0).await;
    hook.until("the stuck one", |all| all.len() == 1).await;
    put(&database, "stuck", 1).await;
    for number in 0..40 {
        put(&database, &format!("c{}", number % 8), number).await;
    }
    let taken = hook.until_taken(40).await;
    assert!(taken.iter().all(|one| one.subject() != "stuck"), "the second waits for the first");
    assert_in_order(&taken);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_conversation_of_two_tenants_have_nothing_to_do_with_each_other() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|one| match one.event["tenantid"].as_str() {
        Some("t1") => Take::Hang,
        _ => Take::Status(200),
    })
    .await;
    let node = relay_to(&database, &hook).await;
    put(&database, "same", 1).await;
    hook.until("that of the one", |all| all.len() == 1).await;
    put(&database, "same", 2).await;
    database.execute("update outbox set tenant_id = 't2' where payload ->> 'number' = '2'").await;
    let taken = hook.until_taken(1).await;
    let tenants: BTreeMap<_, _> =
        taken.iter().map(|one| (one.event["tenantid"].to_string(), one.number())).collect();
    assert_eq!(tenants.len(), 1);
    assert_eq!(tenants["\"t2\""], 2);
    node.shut_down().await;
}
