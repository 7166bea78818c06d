//! The keeper goes round by itself: it makes days before they are needed and notices what others did.

use std::time::Duration;

use oncekey::background::{Keeper, RetentionRules};
use oncekey::captures::Captures;
use oncekey::clock::ManualClock;
use oncekey::lifecycle::Lifecycle;
use oncekey::store::{Store, partition_name};
use uuid::Uuid;

use crate::support::direct::{living_store, store_at};
use crate::support::node::{assert_clean, captures_folder};
use crate::support::old_days::{DAY, committed, has_table, three_days_on};
use crate::support::provider::patiently;
use crate::support::{TestDatabase, eventually};

const BETWEEN_ROUNDS: Duration = Duration::from_secs(600);
const AFTER_FAILURE: Duration = Duration::from_secs(15);

/// A keeper whose rounds come when the test moves its clock.
struct Kept {
    clock: ManualClock,
    lifecycle: Lifecycle,
}

impl Kept {
    fn start(store: Store) -> Self {
        let clock = ManualClock::new("2026-08-19T00:36:57Z".parse().unwrap());
        let lifecycle = Lifecycle::new();
        let keeper = Keeper {
            store,
            clock: clock.clock(),
            lifecycle: lifecycle.clone(),
            retention: 10 * DAY,
            derive_window: Duration::from_secs(10),
            rules: RetentionRules::default(),
            captures: Captures::open(&captures_folder()).unwrap(),
        };
        keeper.start();
        Self { clock, lifecycle }
    }

    /// The next round, from its beginning to the pause behind it.
    async fn until_pause(&self, pause: Duration) {
        patiently("a round to end", self.clock.until_sleepers(|left| left == [pause])).await;
    }

    async fn end(self) {
        patiently("the keeper to end", self.lifecycle.end()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_makes_days_and_the_next_one_comes_sooner_after_a_failure() {
    let database = TestDatabase::new().await;
    let store = store_at(&database, Duration::ZERO);
    let kept = Kept::start(store.clone());
    kept.until_pause(BETWEEN_ROUNDS).await;
    assert_eq!(store.runway().await.unwrap().days_ahead, 3);

    let tomorrow = partition_name(chrono::Utc::now().date_naive().succ_opt().unwrap());
    let in_the_way = format!("drop table {tomorrow}; create table {tomorrow} (other int)");
    database.execute(&in_the_way).await;
    kept.clock.advance(BETWEEN_ROUNDS);
    kept.until_pause(AFTER_FAILURE).await;
    database.execute(&format!("drop table {tomorrow}")).await;
    kept.clock.advance(AFTER_FAILURE);
    kept.until_pause(BETWEEN_ROUNDS).await;
    assert_eq!(store.runway().await.unwrap().days_ahead, 3);
    kept.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_somebody_drops_by_hand_is_noticed_by_the_next_round() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = three_days_on(&database).await;
    committed(&later, Uuid::new_v4(), "c2").await;
    let kept = Kept::start(later.clone());
    kept.until_pause(BETWEEN_ROUNDS).await;
    assert!(has_table(&database, claim.at.day).await, "the retention is longer");
    assert_eq!(database.count("select count(*) from request_keys").await, 2);

    database.execute(&format!("drop table {}", partition_name(claim.at.day))).await;
    kept.clock.advance(BETWEEN_ROUNDS);
    eventually("the keys of that day are gone", || async {
        database.count("select count(*) from request_keys").await == 1
    })
    .await;
    kept.until_pause(BETWEEN_ROUNDS).await;
    assert_clean(&later).await;
    kept.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_leaves_old_days_to_another_that_is_at_them_and_makes_days_all_the_same() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = committed(&store, Uuid::new_v4(), "c1").await;
    let later = store_at(&database, 30 * DAY);
    let mut other = store.partition_session().await.unwrap();
    assert!(other.alone().await.unwrap());
    let kept = Kept::start(later.clone());
    kept.until_pause(BETWEEN_ROUNDS).await;
    assert_eq!(later.runway().await.unwrap().days_ahead, 3);
    assert!(has_table(&database, claim.at.day).await);

    other.close().await.unwrap();
    kept.clock.advance(BETWEEN_ROUNDS);
    eventually("the old day is gone", || async { !has_table(&database, claim.at.day).await }).await;
    kept.until_pause(BETWEEN_ROUNDS).await;
    assert_eq!(database.count("select count(*) from request_keys").await, 0);
    kept.end().await;
}
