//! Days that are over, by stores whose clock is ahead, and rounds over them as the keeper makes them.

use std::time::Duration;

use chrono::NaiveDate;
use oncekey::background::{Cleared, Retired, clear_keys, drop_old};
use oncekey::clock::Clock;
use oncekey::domain::partition::{DropRule, Stays};
use oncekey::store::{Claim, CommitOutcome, Store, partition_name};
use uuid::Uuid;

use super::database::TestDatabase;
use super::direct::{arrival, chat_commit, register, store_at, won};

pub const DAY: Duration = Duration::from_secs(86_400);
pub const RULE: DropRule = DropRule { retention: DAY, older_than: DAY };

/// A round as the keeper makes it, which gives up at once where somebody is in the way.
pub async fn round(store: &Store, rule: DropRule) -> (Vec<Retired>, Cleared) {
    let mut session = store.partition_session().await.unwrap();
    assert!(session.alone().await.unwrap());
    let mut retired = Vec::new();
    let tell = |what| retired.push(what);
    drop_old(&mut session, &rule, Duration::ZERO, &Clock::system(), tell).await.unwrap();
    let cleared = clear_keys(&mut session, rule.retention + DAY).await.unwrap();
    session.close().await.unwrap();
    (retired, cleared)
}

pub fn dropped(retired: &[Retired]) -> Vec<&str> {
    let tables = retired.iter().map(|what| match what {
        Retired::Dropped { table } => Some(table.as_str()),
        _ => None,
    });
    tables.flatten().collect()
}

pub fn why_stays(retired: &[Retired], day: NaiveDate) -> Option<Stays> {
    retired.iter().find_map(|what| match what {
        Retired::Stays { table, why } if *table == partition_name(day) => Some(*why),
        _ => None,
    })
}

pub async fn committed(store: &Store, key: Uuid, conversation: &str) -> Claim {
    let claim = won(store, arrival(key, conversation)).await;
    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    claim
}

/// A store of the same database three days on, with its partitions.
pub async fn three_days_on(database: &TestDatabase) -> Store {
    let later = store_at(database, 3 * DAY);
    later.ensure_partitions().await.unwrap();
    register(&later).await;
    later
}

pub async fn has_table(database: &TestDatabase, day: NaiveDate) -> bool {
    let sql = format!("select count(*) from pg_class where relname = '{}'", partition_name(day));
    database.count(&sql).await == 1
}
