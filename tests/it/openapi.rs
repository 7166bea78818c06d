//! The document tells all that the service answers, and it is served where nothing else can be reached.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::contract::{document, violations};
use crate::support::node::{NodeOptions, TestNode};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Answer, Client, TestDatabase};

/// Whoever asks without an API key.
fn stranger(node: &TestNode) -> Client {
    Client::new(node.address(), "ok_none")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_and_its_page_are_there_without_a_key() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let told = stranger(&node).get("/openapi.json").await;
    assert_eq!(told.header("content-type"), Some("application/json"));
    assert_eq!(&told.json(), document());
    assert_eq!(told.json()["openapi"], "3.1.0");
    let page = stranger(&node).get("/docs").await;
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(String::from_utf8(page.bytes).unwrap().contains("Parse a document"));
    assert!(node.shut_down().await);
}

/// The check that every other test's answers go through finds what is not told.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_told_is_found() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let answer = node.client("t1").await.chat(Uuid::new_v4(), "c1", "hello").await;
    let wrong = |answer: &Answer| violations("POST", "/v1/chat", answer).join("; ");
    assert_eq!(wrong(&answer), "");
    for (change, part) in [
        (with_status(&answer, 418), "status 418"),
        (with_header(&answer, "x-surprise", "1"), "x-surprise"),
        (with_header(&answer, "content-type", "text/html"), "text/html"),
        (with_body(&answer, "usage", None), "usage"),
        (with_body(&answer, "turn_id", Some(json!(7))), "/turn_id"),
        (with_status(&answer, 404), "application/json is not told"),
    ] {
        assert!(wrong(&change).contains(part), "{part} in {:?}", wrong(&change));
    }
    assert!(violations("GET", "/v1/nothing", &answer) == ["no problem"]);
    assert!(node.shut_down().await);
}

fn with_status(answer: &Answer, status: u16) -> Answer {
    Answer { status, ..answer.clone() }
}

fn with_header(answer: &Answer, name: &'static str, value: &'static str) -> Answer {
    let mut answer = answer.clone();
    answer.headers.insert(name, value.parse().unwrap());
    answer
}

fn with_body(answer: &Answer, member: &str, value: Option<Value>) -> Answer {
    let mut body = answer.json();
    match value {
        Some(value) => body[member] = value,
        None => drop(body.as_object_mut().unwrap().remove(member)),
    }
    Answer { bytes: body.to_string().into_bytes(), ..answer.clone() }
}

/// One answer of each form that an operation has; that they are told is what the client looks after.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_every_form_are_told() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let finance = node.client_as("t1", "finance", None).await;
    let operator = node.client_as("t1", "operator", None).await;
    let send = |request| async { client.send(request).await.unwrap() };
    let key = Uuid::new_v4();
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    assert!(client.chat(key, "c1", "hello").await.replayed());
    assert_eq!(client.chat(key, "c1", "other").await.status, 422);
    let body = json!({"conversation_id": "c1", "message": "derived", "stream": true});
    let chat = client.request("POST", "/v1/chat").header("content-type", "application/json");
    let derived = send(chat.header("prefer", "wait=1000").body(body.to_string())).await;
    assert_eq!(derived.header("idempotency-key-source"), Some("derived"));
    assert_eq!(derived.header("preference-applied"), Some("wait=900"));

    let (gate, running) = (Gate::closed(), Uuid::new_v4());
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.chat(running, "c2", "slow").await }
    });
    provider.until_requests(3).await;
    assert_eq!(client.chat(running, "c2", "slow").await.error(), "in_progress");
    assert_eq!(client.chat(Uuid::new_v4(), "c2", "x").await.error(), "conversation_busy");
    let busy = send(client.request("DELETE", "/v1/conversations/c2")).await;
    assert_eq!(busy.error(), "conversation_busy");
    let cancel = send(client.request("POST", &format!("/v1/requests/{running}/cancel"))).await;
    assert_eq!(cancel.json()["failure"]["error"], "cancelled");
    assert_eq!(asked.await.unwrap().error(), "cancelled");
    gate.open();

    for of in [&client, &operator] {
        assert_eq!(of.get(&format!("/v1/requests/{key}")).await.status, 200);
    }
    let events = format!("/v1/requests/{key}/events");
    let told = client.get(&events).await;
    let last = String::from_utf8(told.bytes).unwrap();
    let last = last.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    let over = send(client.request("GET", &events).header("last-event-id", last)).await;
    assert_eq!(over.status, 204);
    assert_eq!(client.get("/v1/conversations/c1/turns?limit=1").await.json()["next"], 1);
    let usage = "/v1/usage?from=2026-01-01&to=2100-01-01";
    assert_eq!(finance.get(usage).await.json()["rows"][0]["operations"], 2);
    let csv = finance.request("GET", usage).header("accept", "text/csv");
    assert_eq!(finance.send(csv).await.unwrap().status, 200);
    assert_eq!(send(client.request("DELETE", "/v1/conversations/c1")).await.status, 204);
    assert_eq!(client.chat(key, "c1", "hello").await.error(), "erased");

    assert_eq!(client.parse_file(Uuid::new_v4(), b"\x7fELF", "x/y", "").await.status, 415);
    assert_eq!(client.parse(Uuid::new_v4(), "").await.json()["reason"], "empty");
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(stranger(&node).get(path).await.status, 200);
        assert_eq!(send(client.request("POST", path)).await.status, 405);
    }
    for path in ["/v1/requests/no", "/v1/requests/a,b", usage, "/v1/requests/no/events"] {
        assert!((400..405).contains(&client.get(path).await.status), "{path}");
        assert_eq!(stranger(&node).get(path).await.status, 401);
    }
    assert!(node.shut_down().await);
}
