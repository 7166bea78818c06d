//! What finance reads: sums of receipts by day and model, exact, and open about what is not known.

use std::path::Path;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode};
use crate::support::process::{Ended, run};
use crate::support::provider::{Reply, ScriptedProvider, Tokens};
use crate::support::{Answer, Client, TestDatabase};

const AUGUST: &str = "from=2026-08-01&to=2026-09-01";

/// A receipt at a time, as a commit leaves it; `tokens` are input, cache read, cache write, output.
async fn receipt(
    database: &TestDatabase,
    (tenant, subject, model): (&str, Option<&str>, &str),
    at: &str,
    tokens: [Option<i64>; 4],
    cost: Option<&str>,
) {
    let source = if cost.is_some() { "provider" } else { "unknown" };
    sqlx::query(
        "insert into usage_receipts (tenant_id, operation_id, request_id, idempotency_key, endpoint,
            subject, model, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens,
            usage_source, cost_usd, provider_calls, event_id, record_day, created_at)
        values ($1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'chat', $2, $3, $4, $5,
            $6, $7, $8, $9::numeric, 1, gen_random_uuid(), '2026-08-01', $10::timestamptz)",
    )
    .bind(tenant)
    .bind(subject)
    .bind(model)
    .bind(tokens[0])
    .bind(tokens[1])
    .bind(tokens[2])
    .bind(tokens[3])
    .bind(source)
    .bind(cost)
    .bind(at)
    .execute(&database.pool)
    .await
    .unwrap();
}

/// Receipts around the edges of days and of August, of two tenants, on a database whose sessions
/// think that they are in New York.
async fn books() -> (TestDatabase, TestNode) {
    let database = TestDatabase::new().await;
    let zone = format!("alter database {} set timezone = 'America/New_York'", database.name);
    database.execute(&zone).await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let (big, small) = (("t1", Some("u1"), "big"), ("t1", None, "small, \"fast\""));
    let some = |numbers: [i64; 4]| numbers.map(Some);
    let cheap = Some("0.000000001");
    receipt(&database, big, "2026-07-31T23:59:59.999999Z", some([9, 9, 9, 9]), cheap).await;
    receipt(&database, big, "2026-08-01T00:00:00Z", some([1, 0, 0, 2]), Some("0.1")).await;
    receipt(&database, big, "2026-08-01T03:59:59Z", some([10, 5, 0, 20]), Some("0.2")).await;
    receipt(&database, small, "2026-08-01T23:59:59.999999Z", some([7, 0, 3, 1]), cheap).await;
    receipt(&database, small, "2026-08-02T00:00:00Z", [Some(4), None, None, Some(5)], cheap).await;
    receipt(&database, small, "2026-08-02T12:00:00Z", [None; 4], None).await;
    receipt(&database, big, "2026-08-31T23:59:59.999999Z", [None; 4], None).await;
    receipt(&database, big, "2026-09-01T00:00:00Z", some([9, 9, 9, 9]), cheap).await;
    receipt(&database, ("t2", None, "big"), "2026-08-02T00:00:00Z", some([8, 8, 8, 8]), cheap)
        .await;
    (database, node)
}

async fn usage(client: &Client, query: &str) -> Answer {
    client.get(&format!("/v1/usage?{query}")).await
}

