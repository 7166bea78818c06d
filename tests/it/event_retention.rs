//! Published events go after their time, and nothing else does; the audit knows.

use uuid::Uuid;

use crate::support::hook::{Hook, Take};
use crate::support::node::{NodeOptions, assert_clean, provider_variables};
use crate::support::outbox::{put, relay, sink, variables};
use crate::support::process::run;
use crate::support::provider::{ScriptedProvider, Wire};
use crate::support::{TestDatabase, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_published_long_ago_is_deleted() {
    let (database, hook) = (TestDatabase::new().await, Hook::deciding(|_| Take::Status(500)).await);
    for number in 0..4 {
        put(&database, &format!("c{number}"), number).await;
    }
    // Several pieces of the sweep are long published; the rest is young, dead, or waits since long.
    database
        .execute(
            "update outbox set created_at = created_at - interval '30 days';
            update outbox set published_at = clock_timestamp() - interval '6 days'
                where payload ->> 'number' = '0';
            update outbox set dead_at = clock_timestamp() - interval '30 days'
                where payload ->> 'number' = '1';
            insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload, published_at)
            select gen_random_uuid(), 't1', 'conversation', 'old', 'call_completed', '{}',
                clock_timestamp() - interval '8 days' from generate_series(1, 1200)",
        )
        .await;
    let node = relay(&database, &[sink(&hook)], NodeOptions::default()).await;
    eventually("the old ones are gone", || async {
        database.count("select count(*) from outbox").await == 4
    })
    .await;
    assert_eq!(database.count("select count(*) from outbox where aggregateid = 'old'").await, 0);
    node.shut_down().await;

    let forever = NodeOptions::default().set("ONCEKEY_RETENTION__PUBLISHED_EVENTS", "");
    database
        .execute("update outbox set published_at = '2020-01-01' where published_at is not null")
        .await;
    let node = relay(&database, &[], forever).await;
    let client = node.client("t1").await;
    assert_eq!(client.chat(Uuid::new_v4(), "c9", "hello").await.status, 200);
    assert_eq!(
        database.count("select count(*) from outbox where published_at < '2021-01-01'").await,
        1
    );
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_misses_no_event_that_the_retention_took() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let hook = Hook::start().await;
    let mut all = provider_variables(&provider, Wire::Anthropic);
    all.extend(variables(&[sink(&hook)]));
    let options = NodeOptions { variables: all, ..NodeOptions::default() };
    let node = relay(&database, &[sink(&hook)], options.clone()).await;
    let client = node.client("t1").await;
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    database.until_published(1).await;
    assert_clean(node.store()).await;
    node.shut_down().await;
    database
        .execute(
            "update request_records set completed_at = completed_at - interval '8 days';
            update outbox set published_at = published_at - interval '8 days'",
        )
        .await;
    let node = relay(&database, &[sink(&hook)], options).await;
    eventually("the event is gone", || async {
        database.count("select count(*) from outbox").await == 0
    })
    .await;
    node.shut_down().await;
    let url = ("DATABASE_URL".to_owned(), database.url.clone());
    let audit = run(std::path::Path::new("/"), &["audit"], std::slice::from_ref(&url)).await;
    assert_eq!(audit.code, Some(0), "{}", audit.stdout);
    let forever = ("ONCEKEY_RETENTION__PUBLISHED_EVENTS".to_owned(), String::new());
    let audit = run(std::path::Path::new("/"), &["audit"], &[url, forever]).await;
    assert_eq!(audit.code, Some(1), "kept for ever, it would be missing");
    assert!(audit.stdout.contains("BROKEN one_event"), "{}", audit.stdout);
}
