//! A detaching that was interrupted stands in the way of every other one; whoever comes next finishes
//! it, and nobody else has to wait for that.

use chrono::NaiveDate;
use oncekey::background::Retired;
use oncekey::domain::partition::DropRule;
use oncekey::store::{Claim, partition_name};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{living_store, record};
use crate::support::node::assert_clean;
use crate::support::old_days::{DAY, RULE, committed, dropped, has_table, round, three_days_on};

fn days_on(claim: &Claim, days: u64) -> NaiveDate {
    claim.at.day + chrono::Days::new(days)
}

/// Leaves a detaching of this table half done, as a DBA does who gives up waiting.
async fn detach_half(database: &TestDatabase, table: &str) {
    let mut reader = database.pool.begin().await.unwrap();
    sqlx::query("select count(*) from request_records").execute(&mut *reader).await.unwrap();
    let mut session = database.pool.acquire().await.unwrap();
    sqlx::query("set lock_timeout = '200ms'").execute(&mut *session).await.unwrap();
    let sql = format!("alter table request_records detach partition {table} concurrently");
    let refused = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *session).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "55P03");
    let half = "select count(*) from pg_inherits where inhdetachpending";
    assert_eq!(database.count(half).await, 1);
    session.close_on_drop();
    reader.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_detached_and_not_dropped_is_dropped_by_the_next_round() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = three_days_on(&database).await;
    let table = partition_name(claim.at.day);
    // Somebody reads the table itself: it can be detached, and not dropped.
    let mut reader = database.pool.begin().await.unwrap();
    let begun = format!("select count(*) from {table}");
    sqlx::query(sqlx::AssertSqlSafe(begun)).execute(&mut *reader).await.unwrap();
    let mut waited = round(&later, RULE).await.0;
    assert!(matches!(waited.pop(), Some(Retired::LeftWaiting { table: at, .. }) if at == table));
    // While it waits, a day can be made and the records are there for everybody else.
    database.execute(&format!("drop table {}", partition_name(days_on(&claim, 6)))).await;
    assert_eq!(later.ensure_partitions().await.unwrap(), [days_on(&claim, 6)]);
    committed(&later, Uuid::new_v4(), "c2").await;
    reader.rollback().await.unwrap();
    let (retired, cleared) = round(&later, RULE).await;
    assert!(dropped(&retired).contains(&table.as_str()));
    assert!(!has_table(&database, claim.at.day).await);
    assert_eq!(cleared.keys, 0, "they went as soon as nobody could see their records");
    assert_clean(&later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detaching_that_was_left_half_done_is_finished_first_and_its_answers_are_not_lost() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let table = partition_name(claim.at.day);
    let later = three_days_on(&database).await;
    detach_half(&database, &table).await;
    assert_clean(&later).await;

    // Its answers are promised still: it is kept, as a table that the DBA asked for.
    let keep = DropRule { retention: 4 * DAY, older_than: DAY };
    let (retired, cleared) = round(&later, keep).await;
    assert!(matches!(&retired[0], Retired::Detached { table: at, .. } if *at == table));
    assert_eq!(cleared.keys, 1);
    assert_eq!(database.count("select count(*) from pg_inherits where inhdetachpending").await, 0);
    assert!(has_table(&database, claim.at.day).await);
    assert!(!dropped(&round(&later, RULE).await.0).contains(&table.as_str()));
    assert_clean(&later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detaching_of_an_old_day_that_was_left_half_done_ends_with_dropping_it() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = three_days_on(&database).await;
    detach_half(&database, &partition_name(claim.at.day)).await;
    let (retired, _) = round(&later, RULE).await;
    assert_eq!(dropped(&retired)[0], partition_name(claim.at.day));
    assert!(!has_table(&database, claim.at.day).await);
    assert_clean(&later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn today_half_detached_is_made_whole_again_by_the_next_claim() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    detach_half(&database, &partition_name(claim.at.day)).await;
    assert!(!store.runway().await.unwrap().today);
    committed(&store, Uuid::new_v4(), "c2").await;
    assert!(store.runway().await.unwrap().today);
    assert_eq!(record(&store, &claim).await.operation_id, claim.operation_id);
    assert_clean(&store).await;
}