fn row(day: Value, model: Value, sums: [Value; 7]) -> Value {
    let [operations, input, cache_read, cache_write, output, cost, unknown] = sums;
    json!({
        "day": day, "model": model, "operations": operations, "input_tokens": input,
        "cache_read_tokens": cache_read, "cache_write_tokens": cache_write,
        "output_tokens": output, "cost_usd": cost, "unknown_usage": unknown,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_are_summed_by_day_and_model_in_utc() {
    let (_database, node) = books().await;
    let finance = node.client_as("t1", "finance", None).await;
    let answer = usage(&finance, &format!("{AUGUST}&group_by=day,model")).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    let none = Value::Null;
    let small = json!("small, \"fast\"");
    let expected = [
        row(
            json!("2026-08-01"),
            json!("big"),
            [2.into(), 11.into(), 5.into(), 0.into(), 22.into(), 0.3.into(), 0.into()],
        ),
        row(
            json!("2026-08-01"),
            small.clone(),
            [1.into(), 7.into(), 0.into(), 3.into(), 1.into(), 1e-9.into(), 0.into()],
        ),
        row(
            json!("2026-08-02"),
            small.clone(),
            [2.into(), 4.into(), none.clone(), none.clone(), 5.into(), 1e-9.into(), 1.into()],
        ),
        row(
            json!("2026-08-31"),
            json!("big"),
            [
                1.into(),
                none.clone(),
                none.clone(),
                none.clone(),
                none.clone(),
                none.clone(),
                1.into(),
            ],
        ),
    ];
    assert_eq!(answer.json(), json!({"from": "2026-08-01", "to": "2026-09-01", "rows": expected}));
    // Exact: a decimal with all its places, not the nearest binary fraction.
    let text = String::from_utf8(answer.bytes.clone()).unwrap();
    assert!(text.contains(r#""cost_usd":0.300000000,"#), "{text}");
    for same in ["", "&group_by=model,day"] {
        assert_eq!(usage(&finance, &format!("{AUGUST}{same}")).await.bytes, answer.bytes);
    }

    let by_model = usage(&finance, &format!("{AUGUST}&group_by=model")).await.json();
    assert_eq!(by_model["rows"][0]["model"], "big");
    assert_eq!(by_model["rows"][0]["day"], none);
    assert_eq!(by_model["rows"][0]["operations"], 3);
    assert_eq!(by_model["rows"][1]["input_tokens"], 11);
    let by_day = usage(&finance, &format!("{AUGUST}&group_by=day")).await.json();
    assert_eq!(by_day["rows"].as_array().unwrap().len(), 3);
    assert_eq!(by_day["rows"][0]["output_tokens"], 23);
    let total = usage(&finance, &format!("{AUGUST}&group_by=")).await.json();
    assert_eq!(
        total["rows"],
        json!([row(
            none.clone(),
            none,
            [6.into(), 22.into(), 5.into(), 3.into(), 28.into(), 0.300000002.into(), 2.into()]
        )])
    );
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_may_be_times_and_bad_ones_are_refused() {
    let (_database, node) = books().await;
    let finance = node.client_as("t1", "finance", None).await;
    let hours = "from=2026-08-01T02:00:00%2B02:00&to=2026-08-01T03:59:59Z&group_by=";
    let answer = usage(&finance, hours).await.json();
    assert_eq!(answer["from"], "2026-08-01T00:00:00Z");
    assert_eq!(answer["rows"][0]["operations"], 1, "the end is not included");
    let none = usage(&finance, "from=2025-01-01&to=2025-01-02&group_by=").await;
    assert_eq!(none.json()["rows"], json!([]));
    for bad in [
        "",
        "from=2026-08-01",
        "to=2026-08-01",
        "from=2026-08-01&to=2026-08-01",
        "from=2026-08-02&to=2026-08-01",
        "from=2026-02-29&to=2026-08-01",
        "from=august&to=2026-08-01",
        "from=2026-08-01T02:00:00+02:00&to=2026-09-01",
        "from=2026-08-01&to=2026-09-01&group_by=subject",
        "from=2026-08-01&to=2026-09-01&group_by=day,day",
        "from=2026-08-01&to=2026-09-01&limit=3",
        "from=2026-08-01&from=2026-08-02&to=2026-09-01",
        "from=0000-00-00&to=2026-09-01",
    ] {
        let refused = usage(&finance, bad).await;
        assert_eq!((refused.status, &*refused.error()), (400, "invalid_request"), "{bad}");
    }
    let widest = usage(&finance, "from=0001-01-01&to=9999-12-31&group_by=").await;
    assert_eq!(widest.json()["rows"][0]["operations"], 8);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn csv_has_the_same_columns() {
    let (_database, node) = books().await;
    let finance = node.client_as("t1", "finance", None).await;
    let request =
        finance.request("GET", &format!("/v1/usage?{AUGUST}")).header("accept", "text/csv");
    let answer = finance.send(request).await.unwrap();
    assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(
        String::from_utf8(answer.bytes).unwrap(),
        "day,model,operations,input_tokens,cache_read_tokens,cache_write_tokens,output_tokens,cost_usd,unknown_usage\n\
        2026-08-01,big,2,11,5,0,22,0.300000000,0\n\
        2026-08-01,\"small, \"\"fast\"\"\",1,7,0,3,1,0.000000001,0\n\
        2026-08-02,\"small, \"\"fast\"\"\",2,4,,,5,0.000000001,1\n\
        2026-08-31,big,1,,,,,,1\n"
    );
    // What is wrong is told in the shape of every other problem.
    let request = finance.request("GET", "/v1/usage").header("accept", "text/csv");
    assert_eq!(finance.send(request).await.unwrap().error(), "invalid_request");
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn finance_and_operators_read_usage_each_of_their_tenant_and_finance_reads_nothing_else() {
    let (_database, node) = books().await;
    for (tenant, role, subject, expected) in [
        ("t1", "finance", None, 6),
        ("t1", "operator", None, 6),
        ("t1", "finance", Some("u1"), 3),
        ("t2", "finance", None, 1),
    ] {
        let client = node.client_as(tenant, role, subject).await;
        let total = usage(&client, &format!("{AUGUST}&group_by=")).await.json();
        assert_eq!(total["rows"][0]["operations"], expected, "{tenant} {role} {subject:?}");
    }
    let stranger = node.client_as("t3", "finance", None).await;
    assert_eq!(usage(&stranger, AUGUST).await.json()["rows"], json!([]));
    let client = node.client("t1").await;
    assert_eq!(usage(&client, AUGUST).await.error(), "forbidden");
    let nobody = Client::new(node.address(), "ok_0");
    assert_eq!(usage(&nobody, AUGUST).await.error(), "unauthorized");

    let finance = node.client_as("t1", "finance", None).await;
    let key = Uuid::new_v4();
    for path in [format!("/v1/requests/{key}"), "/v1/conversations/c1/turns".to_owned()] {
        assert_eq!(finance.get(&path).await.error(), "forbidden");
    }
    assert_eq!(finance.chat(key, "c1", "hello").await.error(), "forbidden");
    for (method, path) in [
        ("POST", format!("/v1/requests/{key}/cancel")),
        ("DELETE", "/v1/conversations/c1".to_owned()),
    ] {
        let answer = finance.send(finance.request(method, &path)).await.unwrap();
        assert_eq!(answer.error(), "forbidden");
    }
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_chatted_is_what_is_summed_and_replays_cost_nothing() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let tokens = Tokens { input: 27, output: 15, cache_read: 100, cache_write: 40 };
    provider.reply(Reply::text_and_tokens("good day", tokens));
    let key = Uuid::new_v4();
    for _ in 0..3 {
        assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    }
    let finance = node.client_as("t1", "finance", None).await;
    let today = chrono::Utc::now().date_naive();
    let range = format!("from={}&to={}", today.pred_opt().unwrap(), today + chrono::Days::new(2));
    let answer = usage(&finance, &range).await;
    let body = answer.json();
    let sums = &body["rows"][0];
    assert_eq!(body["rows"].as_array().unwrap().len(), 1);
    assert_eq!((&sums["operations"], &sums["model"]), (&json!(1), &json!("default")));
    let seen = ["input", "cache_read", "cache_write", "output"]
        .map(|kind| sums[format!("{kind}_tokens")].as_i64().unwrap());
    assert_eq!(seen, [27, 100, 40, 15]);
    let text = String::from_utf8(answer.bytes).unwrap();
    assert!(text.contains(r#""cost_usd":0.000162000,"#), "{text}");
    let event = database.text("select payload ->> 'cost_usd' from outbox").await;
    assert_eq!(event.parse::<f64>().unwrap(), sums["cost_usd"].as_f64().unwrap());
    assert!(node.shut_down().await);
}

async fn command(database: &TestDatabase, arguments: &[&str]) -> Ended {
    let variables = [("DATABASE_URL".to_owned(), database.url.clone())];
    run(Path::new("/"), &[&["usage"], arguments].concat(), &variables).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_shows_the_same_sums_of_one_tenant_or_of_all() {
    let (database, node) = books().await;
    let august = ["--from", "2026-08-01", "--to", "2026-09-01"];
    let asked = |also: &[&'static str]| [&august[..], also].concat();

    let csv = command(&database, &asked(&["--format", "csv"])).await;
    assert_eq!(csv.code, Some(0), "{}", csv.stderr);
    let lines: Vec<_> = csv.stdout.lines().collect();
    assert!(lines[0].starts_with("tenant_id,day,model,operations,input_tokens,"));
    assert_eq!(lines[1], "t1,2026-08-01,big,2,11,5,0,22,0.300000000,0");
    assert_eq!(lines[5], "t2,2026-08-02,big,1,8,8,8,8,0.000000001,0");
    assert_eq!(lines.len(), 6);

    let json = command(&database, &asked(&["--format", "json", "--tenant", "t1"])).await;
    let report: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 4);
    assert_eq!(report["rows"][0]["tenant_id"], "t1");
    assert_eq!(report["rows"][3]["cost_usd"], Value::Null);
    assert!(json.stdout.contains("\"cost_usd\": 0.300000000"), "{}", json.stdout);

    let table = command(&database, &asked(&["--group-by", "model"])).await;
    let lines: Vec<_> =
        table.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let cells: &[Vec<&str>] = &lines;
    assert_eq!(cells[0][..3], ["tenant", "day", "model"]);
    assert_eq!(cells[1], ["t1", "big", "3", "11", "5", "0", "22", "0.300000000", "1"]);
    assert_eq!(cells.last().unwrap()[..3], ["total", "7", "30"]);

    for wrong in [
        &["--from", "2026-08-01"][..],
        &["--from", "2026-08-02", "--to", "2026-08-01"],
        &["--from", "august", "--to", "2026-08-01"],
        &asked(&["--format", "xml"]),
    ] {
        let refused = command(&database, wrong).await;
        assert_eq!(refused.code, Some(2), "{wrong:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_found_by_its_index() {
    let (database, node) = books().await;
    database
        .execute(
            "insert into usage_receipts select tenant_id, gen_random_uuid(), request_id, idempotency_key,
                endpoint, subject, model, 1, 1, 1, 1, 1, usage_source, cost_usd, 1, gen_random_uuid(),
                record_day, timestamptz '2025-01-01' + n * interval '1 minute'
            from usage_receipts, generate_series(1, 5000) n where created_at = '2026-08-01T00:00:00Z';
            analyze usage_receipts",
        )
        .await;
    let plan = "explain select sum(cost_usd) from usage_receipts where tenant_id = 't1'
        and created_at >= '2026-08-01' and created_at < '2026-09-01'";
    let plan: Vec<String> = sqlx::query_scalar(plan).fetch_all(&database.pool).await.unwrap();
    assert!(plan.join("\n").contains("usage_receipts_by_time"), "{plan:?}");
    assert!(node.shut_down().await);
}
