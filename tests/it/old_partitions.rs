//! Old days go when nothing in them is promised any more, and only then; what belonged to them means
//! nothing afterwards, whoever dropped them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use oncekey::background::{Cleared, Retired};
use oncekey::domain::partition::{DropRule, Stays};
use oncekey::store::{CommitOutcome, ReclaimOutcome, partition_name};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{
    arrival, chat_commit, failure, living_store, reclaimed, record, register, store_at, won,
};
use crate::support::node::assert_clean;
use crate::support::old_days::{
    DAY, RULE, committed, dropped, has_table, round, three_days_on, why_stays,
};
use crate::support::provider::patiently;

async fn a_day_goes_with_its_keys(timezone: Option<&str>) {
    let database = TestDatabase::new().await;
    if let Some(zone) = timezone {
        let sql = format!("alter database {} set timezone = '{zone}'", database.name);
        database.execute(&sql).await;
    }
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let day = claim.at.day;
    let tenant = claim.at.tenant.clone();
    let derived = store.derived_key(tenant, [1; 32], Uuid::new_v4(), DAY).await.unwrap();
    assert_eq!(database.count("select count(*) from derived_keys").await, 1);

    // Today it is refused, and so it is while the answer is promised.
    let (retired, cleared) = round(&store, RULE).await;
    assert_eq!(dropped(&retired), Vec::<&str>::new());
    assert_eq!(why_stays(&retired, day), Some(Stays::Today));
    assert_eq!(why_stays(&retired, day.succ_opt().unwrap()), Some(Stays::Ahead));
    assert_eq!(cleared, Cleared::default());
    let later = three_days_on(&database).await;
    let keep = DropRule { retention: 4 * DAY, older_than: DAY };
    let (retired, _) = round(&later, keep).await;
    assert!(matches!(why_stays(&retired, day), Some(Stays::InsideRetention { .. })));
    assert_eq!(database.count("select count(*) from request_keys").await, 1);

    // The day after, on which nothing happened, is not kept by that.
    assert_eq!(dropped(&retired), [partition_name(day.succ_opt().unwrap())]);

    let (retired, cleared) = round(&later, RULE).await;
    assert_eq!(dropped(&retired), [partition_name(day)]);
    assert_eq!(cleared, Cleared { keys: 1, derived_keys: 1 });
    assert!(!has_table(&database, day).await);
    assert_eq!(later.runway().await.unwrap().days_ahead, 3);
    assert_clean(&later).await;

    // The key is a new operation, and so is the request that came without one.
    let anew = committed(&later, claim.at.key, "c1").await;
    assert_ne!(anew.operation_id, claim.operation_id);
    assert_eq!(anew.at.day, day + chrono::Days::new(3));
    let tenant = claim.at.tenant.clone();
    let other = later.derived_key(tenant, [1; 32], Uuid::new_v4(), DAY).await.unwrap();
    assert_ne!(other, derived);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert_clean(&later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_goes_with_its_keys_when_its_answers_are_no_longer_promised() {
    a_day_goes_with_its_keys(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_zone_of_the_database_changes_nothing() {
    a_day_goes_with_its_keys(Some("America/New_York")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_claim_protects_an_old_day_until_it_ends() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    let later = three_days_on(&database).await;
    let (retired, cleared) = round(&later, RULE).await;
    assert_eq!(why_stays(&retired, claim.at.day), Some(Stays::LiveClaims(1)));
    assert_eq!(cleared.keys, 0);
    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    let (retired, cleared) = round(&later, RULE).await;
    assert!(dropped(&retired).contains(&partition_name(claim.at.day).as_str()));
    assert_eq!(cleared.keys, 1);
    assert_clean(&later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_in_which_somebody_claims_again_is_not_dropped_under_that_run() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    store.fail(failure(&claim, "timeout")).await.unwrap();
    let later = three_days_on(&database).await;

    // It has judged the record, and waits for its conversation.
    let mut other = database.pool.begin().await.unwrap();
    sqlx::query("select from conversations for update").execute(&mut *other).await.unwrap();
    let again = tokio::spawn({
        let (store, found) = (store.clone(), record(&store, &claim).await);
        async move { reclaimed(&store, found).await }
    });
    database.until_waits_for_lock("lease.lock").await;
    let (retired, cleared) = round(&later, RULE).await;
    let waits = |what: &Retired| matches!(what, Retired::LeftWaiting { readers, .. } if !readers.is_empty());
    assert!(retired.iter().any(waits), "{retired:?}");
    assert_eq!(cleared.keys, 0);

    other.rollback().await.unwrap();
    let again = match patiently("the claim", again).await.unwrap() {
        ReclaimOutcome::Won(claim) => claim,
        other => panic!("not won: {other:?}"),
    };
    let (retired, _) = round(&later, RULE).await;
    assert_eq!(why_stays(&retired, claim.at.day), Some(Stays::LiveClaims(1)));
    let commit = chat_commit(&again, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    assert_clean(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_at_a_time_looks_after_old_days() {
    let database = TestDatabase::new().await;
    let store = store_at(&database, Duration::ZERO);
    let mut first = store.partition_session().await.unwrap();
    let mut second = store.partition_session().await.unwrap();
    assert!(first.alone().await.unwrap());
    assert!(!second.alone().await.unwrap());
    first.close().await.unwrap();
    assert!(second.alone().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_other_bounds_serves_and_is_never_dropped() {
    let database = TestDatabase::new().await;
    let store = store_at(&database, Duration::ZERO);
    let today = Utc::now().date_naive();
    let at = |days| today + chrono::Days::new(days);
    database
        .execute(&format!(
            "create table \"two Days\" partition of request_records for values from ('{}') to ('{}')",
            today,
            at(2),
        ))
        .await;
    assert_eq!(store.ensure_partitions().await.unwrap(), [at(2), at(3)]);
    assert_eq!(store.runway().await.unwrap().days_ahead, 3);
    register(&store).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = store_at(&database, 9 * DAY);
    let (retired, cleared) = round(&later, RULE).await;
    let table = "\"two Days\"".to_owned();
    assert!(retired.contains(&Retired::Stays { table, why: Stays::NotADay }), "{retired:?}");
    assert_eq!(cleared.keys, 0, "the key has its record");
    assert_eq!(record(&later, &claim).await.operation_id, claim.operation_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_and_a_day_that_cannot_be_made_do_not_hinder_the_others() {
    let database = TestDatabase::new().await;
    let store = store_at(&database, Duration::ZERO);
    let made = store.ensure_partitions().await.unwrap();
    for day in [made[1], made[3]] {
        database.execute(&format!("drop table {}", partition_name(day))).await;
    }
    let runway = store.runway().await.unwrap();
    assert_eq!((runway.today, runway.days_ahead), (true, 0), "counted up to the hole");
    // Something of that name is in the way of the first.
    database.execute(&format!("create table {} (other int)", partition_name(made[1]))).await;
    store.ensure_partitions().await.unwrap_err();
    assert_eq!(store.runway().await.unwrap().days_ahead, 0);
    database.execute(&format!("drop table {}", partition_name(made[1]))).await;
    assert_eq!(store.ensure_partitions().await.unwrap(), [made[1]], "the other was made before");
    assert_eq!(store.runway().await.unwrap().days_ahead, 3);
}

#[test]
fn names_are_those_of_the_contract() {
    let moment: DateTime<Utc> = "2028-02-29T23:59:59Z".parse().unwrap();
    assert_eq!(partition_name(moment.date_naive()), "request_records_20280229");
}
