//! An event that a healthy sink does not take ends as a dead letter, which can be seen and redriven; one
//! that meets a sink that takes nothing does not.

use std::path::Path;

use uuid::Uuid;

use crate::support::hook::{Delivered, Hook, Take};
use crate::support::node::NodeOptions;
use crate::support::outbox::{put, relay, relay_to, sink, variables};
use crate::support::process::{Ended, ProcessNode, run};
use crate::support::{TestDatabase, eventually};

fn refusing(poison: i64, status: u16) -> impl FnMut(&Delivered) -> Take + Send + 'static {
    move |one| match one.number() == poison {
        true => Take::With(status, Vec::new(), "cannot\nread\tthis".into()),
        false => Take::Status(200),
    }
}

async fn outbox(database: &TestDatabase, arguments: &[&str]) -> Ended {
    let all = vec![("DATABASE_URL".to_owned(), database.url.clone())];
    run(Path::new("/"), &[&["outbox"], arguments].concat(), &all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_event_dies_after_attempts_and_time_and_its_conversation_goes_on() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(refusing(2, 422)).await;
    let mut all = variables(&[sink(&hook)]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    let node = ProcessNode::start(all).await;
    put(&database, "other", 1).await;
    let poison = put(&database, "c1", 2).await;
    put(&database, "c1", 3).await;
    put(&database, "other", 4).await;
    database.until_dead(poison).await;
    database.until_published(3).await;
    assert_eq!(hook.deliveries().iter().filter(|one| one.number() == 2).count(), 3, "attempts");
    let line = node.until_event("event_dead", |line| line["event_id"] == poison.to_string()).await;
    assert_eq!((&line["tenant_id"], &line["attempts"]), (&"t1".into(), &3.into()));
    assert_eq!(line["level"], "ERROR");
    let row = "select attempts || ' ' || last_error || ' ' || (published_at is null)::text
        || ' ' || array_to_string(refused_by, ',') from outbox where dead_at is not null";
    let row = database.text(row).await;
    assert!(row.starts_with("3 422: cannot read this true webhook-"), "{row}");
    eventually("the metrics show it", || async {
        node.metric("oncekey_outbox_dead ").await == Some(1.0)
    })
    .await;
    for series in ["oncekey_outbox_published_total{sink=\"webhook-", "oncekey_outbox_lag_seconds "]
    {
        assert!(node.metric(series).await.is_some(), "{series}");
    }

    let listed = outbox(&database, &["list", "--dead"]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", listed.stdout);
    for part in [&*poison.to_string(), "t1", "conversation c1", "422: cannot read this"] {
        assert!(lines[1].contains(part), "{part} in {}", lines[1]);
    }
    assert_eq!(outbox(&database, &["list"]).await.stdout.lines().count(), 1, "nothing waits");

    // Mended, and redriven: it comes after the ones behind it, under the same id.
    hook.decide(|_| Take::Status(200));
    let redriven = outbox(&database, &["redrive", &poison.to_string()]).await;
    assert_eq!(redriven.code, Some(0), "{redriven:?}");
    assert_eq!(redriven.stdout.trim(), format!("{poison} waits for delivery"));
    database.until_published(4).await;
    assert_eq!(hook.taken().last().unwrap().id(), poison.to_string());
    assert_eq!(database.count("select count(*) from outbox where dead_at is not null").await, 0);
    let again = outbox(&database, &["redrive", &poison.to_string()]).await;
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("is no dead letter"), "{}", again.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_makes_a_healthy_sink_fall_over_dies_too() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(refusing(0, 500)).await;
    let node = relay_to(&database, &hook).await;
    let poison = put(&database, "bad", 0).await;
    // Others go on passing between its attempts: that is what shows that the sink is well.
    let mut number = 0;
    while database.count("select count(*) from outbox where dead_at is not null").await == 0 {
        number += 1;
        put(&database, &format!("c{number}"), number).await;
        database.until_published(number).await;
    }
    assert_eq!(
        database.text("select id::text from outbox where dead_at is not null").await,
        poison.to_string()
    );
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_dies_where_nothing_else_is_sent_and_beside_another_one() {
    let each = [1, 2].map(|bad| async move {
        let database = TestDatabase::new().await;
        let down = |one: &Delivered| Take::Status(if one.number() < 0 { 500 } else { 200 });
        let hook = Hook::deciding(down).await;
        put(&database, "good", 1).await;
        for number in 1..=bad {
            put(&database, &format!("bad{number}"), -number).await;
        }
        let early = NodeOptions::default().set("ONCEKEY_OUTBOX__MAX_ATTEMPTS", "1");
        let node = relay(&database, &[sink(&hook)], early).await;
        eventually("those that make it fall over are dead letters", || async {
            let dead = "select count(*) from outbox where dead_at is not null";
            database.count(dead).await == bad
        })
        .await;
        database.until_published(1).await;
        node.shut_down().await;
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_else_is_sent_an_accepted_one_is_sent_again_as_proof() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(refusing(2, 400)).await;
    let node = relay_to(&database, &hook).await;
    let good = put(&database, "good", 1).await;
    database.until_published(1).await;
    let poison = put(&database, "bad", 2).await;
    database.until_dead(poison).await;
    let twice: Vec<_> = hook
        .taken()
        .iter()
        .map(|one| one.id().to_owned())
        .filter(|id| *id == good.to_string())
        .collect();
    assert_eq!(twice.len(), 2, "the proof bears the id that the sink knows");
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_refuses_everything_kills_nothing() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|_| Take::Status(400)).await;
    for number in 0..8 {
        put(&database, &format!("c{number}"), number).await;
    }
    let node = relay_to(&database, &hook).await;
    hook.until("many tries", |all| all.len() >= 12).await;
    assert_eq!(database.count("select count(*) from outbox where dead_at is not null").await, 0);
    assert_eq!(database.count("select sum(attempts)::bigint from outbox").await, 0);
    hook.decide(|_| Take::Status(200));
    database.until_published(8).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_for_one_sink_it_still_reaches_the_other() {
    let database = TestDatabase::new().await;
    let strict = Hook::deciding(refusing(2, 422)).await;
    let down = Hook::deciding(|_| Take::Status(503)).await;
    let node = relay(&database, &[sink(&strict), sink(&down)], NodeOptions::default()).await;
    put(&database, "c0", 1).await;
    let poison = put(&database, "c1", 2).await;
    database.until_dead(poison).await;
    assert!(down.taken().is_empty());
    down.decide(|_| Take::Status(200));
    down.until_taken(2).await;
    eventually("nobody waits for it", || async {
        database.count("select count(*) from outbox where owed").await == 0
    })
    .await;
    database.until_published(1).await;
    assert_eq!(
        database
            .count("select cardinality(acked_by)::bigint from outbox where dead_at is not null")
            .await,
        1
    );
    // Redriven, only the one that refused it gets it.
    strict.decide(|_| Take::Status(200));
    let redriven = outbox(&database, &["redrive", &poison.to_string(), "--tenant", "t1"]).await;
    assert_eq!(redriven.code, Some(0), "{redriven:?}");
    database.until_published(2).await;
    assert_eq!(down.taken().len(), 2);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_sink_refuses_waits_for_that_one_alone() {
    let (database, a, b) = (TestDatabase::new().await, Hook::start().await, Hook::start().await);
    let named =
        |hook: &Hook, name: &str| sink(hook).replace("kind", &format!("name = '{name}', kind"));
    put(&database, "c1", 1).await;
    put(&database, "c1", 2).await;
    // As `a` leaves it that refused the first one.
    database
        .execute(
            "update outbox set attempts = 5, refusing = '{a}', refused_at = clock_timestamp(),
                next_attempt_at = clock_timestamp() + interval '1 hour'
            where payload ->> 'number' = '1'",
        )
        .await;
    let sinks = [named(&a, "a"), named(&b, "b")];
    let node = relay(&database, &sinks, NodeOptions::default()).await;
    b.until_taken(2).await;
    assert!(a.deliveries().is_empty(), "what stands behind it waits too");
    database.execute("update outbox set next_attempt_at = clock_timestamp()").await;
    node.shut_down().await;
    let node = relay(&database, &sinks, NodeOptions::default()).await;
    database.until_published(2).await;
    assert_eq!(a.taken().iter().map(Delivered::number).collect::<Vec<_>>(), [1, 2]);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_two_tenants_is_redriven_only_where_the_tenant_is_named() {
    let database = TestDatabase::new().await;
    let id = put(&database, "c1", 1).await;
    database
        .execute(&format!(
            "update outbox set dead_at = clock_timestamp();
            insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload, dead_at)
            values ('{id}', 't2', 'conversation', 'c1', 'call_completed', '{{}}', clock_timestamp())"
        ))
        .await;
    let id = id.to_string();
    let both = outbox(&database, &["redrive", &id]).await;
    assert_eq!(both.code, Some(1));
    assert!(both.stderr.contains("add --tenant"), "{}", both.stderr);
    assert_eq!(outbox(&database, &["redrive", &id, "--tenant", "t2"]).await.code, Some(0));
    assert_eq!(database.text("select tenant_id from outbox where dead_at is not null").await, "t1");
    assert_eq!(
        outbox(&database, &["list", "--dead", "--tenant", "t2"]).await.stdout.lines().count(),
        1
    );
    let unknown = outbox(&database, &["redrive", &Uuid::nil().to_string()]).await;
    assert_eq!(unknown.code, Some(1));
    assert_eq!(outbox(&database, &["redrive", "abc"]).await.code, Some(2));
}
