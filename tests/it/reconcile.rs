//! `oncekey reconcile`: a provider's export beside our own calls and receipts.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, provider_variables};
use crate::support::process::{Ended, run};
use crate::support::provider::{Reply, ScriptedProvider, Tokens, Wire};

const TOKENS: Tokens = Tokens { input: 100, output: 10, cache_read: 7, cache_write: 3 };

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    folder: PathBuf,
}

/// Two chats, one of them after a call whose answer broke a rule and was paid for nothing.
async fn scene() -> Scene {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let options = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__MAX_CHARS", "20");
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    provider.reply(Reply::text_and_tokens("good day", TOKENS));
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    provider.reply(Reply::text_and_tokens("this is a longer answer than is taken", TOKENS));
    provider.reply(Reply::text_and_tokens("short", TOKENS));
    let other = node.client("t2").await;
    assert_eq!(other.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    // What is said depends on the day, so all of it is on one.
    database.execute("update provider_calls set started_at = '2026-08-05T12:00:00Z'").await;
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bill-{}", Uuid::new_v4()));
    std::fs::create_dir_all(&folder).unwrap();
    Scene { database, provider, node, folder }
}

impl Scene {
    /// Calls of that day are looked for among operations that were named then.
    async fn name_operations(&self) {
        for table in ["provider_calls", "usage_receipts"] {
            self.database
                .execute(&format!(
                    "update {table} set operation_id = ('019fd1cb' || substr(operation_id::text, 9))::uuid"
                ))
                .await;
        }
    }

    async fn reconcile(&self, csv: &str, arguments: &[&str]) -> Ended {
        let file = self.folder.join("export.csv");
        std::fs::write(&file, csv).unwrap();
        let mut variables = provider_variables(&self.provider, Wire::Anthropic);
        variables.push(("DATABASE_URL".to_owned(), self.database.url.clone()));
        let file = file.to_str().unwrap();
        let all = [&["reconcile", "--provider-csv", file], arguments].concat();
        run(Path::new("/"), &all, &variables).await
    }

    async fn end(self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
        assert!(self.node.shut_down().await);
    }
}

const ANTHROPIC: &str = "usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,\
    usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,\
    usage_output_tokens,web_search_count";

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_says_what_our_calls_say_reconciles_and_shows_what_was_wasted() {
    let scene = scene().await;
    scene.name_operations().await;
    let csv = format!(
        "{ANTHROPIC}\n2026-08-05,fake-model-1-20260101,one,200,6,0,14,20,0\n\
        2026-08-05,fake-model-1-20260101,two,100,0,3,7,10,0\n"
    );
    let table = scene.reconcile(&csv, &[]).await;
    assert_eq!(table.code, Some(0), "{}{}", table.stdout, table.stderr);
    for part in ["agrees", "committed: ", "in 2 calls", "wasted, invalid: ", "unknown: 0 calls"] {
        assert!(table.stdout.contains(part), "{part}: {}", table.stdout);
    }
    let csv_out = scene.reconcile(&csv, &["--format", "csv"]).await;
    let line = csv_out.stdout.lines().nth(1).unwrap();
    // 100 + 10 * 5 + 7 * 0.1 + 3 * 1.25 millionths of a dollar for each call.
    assert_eq!(
        line,
        "2026-08-05,fake-model-1,360,240,120,0,,0.000308900,0.000154450,,3,0,invalid 1,agrees"
    );

    let less = csv.replace("one,200", "one,190");
    let differs = scene.reconcile(&less, &[]).await;
    assert_eq!(differs.code, Some(1));
    assert!(differs.stdout.contains("DIFFERS (input -10)"), "{}", differs.stdout);
    assert!(differs.stderr.contains("1 of 1 lines differ"), "{}", differs.stderr);
    assert_eq!(differs.stderr.lines().count(), 1);
    assert_eq!(scene.reconcile(&less, &["--tolerance", "5"]).await.code, Some(0));
    let more = csv.replace("one,200", "one,210");
    assert_eq!(scene.reconcile(&more, &[]).await.code, Some(1));
    // A call that did not tell explains that there is more, and that it is not known for what.
    scene
        .database
        .execute(
            "insert into provider_calls (tenant_id, operation_id, request_id, call_no, counted, provider,
                model, route, failure_kind, started_at, ended_at, price_id)
            select tenant_id, operation_id, gen_random_uuid(), 9, false, provider, model, route, 'timeout',
                started_at, ended_at, price_id from provider_calls limit 1",
        )
        .await;
    let explained = scene.reconcile(&more, &[]).await;
    assert_eq!(explained.code, Some(0), "{}", explained.stderr);
    for part in ["unknown: 1 calls", "invalid 1; timeout 1", "  unknown"] {
        assert!(explained.stdout.contains(part), "{part}: {}", explained.stdout);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_other_names_other_models_and_broken_receipts() {
    let scene = scene().await;
    scene.name_operations().await;
    let cost = "usage_date_utc,model,token_type,cost_usd\n2026-08-05,Fake Model,output,0.00\n";
    let unnamed = scene.reconcile(cost, &[]).await;
    assert_eq!(unnamed.code, Some(0), "a model without any call, for nothing: {}", unnamed.stderr);
    let cost = cost.replace("0.00", "3.00");
    let stranger = scene.reconcile(&cost, &[]).await;
    assert_eq!(stranger.code, Some(1));
    assert!(stranger.stdout.contains("(no call of ours)"), "{}", stranger.stdout);
    let mapped = ["--map", "Fake Model=fake-model-1"];
    assert_eq!(scene.reconcile(&cost, &mapped).await.code, Some(1));
    assert_eq!(scene.reconcile(&cost.replace("3.00", "0.0005"), &mapped).await.code, Some(0));

    let own = "day,model,input_tokens,output_tokens,cache_read_tokens,cache_write_tokens\n\
        2026-08-04,fake-model-1,1,1,0,0\n2026-08-05,fake-model-1,300,30,21,9\n";
    let day_before = scene.reconcile(own, &[]).await;
    assert!(day_before.stderr.contains("1 of 2 lines differ"), "{}", day_before.stderr);
    let own = own.replace("2026-08-04,fake-model-1,1,1,0,0\n", "");
    assert_eq!(scene.reconcile(&own, &[]).await.code, Some(0));

    scene
        .database
        .execute(
            "update usage_receipts set created_at = '2026-08-05T12:00:01Z';
            update usage_receipts set output_tokens = 11 where tenant_id = 't1'",
        )
        .await;
    let receipts = scene.reconcile(&own, &[]).await;
    assert_eq!(receipts.code, Some(1));
    assert!(receipts.stdout.contains("receipts: 2 of these days"), "{}", receipts.stdout);
    assert!(receipts.stderr.contains("and 1 receipts are not"), "{}", receipts.stderr);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_cannot_be_read_is_refused_with_its_line() {
    let scene = scene().await;
    for (csv, code, said) in [
        ("", 1, "columns are those of no export"),
        ("a,b\n1,2\n", 1, "a, b; see docs/finance.md"),
        ("day,model,input_tokens,output_tokens\n", 1, "it has no lines"),
        (
            "day,model,input_tokens,output_tokens\n2026-08-05,m,1,2\n2026-08-05,m,many,2\n",
            1,
            "line 3",
        ),
        ("day,model,input_tokens,output_tokens\n2026-08-05,m,\"1\n2,2\n", 1, "line 2"),
    ] {
        let refused = scene.reconcile(csv, &[]).await;
        assert_eq!(
            (refused.code, refused.stderr.lines().count()),
            (Some(code), 1),
            "{}",
            refused.stderr
        );
        assert!(refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    let good = "day,model,input_tokens,output_tokens\n2026-08-05,m,0,0\n";
    for wrong in [&["--tolerance", "-1"][..], &["--provider", "nobody"], &["--map", "x"]] {
        let refused = scene.reconcile(good, wrong).await;
        assert_eq!(refused.code, Some(2), "{wrong:?}: {}", refused.stderr);
    }
    let missing = run(Path::new("/"), &["reconcile", "--provider-csv", "/nowhere.csv"], &[]).await;
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    scene.end().await;
}
