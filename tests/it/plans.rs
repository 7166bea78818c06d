//! Every statement looks its rows up by their keys, also where its plan was made while the tables
//! were empty and is kept while they grow.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use oncekey::store::SESSION_SETTINGS;

use crate::support::TestDatabase;

const GROWING: [&str; 8] = [
    "request_keys",
    "request_records",
    "conversations",
    "turns",
    "usage_receipts",
    "provider_calls",
    "outbox",
    "derived_keys",
];
/// Indexes that hold what runs now, waits for delivery or was given up, and nothing else: read whole,
/// they are short.
const SHORT_INDEXES: [&str; 3] = ["_owner_idx", "outbox_waiting", "outbox_dead"];
/// What goes through whole tables on purpose: work in the background, in pieces, and for people.
const WHOLE_TABLES: [&str; 8] = [
    "cleaning.",
    "partitions.",
    "stock.",
    // Reports: planned each time, for their values and for what the tables hold then.
    "usage.",
    "reconcile.",
    // Of a command: its plans are as old as its process.
    "erase.",
    // The next name in an index, one at a time.
    "retention.tenant_of",
    // Rare; an index by conversation would cost every claim.
    "conversation.erase_answers",
];

/// Lines of a plan that read a growing table other than by a key.
fn whole_reads(plan: &[String]) -> Vec<&String> {
    let reads = |line: &str| {
        let table = line.split(" on ").nth(1).unwrap_or_default();
        line.contains("Scan") && GROWING.iter().any(|growing| table.starts_with(growing))
    };
    // Of a tenant's rows, all are as bad as of a table's.
    let keyed = |line: &String| {
        line.contains(" AND ") && line.contains("Index Cond")
            || line.contains("TID Cond")
            // From the oldest on, up to a time and a number of rows.
            || line.contains("Index Cond: (published_at <")
    };
    let short = |line: &String| SHORT_INDEXES.iter().any(|index| line.contains(index));
    // A bitmap's index stands under its heap, behind its conditions.
    let under = |at: usize| {
        plan[at].contains("Bitmap Heap Scan") && plan[at + 1..].iter().take(3).any(short)
    };
    let by_key = |at: usize| short(&plan[at]) || under(at) || plan.get(at + 1).is_some_and(keyed);
    (0..plan.len()).filter(|&at| reads(&plan[at]) && !by_key(at)).map(|at| &plan[at]).collect()
}

async fn plan(session: &mut PgConnection, query: &Value) -> Vec<String> {
    let text = query["query"].as_str().unwrap();
    let parameters = query["describe"]["parameters"]["Left"].as_array().map_or(0, Vec::len);
    let nulls = vec!["null"; parameters].join(", ");
    let arguments = if parameters == 0 { String::new() } else { format!("({nulls})") };
    sqlx::raw_sql(AssertSqlSafe(format!("prepare statement as {text}")))
        .execute(&mut *session)
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    let explain = format!("explain (costs off) execute statement{arguments}");
    let lines = sqlx::query_scalar(AssertSqlSafe(explain)).fetch_all(&mut *session).await.unwrap();
    sqlx::raw_sql("deallocate statement").execute(session).await.unwrap();
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_reads_a_whole_table_however_young_it_is() {
    let database = TestDatabase::new().await;
    let mut session = PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql(SESSION_SETTINGS).execute(&mut session).await.unwrap();
    sqlx::raw_sql(
        "create table request_records_20260101 partition of request_records
            for values from ('2026-01-01') to ('2026-01-02');
        create table request_records_20260102 partition of request_records
            for values from ('2026-01-02') to ('2026-01-03')",
    )
    .execute(&mut session)
    .await
    .unwrap();

    let queries: Value = serde_json::from_str(include_str!("../../sqlx-data.json")).unwrap();
    let mut looked_at = 0;
    let mut wrong = Vec::new();
    for query in queries.as_object().unwrap().values() {
        let text = query["query"].as_str().unwrap();
        let name = text.split_whitespace().nth(1).unwrap();
        if WHOLE_TABLES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let plan = plan(&mut session, query).await;
        let bad = whole_reads(&plan);
        if !bad.is_empty() {
            wrong.push(format!("{name}: {bad:#?} in\n{}", plan.join("\n")));
        }
        looked_at += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(looked_at > 20, "only {looked_at} statements were found");
}

/// A server that has counted a table of a few pages holds reading all of it for as cheap as a few looks, and
/// the table may be a large one by the time it is counted anew.
#[tokio::test]
async fn what_is_updated_in_groups_is_looked_up_by_key_also_where_a_small_table_was_counted() {
    let database = TestDatabase::new().await;
    let mut session = PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql(SESSION_SETTINGS).execute(&mut session).await.unwrap();
    sqlx::raw_sql(
        "create table request_records_20260101 partition of request_records
            for values from ('2026-01-01') to ('2026-01-02')",
    )
    .execute(&mut session)
    .await
    .unwrap();
    let queries: Value = serde_json::from_str(include_str!("../../sqlx-data.json")).unwrap();
    for (rows, more) in [(5, 5), (60, 55), (300, 240)] {
        sqlx::raw_sql(AssertSqlSafe(format!(
            "insert into conversations (tenant_id, conversation_id)
            select 't1', gen_random_uuid()::text from generate_series(1, {more});
            insert into request_records (tenant_id, idempotency_key, day, operation_id, key_source,
                endpoint, request_hash, owner, request_id, state, failure_kind, failure_final, completed_at)
            select 't1', gen_random_uuid(), '2026-01-01', gen_random_uuid(), 'client', 'chat', sha256(''),
                1, gen_random_uuid(), 'failed', 'released', false, now() from generate_series(1, {more});
            analyze conversations, request_records_20260101"
        )))
        .execute(&mut session)
        .await
        .unwrap();
        for query in queries.as_object().unwrap().values() {
            let name = query["query"].as_str().unwrap().split_whitespace().nth(1).unwrap();
            if !["claim.group", "commit.group"].contains(&name) {
                continue;
            }
            let plan = plan(&mut session, query).await;
            let bad = whole_reads(&plan);
            assert!(bad.is_empty(), "{name} at {rows} rows: {bad:#?} in\n{}", plan.join("\n"));
        }
    }
}
