//! What finance may see: its views, which say what was committed, wasted and why, and nothing that anybody
//! wrote.

use std::path::Path;

use sqlx::postgres::{PgConnectOptions, PgDatabaseError};
use sqlx::{AssertSqlSafe, ConnectOptions};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::process::run;
use crate::support::provider::{Reply, ScriptedProvider};

const VIEWS: [&str; 7] = [
    "prices",
    "receipts",
    "daily_usage",
    "wasted_calls",
    "daily_waste",
    "reconciliation",
    "receipts natural join finance.prices",
];

/// The SQLSTATE of what the role of finance is refused, or nothing.
async fn refused(database: &TestDatabase, sql: &str) -> Option<String> {
    let mut transaction = database.pool.begin().await.unwrap();
    sqlx::query("set local role oncekey_finance").execute(&mut *transaction).await.unwrap();
    let asked = sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut *transaction).await;
    let error = asked.err()?;
    Some(error.as_database_error()?.downcast_ref::<PgDatabaseError>().code().to_owned())
}

/// A node on which a chat was answered at once, another after a call that broke, and a parse.
async fn busy() -> (TestDatabase, TestNode) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "what nobody may read").await.status, 200);
    provider.reply(Reply::reset());
    assert_eq!(client.chat(Uuid::new_v4(), "c2", "hello").await.status, 200);
    provider.reply(Reply::tool_file("ok.txt"));
    assert_eq!(
        client.parse(Uuid::new_v4(), "MARA: Is it boiling?\nOTTO: Not yet.\n").await.status,
        200
    );
    (database, node)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_reads_its_views_and_nothing_else() {
    let (database, node) = busy().await;
    for view in VIEWS {
        assert_eq!(
            refused(&database, &format!("select * from finance.{view}")).await,
            None,
            "{view}"
        );
    }
    let tables: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class where relnamespace = 'public'::regnamespace
            and relkind in ('r', 'p', 'v', 'm', 'S') order by 1",
    )
    .fetch_all(&database.pool)
    .await
    .unwrap();
    assert!(tables.len() > 12, "{tables:?}");
    for table in tables {
        let code = refused(&database, &format!("select * from public.{table}")).await;
        assert_eq!(code.as_deref(), Some("42501"), "{table}");
    }
    for writing in [
        "delete from finance.prices",
        "update finance.prices set source = 'mine'",
        "create table public.mine (a int)",
        "create view finance.mine as select 1",
        "select id from public.outbox",
    ] {
        assert_eq!(refused(&database, writing).await.as_deref(), Some("42501"), "{writing}");
    }
    // No column holds a text of anybody's.
    let texts = database
        .text(
            "select coalesce(string_agg(distinct attname, ','), '') from pg_attribute
            where attrelid in (select oid from pg_class where relnamespace = 'finance'::regnamespace)
                and attname in ('content', 'message', 'response', 'metadata', 'result', 'payload', 'value')",
        )
        .await;
    assert_eq!(texts, "");
    for view in &VIEWS[..6] {
        let sql = format!(
            "select count(*) from finance.{view} v where v::text like '%nobody may read%'
                or v::text like '%boiling%'"
        );
        assert_eq!(database.count(&sql).await, 0, "{view}");
    }
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_views_say_what_was_committed_and_what_was_wasted_and_why() {
    let (database, node) = busy().await;
    let day = database
        .text(
            "select string_agg(concat_ws(' ', tenant_id, model, operations, unknown_usage), ';')
            from finance.daily_usage where day = (now() at time zone 'UTC')::date",
        )
        .await;
    assert_eq!(day, "t1 default 3 0");
    let same = "select count(*) from finance.daily_usage d join (select sum(cost_usd) as cost,
            sum(input_tokens) as input from finance.receipts) r
        on r.cost = d.cost_usd and r.input = d.input_tokens";
    assert_eq!(database.count(same).await, 1);
    let wasted = "select concat_ws(' ', tenant_id, provider, model, upstream, why, unknown_usage,
            operation_committed, cost_usd is null) from finance.wasted_calls";
    assert_eq!(database.text(wasted).await, "t1 main default fake-model-1 transient t t t");
    let waste =
        "select concat_ws(' ', tenant_id, why, calls, unknown_usage) from finance.daily_waste";
    assert_eq!(database.text(waste).await, "t1 transient 1 1");

    let verdicts =
        "select string_agg(concat_ws(' ', endpoint, calls, effect), ';' order by created_at)
        from finance.reconciliation";
    assert_eq!(
        database.text(verdicts).await,
        "chat match match;chat match match;parse match match"
    );
    assert_clean(node.store()).await;
    database
        .execute(
            "delete from turns where conversation_id = 'c1';
            delete from turns where conversation_id = 'c2' and seq = 1;
            delete from parse_results;
            update usage_receipts set output_tokens = output_tokens + 1 where endpoint = 'parse';
            delete from provider_calls where operation_id = (select operation_id from usage_receipts
                where endpoint = 'chat' order by created_at limit 1)",
        )
        .await;
    assert_eq!(database.text(verdicts).await, "chat gone gone;chat match differ;parse differ gone");
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_role_can_be_made_the_migration_says_so_and_an_administrator_makes_it() {
    // A role is the whole server's: one of an earlier run would be there already.
    let folder = format!("postgres-finance-{}", std::process::id());
    let (database, cluster) = TestDatabase::with_own_server(&folder).await;
    database.execute("create role plain login").await;
    database.execute(&format!("alter database {} owner to plain", database.name)).await;
    let options: PgConnectOptions = database.url.parse().unwrap();
    let url = options.username("plain").to_url_lossy().to_string();
    let migrate = async || {
        let variables = [("DATABASE_URL".to_owned(), url.clone())];
        run(Path::new("/"), &["migrate"], &variables).await
    };
    let first = migrate().await;
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stdout.contains("create role oncekey_finance nologin;"), "{}", first.stdout);
    assert_eq!(database.count("select count(*) from finance.receipts").await, 0);

    let (_, statements) = first.stdout.split_once("says: ").unwrap();
    database.execute(statements).await;
    assert_eq!(refused(&database, "select * from finance.receipts").await, None);
    let again = migrate().await;
    assert_eq!((again.code, again.stdout.lines().count()), (Some(0), 1), "{}", again.stdout);
    database.pool.close().await;
    let home = cluster.data_dir().to_owned();
    tokio::task::spawn_blocking(move || cluster.stop()).await.unwrap().unwrap();
    std::fs::remove_dir_all(home).unwrap();
}
