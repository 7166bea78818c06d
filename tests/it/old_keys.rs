//! A key whose record is gone, by whomever, means nothing: it is cleared away, and never one that a
//! claim has just moved to today.

use oncekey::store::{CommitOutcome, partition_name};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{arrival, chat_commit, living_store, record, won};
use crate::support::node::assert_clean;
use crate::support::old_days::{RULE, committed, dropped, round, three_days_on};

/// Keys of an old day without records, as a hand drop leaves them.
async fn recordless(database: &TestDatabase, count: usize) -> Vec<Uuid> {
    let keys: Vec<Uuid> = (0..count).map(|_| Uuid::new_v4()).collect();
    sqlx::query(
        "insert into request_keys (tenant_id, idempotency_key, day)
        select 't1', key, (clock_timestamp() at time zone 'UTC')::date - 9 from unnest($1) as key",
    )
    .bind(&keys)
    .execute(&database.pool)
    .await
    .unwrap();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_claim_holds_is_left_to_it() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let keys = recordless(&database, 3).await;
    let mut claim = database.pool.begin().await.unwrap();
    sqlx::query("select from request_keys where idempotency_key = $1 for update")
        .bind(keys[0])
        .execute(&mut *claim)
        .await
        .unwrap();
    assert_eq!(round(&store, RULE).await.1.keys, 2);
    sqlx::query("update request_keys set day = (clock_timestamp() at time zone 'UTC')::date")
        .execute(&mut *claim)
        .await
        .unwrap();
    assert_eq!(round(&store, RULE).await.1.keys, 0);
    claim.commit().await.unwrap();
    assert_eq!(round(&store, RULE).await.1.keys, 0);
    assert_eq!(database.count("select count(*) from request_keys").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn clearing_keys_beside_claims_takes_none_that_was_moved_to_today() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let keys = recordless(&database, 300).await;
    let clearing = tokio::spawn({
        let store = store.clone();
        async move {
            let mut cleared = 0;
            for _ in 0..30 {
                cleared += round(&store, RULE).await.1.keys;
            }
            cleared
        }
    });
    let mut claims = JoinSet::new();
    for lane in keys.chunks(75) {
        let (store, lane) = (store.clone(), lane.to_vec());
        claims.spawn(async move {
            for key in lane {
                committed(&store, key, &key.to_string()).await;
            }
        });
    }
    claims.join_all().await;
    clearing.await.unwrap();
    assert_eq!(database.count("select count(*) from request_keys").await, 300);
    assert_eq!(database.outcomes().await, (300, 300, 300));
    assert_clean(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_are_cleared_in_ranges() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    database
        .execute(
            "insert into request_keys (tenant_id, idempotency_key, day)
            select 't1', gen_random_uuid(),
                (clock_timestamp() at time zone 'UTC')::date - (n % 2)::int * 9
            from generate_series(1, 60000) as n",
        )
        .await;
    let blocks = "select pg_relation_size('request_keys') / 8192";
    assert!(database.count(blocks).await > 300, "several ranges");
    assert_eq!(round(&store, RULE).await.1.keys, 30_000);
    assert_eq!(database.count("select count(*) from request_keys").await, 30_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_day_that_was_detached_by_hand_go_and_its_table_stays() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = three_days_on(&database).await;
    let table = partition_name(claim.at.day);
    let sql = format!("alter table request_records detach partition {table} concurrently");
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&database.pool).await.unwrap();
    let (retired, cleared) = round(&later, RULE).await;
    assert!(!dropped(&retired).contains(&table.as_str()));
    assert_eq!(cleared.keys, 1);
    assert_eq!(database.count(&format!("select count(*) from {table}")).await, 1);
    assert_clean(&later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_was_dropped_by_hand_is_noticed() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = three_days_on(&database).await;
    let kept = committed(&later, Uuid::new_v4(), "c2").await;
    database.execute(&format!("drop table {}", partition_name(claim.at.day))).await;

    // Before anybody has cleared anything away the key is a new operation already.
    let anew = won(&later, arrival(claim.at.key, "c1")).await;
    assert_ne!(anew.operation_id, claim.operation_id);
    assert_eq!(anew.head_seq, 2, "its turns stay");
    let commit = chat_commit(&anew, "hello", "answer");
    assert_eq!(later.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    assert_clean(&later).await;
    assert_eq!(round(&later, RULE).await.1.keys, 0, "it was moved to its new day");
    assert_eq!(record(&later, &kept).await.operation_id, kept.operation_id);
    assert_clean(&later).await;
}
