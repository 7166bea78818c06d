//! Events without the operations that they tell of, and nodes that relay them.

use std::collections::BTreeMap;

use oncekey::clock::Clock;
use uuid::Uuid;

use super::database::TestDatabase;
use super::eventually;
use super::hook::{Delivered, Hook};
use super::node::{NodeOptions, TestNode};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Puts an event of tenant `t1` into the outbox; its payload is `{"number": …}`.
pub async fn put(database: &TestDatabase, conversation: &str, number: i64) -> Uuid {
    let id = Clock::system().new_id();
    sqlx::query(INSERT)
        .bind(id)
        .bind(conversation)
        .bind(number)
        .execute(&database.pool)
        .await
        .unwrap();
    id
}

pub const INSERT: &str = "insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
    values ($1, 't1', 'conversation', $2, 'call_completed', jsonb_build_object('number', $3::bigint))";

/// A webhook as the configuration has it.
pub fn sink(hook: &Hook) -> String {
    format!(
        "{{ kind = 'webhook', url = '{}', secret_env = 'TEST_HOOK_SECRET', allow_private = true }}",
        hook.url()
    )
}

/// The variables of a node that relays to these sinks and gives events up early.
pub fn variables(sinks: &[String]) -> Vec<(String, String)> {
    let sinks = format!("[{}]", sinks.join(", "));
    [
        ("ONCEKEY_LISTEN", "127.0.0.1:0"),
        ("ONCEKEY_OUTBOX__SINKS", &sinks),
        ("ONCEKEY_OUTBOX__POLL", "20ms"),
        ("ONCEKEY_OUTBOX__MAX_ATTEMPTS", "3"),
        ("ONCEKEY_OUTBOX__GIVE_UP_AFTER", "100ms"),
        ("TEST_HOOK_SECRET", SECRET),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

pub async fn relay(database: &TestDatabase, sinks: &[String], options: NodeOptions) -> TestNode {
    TestNode::start_with(database, variables(sinks), options).await
}

/// The usual node before one webhook.
pub async fn relay_to(database: &TestDatabase, hook: &Hook) -> TestNode {
    relay(database, &[sink(hook)], NodeOptions::default()).await
}

impl TestDatabase {
    /// Waits until so many events are published.
    pub async fn until_published(&self, count: i64) {
        eventually(&format!("{count} events are published"), || async {
            self.count("select count(*) from outbox where published_at is not null").await == count
        })
        .await;
    }

    /// Waits until an event is a dead letter.
    pub async fn until_dead(&self, id: Uuid) {
        eventually("an event is a dead letter", || async {
            self.count(&format!(
                "select count(*) from outbox where id = '{id}' and dead_at is not null"
            ))
            .await
                == 1
        })
        .await;
    }

    /// Waits until every share has a living holder, and these are so many.
    pub async fn until_held_by(&self, relays: i64) {
        eventually(&format!("{relays} relays hold all shares"), || async {
            let held = "select count(*) * 100 + count(distinct relay_id) from event_shares
                where held_until > clock_timestamp()";
            self.count(held).await == 3_200 + relays
        })
        .await;
    }
}

/// Fails where, by what was taken first, an event of a conversation came before one ahead of it.
pub fn assert_in_order(taken: &[Delivered]) {
    let mut seen: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for one in taken {
        let numbers = seen.entry(one.subject()).or_default();
        if !numbers.contains(&one.number()) {
            numbers.push(one.number());
        }
    }
    for (conversation, numbers) in seen {
        assert!(numbers.is_sorted(), "{conversation}: {numbers:?}");
    }
}
