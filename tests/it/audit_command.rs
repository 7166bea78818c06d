//! `oncekey audit`, as an operator sees it.

use std::path::Path;

use oncekey::store::INVARIANTS;

use crate::audit::lived_in;
use crate::support::TestDatabase;
use crate::support::process::{Ended, run};

/// The command, on a configuration.
async fn audit(database: &TestDatabase, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut all = vec![("DATABASE_URL".to_owned(), database.url.clone())];
    all.extend(variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    run(Path::new("/"), &[&["audit"], arguments].concat(), &all).await
}

fn lines_of_broken(ended: &Ended) -> Vec<&str> {
    ended.stdout.lines().filter(|line| line.starts_with("BROKEN")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_names_what_is_broken_and_of_whom() {
    let database = lived_in().await;
    let clean = audit(&database, &[], &[]).await;
    assert_eq!(clean.code, Some(0), "{clean:?}");
    assert_eq!(clean.stdout.lines().count(), INVARIANTS.len());
    assert!(clean.stdout.lines().all(|line| line.starts_with("ok ")));

    let event = database.text("select id::text from outbox where tenant_id = 't1' limit 1").await;
    database.execute(&format!("delete from outbox where id = '{event}'")).await;
    let found = audit(&database, &[], &[]).await;
    assert_eq!(found.code, Some(1));
    let broken = lines_of_broken(&found);
    assert_eq!(broken.len(), 1, "{}", found.stdout);
    assert!(broken[0].contains("one_event"));
    let key = database
        .text(&format!(
            "select idempotency_key::text from usage_receipts where event_id = '{event}'"
        ))
        .await;
    let culprit = found.stdout.lines().find(|line| line.contains(&key)).unwrap();
    assert!(culprit.contains("t1"), "{culprit}");

    assert_eq!(audit(&database, &["--tenant", "t1"], &[]).await.code, Some(1));
    assert_eq!(audit(&database, &["--tenant", "t2"], &[]).await.code, Some(0));
    database.execute("delete from usage_receipts where tenant_id = 't2'").await;
    let found = audit(&database, &["--tenant", "t2"], &[]).await;
    assert_eq!(found.code, Some(1));
    assert!(!lines_of_broken(&found).iter().any(|line| line.contains("one_event")));
    assert!(!found.stdout.contains(" t1: "), "{}", found.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_retention_took_away_is_no_break() {
    let database = lived_in().await;
    // Everything of t2 is three days old, and its event, its turns and its calls are gone.
    database
        .execute(
            "update request_records set completed_at = completed_at - interval '3 days'
                where tenant_id = 't2';
            update usage_receipts set created_at = created_at - interval '3 days'
                where tenant_id = 't2';
            delete from outbox where tenant_id = 't2';
            delete from turns where tenant_id = 't2';
            delete from provider_calls where tenant_id = 't2'",
        )
        .await;
    let kept = |days: [&'static str; 3]| {
        [
            ("ONCEKEY_RETENTION__PUBLISHED_EVENTS", days[0]),
            ("ONCEKEY_RETENTION__TURNS", days[1]),
            ("ONCEKEY_RETENTION__PROVIDER_CALLS", days[2]),
        ]
    };
    let gone = audit(&database, &[], &kept(["2d", "2d", "2d"])).await;
    assert_eq!(gone.code, Some(0), "{}", gone.stdout);
    for (days, found) in [
        (["4d", "2d", "2d"], &["one_event"][..]),
        (["", "2d", "2d"], &["one_event"]),
        (["2d", "4d", "2d"], &["two_turns"]),
        (["2d", "", "2d"], &["two_turns", "head_of_turns"]),
        (["2d", "2d", "4d"], &["tokens_of_calls"]),
        (["2d", "2d", ""], &["tokens_of_calls"]),
    ] {
        let ended = audit(&database, &[], &kept(days)).await;
        let broken = lines_of_broken(&ended);
        assert_eq!(broken.len(), found.len(), "{days:?}: {broken:?}");
        for (line, name) in broken.iter().zip(found) {
            assert!(line.contains(name), "{days:?}: {line}");
        }
    }

    // A day of records is dropped with its partition, and its keys after it.
    let day = database.text("select to_char(day, 'YYYYMMDD') from request_keys limit 1").await;
    database.execute(&format!("drop table request_records_{day}; delete from request_keys")).await;
    let dropped = audit(&database, &[], &kept(["2d", "2d", "2d"])).await;
    assert_eq!(dropped.code, Some(0), "{}", dropped.stdout);
}
