//! A verdict is told again to whom it belongs, without a claim, and to nobody else.

use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::ScriptedProvider;
use crate::support::{Client, TestDatabase};

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_is_told_to_its_tenant_and_its_subject_while_their_key_is_known() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client_as("t1", "client", Some("s1")).await;
    let key = Uuid::new_v4();
    let first = client.chat(key, "c1", "hello").await;
    assert_eq!(first.status, 200);
    assert_eq!(client.chat(key, "c1", "hello").await.bytes, first.bytes);

    let stranger = node.client("t2").await;
    let of_another_tenant = stranger.chat(key, "c1", "hello").await;
    assert_eq!(of_another_tenant.status, 200);
    assert!(!of_another_tenant.replayed());
    assert_ne!(of_another_tenant.json()["request_id"], first.json()["request_id"]);
    for (other, status, error) in [
        (node.client_as("t1", "client", Some("s2")).await, 422, "idempotency_key_reuse"),
        (node.client_as("t1", "finance", None).await, 403, "forbidden"),
        (Client { key: "ok_unknown".to_owned(), ..client.clone() }, 401, "unauthorized"),
    ] {
        let refused = other.chat(key, "c1", "hello").await;
        assert_eq!((refused.status, refused.error().as_str()), (status, error));
    }

    database.execute("update api_keys set revoked_at = now() where subject = 's1'").await;
    let revoked = client.chat(key, "c1", "hello").await;
    assert_eq!((revoked.status, revoked.error().as_str()), (401, "unauthorized"));
    assert_eq!(provider.count(), 2);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_is_looked_at_before_the_key_of_the_operation() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let stranger = Client { key: "ok_unknown".to_owned(), ..client.clone() };
    for (client, status, error) in
        [(client, 400, "idempotency_key_invalid"), (stranger, 401, "unauthorized")]
    {
        let request = client
            .request("POST", "/v1/chat")
            .header("content-type", "application/json")
            .header("idempotency-key", "two, of them")
            .body(r#"{"conversation_id": "c1", "message": "hello"}"#);
        let answer = client.send(request).await.unwrap();
        assert_eq!((answer.status, answer.error().as_str()), (status, error));
    }
    assert!(node.shut_down().await);
}
