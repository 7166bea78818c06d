//! Old days go when nothing in them is promised any more, and only then; what belonged to them means
//! nothing afterwards, whoever dropped them.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use oncekey::background::{Cleared, Retired, clear_keys, drop_old};
use oncekey::clock::Clock;
use oncekey::domain::partition::{DropRule, Stays};
use oncekey::store::{Claim, CommitOutcome, ReclaimOutcome, Store, partition_name};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{
    arrival, chat_commit, failure, living_store, reclaimed, record, register, store_at, won,
};
use crate::support::node::assert_clean;
use crate::support::provider::patiently;

const DAY: Duration = Duration::from_secs(86_400);
const RULE: DropRule = DropRule { retention: DAY, older_than: DAY };

/// A round as the keeper makes it, which gives up at once where somebody is in the way.
async fn round(store: &Store, rule: DropRule) -> (Vec<Retired>, Cleared) {
    let mut session = store.partition_session().await.unwrap();
    assert!(session.alone().await.unwrap());
    let mut retired = Vec::new();
    let tell = |what| retired.push(what);
    drop_old(&mut session, &rule, Duration::ZERO, &Clock::system(), tell).await.unwrap();
    let cleared = clear_keys(&mut session, rule.retention + DAY).await.unwrap();
    session.close().await.unwrap();
    (retired, cleared)
}

fn dropped(retired: &[Retired]) -> Vec<&str> {
    let tables = retired.iter().map(|what| match what {
        Retired::Dropped { table } => Some(table.as_str()),
        _ => None,
    });
    tables.flatten().collect()
}

fn why_stays(retired: &[Retired], day: NaiveDate) -> Option<Stays> {
    retired.iter().find_map(|what| match what {
        Retired::Stays { table, why } if *table == partition_name(day) => Some(*why),
        _ => None,
    })
}

async fn committed(store: &Store, key: Uuid, conversation: &str) -> Claim {
    let claim = won(store, arrival(key, conversation)).await;
    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    claim
}

/// A store of the same database three days on, with its partitions.
async fn three_days_on(database: &TestDatabase) -> Store {
    let later = store_at(database, 3 * DAY);
    later.ensure_partitions().await.unwrap();
    register(&later).await;
    later
}

async fn has_table(database: &TestDatabase, day: NaiveDate) -> bool {
    let sql = format!("select count(*) from pg_class where relname = '{}'", partition_name(day));
    database.count(&sql).await == 1
}

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

#[test]
fn names_are_those_of_the_contract() {
    let moment: DateTime<Utc> = "2028-02-29T23:59:59Z".parse().unwrap();
    assert_eq!(partition_name(moment.date_naive()), "request_records_20280229");
}
