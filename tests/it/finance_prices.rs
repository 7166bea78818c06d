//! The book of prices: a receipt names the prices that it was counted with, and what a model costs later
//! changes none that there is.

use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Reply, ScriptedProvider, Tokens};

const TOKENS: Tokens = Tokens { input: 1_000_000, output: 100_000, cache_read: 0, cache_write: 0 };

/// A node on which a million tokens cost so much.
async fn at(database: &TestDatabase, provider: &ScriptedProvider, usd: &str) -> TestNode {
    let options = NodeOptions::default()
        .set("ONCEKEY_MODELS__DEFAULT__INPUT_USD_PER_MTOK", usd)
        .set("ONCEKEY_MODELS__DEFAULT__OUTPUT_USD_PER_MTOK", "10");
    TestNode::start(database, provider, options).await
}

async fn chat_at(database: &TestDatabase, provider: &ScriptedProvider, usd: &str) {
    let node = at(database, provider, usd).await;
    provider.reply(Reply::text_and_tokens("good day", TOKENS));
    assert_eq!(node.client("t1").await.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_price_is_a_new_row_and_old_receipts_stay_as_they_are() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let receipts = "select string_agg(concat_ws(' ', cost_usd, input_usd_per_mtok,
            output_usd_per_mtok), ';' order by created_at) from finance.receipts";
    chat_at(&database, &provider, "1").await;
    assert_eq!(database.text(receipts).await, "2.000000000 1 10");
    chat_at(&database, &provider, "1.0").await;
    assert_eq!(
        database.count("select count(*) from model_prices").await,
        1,
        "1 and 1.0 are one price"
    );
    chat_at(&database, &provider, "2.5").await;
    chat_at(&database, &provider, "1").await;
    assert_eq!(
        database.text(receipts).await,
        "2.000000000 1 10;2.000000000 1 10;3.500000000 2.5 10;2.000000000 1 10"
    );
    let book =
        "select string_agg(concat_ws(' ', model, provider, upstream, input_usd_per_mtok, source),
        ';' order by from_time) from finance.prices";
    assert_eq!(
        database.text(book).await,
        "default main fake-model-1 1 configuration;default main fake-model-1 2.5 configuration;\
        default main fake-model-1 1 configuration"
    );
    for change in [
        "update model_prices set input_usd_per_mtok = 7",
        "delete from model_prices",
        "truncate model_prices",
    ] {
        let error = sqlx::query(change).execute(&database.pool).await.unwrap_err();
        assert!(error.to_string().contains("never changed"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_together_book_a_price_once() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let start = || at(&database, &provider, "3");
    let nodes = tokio::join!(start(), start(), start());
    assert_eq!(database.count("select count(*) from model_prices").await, 1);
    for node in [nodes.0, nodes.1, nodes.2] {
        assert!(node.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_names_its_price_whatever_became_of_it() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let options = NodeOptions::default()
        .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "2")
        .set("ONCEKEY_RETRY__TOTAL_WAIT", "2s");
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    provider.reply_times(2, &Reply::reset());
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 502);
    provider.reply(Reply::reset());
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    provider.reply(Reply::tool_file("ok.txt"));
    assert_eq!(client.parse(Uuid::new_v4(), "MARA: Is it boiling?\n").await.status, 200);
    assert_eq!(database.count("select count(*) from provider_calls").await, 5);
    for table in ["provider_calls", "usage_receipts"] {
        let unnamed = format!(
            "select count(*) from {table} t left join model_prices p using (price_id)
            where p.price_id is null"
        );
        assert_eq!(database.count(&unnamed).await, 0, "{table}");
    }
    assert!(node.shut_down().await);
}
