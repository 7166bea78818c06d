//! A run is cancelled by request, here and at another node; a conversation is deleted.

use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, patiently};
use crate::support::{Answer, Client, TestDatabase};

async fn post(client: &Client, path: &str) -> Answer {
    client.send(client.request("POST", path)).await.unwrap()
}

async fn delete(client: &Client, path: &str) -> Answer {
    client.send(client.request("DELETE", path)).await.unwrap()
}

async fn start() -> (TestDatabase, ScriptedProvider, TestNode, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    // Beats often, so that the node of a run that was cancelled elsewhere learns it soon.
    let options = NodeOptions::default().set("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "200ms");
    let here = TestNode::start(&database, &provider, options.clone()).await;
    let there = TestNode::start(&database, &provider, options).await;
    let client = here.client("t1").await;
    (database, provider, here, there, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_ends_at_once_and_its_key_runs_again() {
    let (database, provider, here, there, client) = start().await;
    for canceller in [here.address(), there.address()] {
        let calls = provider.count();
        provider.reply(Reply::hang());
        let key = Uuid::new_v4();
        let sender = client.clone();
        let run = tokio::spawn(async move { sender.chat(key, "c1", "hello").await });
        provider.until_requests(calls + 1).await;

        let cancelled = post(&client.at(canceller), &format!("/v1/requests/{key}/cancel")).await;
        assert_eq!(cancelled.status, 200, "{:?}", cancelled.json());
        assert_eq!(cancelled.json()["state"], "failed");
        assert_eq!(cancelled.json()["failure"]["error"], "cancelled");
        let told = patiently("the run's own client", run).await.unwrap();
        assert_eq!((told.status, told.error().as_str()), (409, "cancelled"));
        assert_eq!(told.json()["retryable"], false);
        provider.until_client_gone(calls + 1).await;

        // The conversation is free, the key runs again, and the cancelled run does not count.
        let again = client.at(there.address()).chat(key, "c1", "hello").await;
        assert_eq!(again.status, 200);
        let record = client.get(&format!("/v1/requests/{key}")).await.json();
        assert_eq!(
            (record["state"].as_str(), record["attempts"].as_u64()),
            (Some("committed"), Some(1))
        );
    }
    assert_eq!(database.outcomes().await, (2, 2, 2));
    let wasted =
        "select count(*) from provider_calls where not counted and failure_kind = 'cancelled'";
    assert_eq!(database.count(wasted).await, 2);
    assert_clean(here.store()).await;
    assert!(here.shut_down().await && there.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_what_does_not_run_changes_nothing() {
    let (database, _provider, here, there, client) = start().await;
    let key = Uuid::new_v4();
    let missing = post(&client, &format!("/v1/requests/{key}/cancel")).await;
    assert_eq!((missing.status, missing.error().as_str()), (404, "not_found"));
    let first = client.chat(key, "c1", "hello").await;
    let record = post(&client, &format!("/v1/requests/{key}/cancel")).await;
    assert_eq!(record.json()["state"], "committed");
    let stranger = here.client("t2").await;
    assert_eq!(post(&stranger, &format!("/v1/requests/{key}/cancel")).await.status, 404);
    assert_eq!(client.chat(key, "c1", "hello").await.bytes, first.bytes);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert!(here.shut_down().await && there.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_conversation_is_gone_with_its_answers_and_its_receipts_stay() {
    let (database, provider, here, there, client) = start().await;
    let key = Uuid::new_v4();
    client.chat(key, "c1", "hello").await;
    client.chat(Uuid::new_v4(), "c1", "more").await;
    client.chat(Uuid::new_v4(), "c2", "other").await;
    let stranger = here.client("t2").await;
    assert_eq!(delete(&stranger, "/v1/conversations/c1").await.status, 404);

    assert_eq!(delete(&client, "/v1/conversations/c1").await.status, 204);
    assert_eq!(delete(&client, "/v1/conversations/c1").await.status, 404);
    assert_eq!(client.get("/v1/conversations/c1/turns").await.status, 404);
    let erased = client.chat(key, "c1", "hello").await;
    assert_eq!((erased.status, erased.error().as_str()), (410, "erased"));
    assert_eq!(database.count("select count(*) from turns").await, 2);
    assert_eq!(database.count("select count(*) from usage_receipts").await, 3);
    let kept = "select count(*) from request_records where conversation_id = 'c1' and response is not null";
    assert_eq!(database.count(kept).await, 0);

    // The name is free again: a new conversation begins.
    let fresh = client.chat(Uuid::new_v4(), "c1", "hello again").await;
    assert_eq!(fresh.status, 200);
    assert_eq!(provider.requests().last().unwrap().messages().len(), 1);
    assert_clean(here.store()).await;
    assert!(here.shut_down().await && there.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_in_which_something_runs_is_not_deleted() {
    let (database, provider, here, there, client) = start().await;
    let gate = Gate::closed();
    client.chat(Uuid::new_v4(), "c1", "hello").await;
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let sender = client.clone();
    let run = tokio::spawn(async move { sender.chat(Uuid::new_v4(), "c1", "more").await });
    provider.until_requests(2).await;
    let busy = delete(&client.at(there.address()), "/v1/conversations/c1").await;
    assert_eq!((busy.status, busy.error().as_str()), (409, "conversation_busy"));
    assert!(busy.json()["retry_after_ms"].as_u64().is_some());
    gate.open();
    assert_eq!(run.await.unwrap().status, 200);
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert_eq!(delete(&client, "/v1/conversations/c1").await.status, 204);
    assert_clean(here.store()).await;
    assert!(here.shut_down().await && there.shut_down().await);
}
