//! A day without a partition is the service's fault and not the client's: the claim makes it. What a
//! dropped partition takes with it is gone as a whole.

use std::time::Duration;

use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{arrival, beating, chat_commit, living_store, store_at, won};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use oncekey::store::{Beat, CommitOutcome, CommitTrace};

/// Drops every partition, as a DBA would by hand.
async fn drop_partitions(database: &TestDatabase) {
    database
        .execute(
            "do $$
            declare partition regclass;
            begin
                for partition in select inhrelid from pg_inherits
                    where inhparent = 'request_records'::regclass
                loop
                    execute format('alter table request_records detach partition %s', partition);
                    execute format('drop table %s', partition);
                end loop;
            end $$",
        )
        .await;
}

async fn partitions(database: &TestDatabase) -> i64 {
    database
        .count("select count(*) from pg_inherits where inhparent = 'request_records'::regclass")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_makes_the_partition_that_it_needs() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let nodes = [
        TestNode::start(&database, &provider, NodeOptions::default()).await,
        TestNode::start(&database, &provider, NodeOptions::default()).await,
    ];
    let first = nodes[0].client("t1").await;
    let clients = [first.clone(), first.at(nodes[1].address())];
    // Both have claimed before, so that their statements are planned for partitions that are there.
    provider.reply_times(2, &Reply::file("413_edge.json"));
    for client in &clients {
        assert_eq!(client.chat(Uuid::new_v4(), "before", "hello").await.error(), "too_large");
    }
    drop_partitions(&database).await;

    let mut arrivals = JoinSet::new();
    for number in 0..20 {
        let client = clients[number % 2].clone();
        let conversation = format!("c{number}");
        arrivals.spawn(async move { client.chat(Uuid::new_v4(), &conversation, "hello").await });
    }
    for answer in arrivals.join_all().await {
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    }
    assert!(partitions(&database).await >= 1, "the one of today");
    assert_eq!(provider.count(), 22);
    assert_eq!(database.outcomes().await, (20, 20, 20));
    assert_clean(nodes[0].store()).await;
    for node in nodes {
        assert!(node.shut_down().await);
    }
}

/// A run under which all partitions are dropped, and a retry before or after it has ended.
async fn dropped_under_a_run(retry_meanwhile: bool) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.chat(key, "c1", "hello").await }
    });
    provider.until_requests(1).await;
    let operation = "select operation_id::text from request_records";
    let dropped = database.text(operation).await;
    drop_partitions(&database).await;
    let mut answer = None;
    if retry_meanwhile {
        answer = Some(client.chat(key, "c1", "hello").await);
    }
    gate.open();
    let lost = run.await.unwrap();
    assert_eq!((lost.status, lost.error().as_str()), (503, "run_lost"));
    assert!(lost.header("retry-after").is_some());
    if !retry_meanwhile {
        assert_eq!(database.outcomes().await, (0, 0, 0));
        answer = Some(client.chat(key, "c1", "hello").await);
    }

    let answer = answer.unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    assert_eq!(client.chat(key, "c1", "hello").await.bytes, answer.bytes);
    assert_eq!(database.standing(key).await, (1, 1, "committed".into(), None));
    assert_ne!(database.text(operation).await, dropped, "another operation");
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_eq!(database.count("select count(*) from provider_calls").await, 2);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_record_was_dropped_writes_nothing_and_a_later_retry_is_new() {
    dropped_under_a_run(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_record_was_dropped_writes_nothing_beside_a_retry_of_its_key() {
    dropped_under_a_run(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_record_was_dropped_is_lost_to_its_beat_and_to_its_commit() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    drop_partitions(&database).await;
    let before = database.count("select head_seq from conversations").await;

    assert_eq!(session.beat(&[beating(&claim)]).await.unwrap(), [Beat::Lost]);
    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(store.commit_chat(commit.clone()).await.unwrap(), CommitOutcome::Fenced);
    let traced = store.trace_commit(claim.at.clone(), claim.guard).await.unwrap();
    assert_eq!(traced, CommitTrace::Fenced);
    // Nor may it write under the new record of its own key, which has the same day and fence.
    let anew = won(&store, arrival(claim.at.key, "c1")).await;
    assert_eq!((&anew.at, anew.guard.fence), (&claim.at, claim.guard.fence));
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Fenced);
    assert_eq!(
        session.beat(&[beating(&claim), beating(&anew)]).await.unwrap(),
        [Beat::Lost, Beat::Landed]
    );
    assert_eq!(database.outcomes().await, (0, 0, 0));
    assert_eq!(database.count("select head_seq from conversations").await, before);
    let commit = chat_commit(&anew, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_made_is_ours_to_say_and_stores_nothing() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    drop_partitions(&database).await;
    // A table of that name which cannot be attached.
    let today = oncekey::store::partition_name(chrono::Utc::now().date_naive());
    database.execute(&format!("create table {today} (something integer)")).await;

    let key = Uuid::new_v4();
    let refused = client.chat(key, "c1", "hello").await;
    assert_eq!((refused.status, refused.error().as_str()), (503, "database_unavailable"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(client.get("/readyz").await.status, 503);
    assert_eq!(provider.count(), 0);
    assert_eq!(database.count("select count(*) from request_keys").await, 0);
    assert_eq!(database.count("select count(*) from conversations").await, 0);

    database.execute(&format!("drop table {today}")).await;
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    assert_eq!(client.get("/readyz").await.status, 200);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_bounded_by_days_in_utc_whatever_the_session_thinks() {
    let database = TestDatabase::new().await;
    database
        .execute(&format!("alter database {} set timezone = 'America/New_York'", database.name))
        .await;
    let store = store_at(&database, Duration::ZERO);
    let made = store.ensure_partitions().await.unwrap();
    let days = "select count(*) from (
        select pg_get_expr(p.relpartbound, p.oid) as bound, p.relname
        from pg_inherits i join pg_class p on p.oid = i.inhrelid
        where i.inhparent = 'request_records'::regclass) p
        where bound = format('FOR VALUES FROM (%L) TO (%L)', to_date(right(relname, 8), 'YYYYMMDD'),
            to_date(right(relname, 8), 'YYYYMMDD') + 1)";
    assert_eq!(database.count(days).await, i64::try_from(made.len()).unwrap());
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    let today = "select (clock_timestamp() at time zone 'UTC')::date::text";
    assert_eq!(database.text(today).await, claim.at.day.to_string());
}
