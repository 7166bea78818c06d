//! The outbox has the columns and types that Debezium's outbox event router reads, and the page about
//! it names them.

use crate::support::TestDatabase;

#[tokio::test(flavor = "multi_thread")]
async fn the_router_finds_what_it_expects() {
    let database = TestDatabase::new().await;
    let page = std::fs::read_to_string("docs/debezium.md").unwrap();
    // Name, type and whether it may be null, by the router's documentation: text for its varchar.
    for (column, kind, nullable) in [
        ("id", "uuid", "NO"),
        ("aggregatetype", "text", "NO"),
        ("aggregateid", "text", "NO"),
        ("type", "text", "NO"),
        ("payload", "jsonb", "NO"),
        ("tenant_id", "text", "NO"),
        ("created_at", "timestamp with time zone", "NO"),
    ] {
        let found = database
            .text(&format!(
                "select data_type || ' ' || is_nullable from information_schema.columns
                where table_schema = 'public' and table_name = 'outbox' and column_name = '{column}'"
            ))
            .await;
        assert_eq!(found, format!("{kind} {nullable}"), "{column}");
        assert!(page.contains(&format!("`{column}`")) || page.contains(column), "{column}");
    }
    // An update or delete without a key could not be replicated at all.
    let key = "select count(*) from pg_index where indrelid = 'outbox'::regclass and indisprimary";
    assert_eq!(database.count(key).await, 1);
    assert!(page.contains("io.debezium.transforms.outbox.EventRouter"));
    assert!(page.contains("\"table.include.list\": \"public.outbox\""));
}
