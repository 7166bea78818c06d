//! A client that mints a key for each attempt cannot be helped, but it can be seen.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::node::new_key;
use crate::support::process::ProcessNode;
use crate::support::provider::ScriptedProvider;
use crate::support::{Answer, Client, TestDatabase};

async fn ask(client: &Client, key: Uuid, user: &str, attempt: u32, message: &str) -> Answer {
    let body = json!({"conversation_id": format!("of {user}"), "message": message,
        "metadata": {"attempt": attempt}});
    client.send(client.chat_request(key, &body).header("x-end-user", user)).await.unwrap()
}

/// The sum of a counter over those of its labels that are not named.
async fn counted(client: &Client, name: &str, labels: &[&str]) -> u64 {
    let text = String::from_utf8(client.get("/metrics").await.bytes).unwrap();
    let of = |line: &&str| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    };
    text.lines()
        .filter(of)
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_each_attempt_moves_the_metric_and_nothing_else_does() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let node = ProcessNode::on(&database, &provider, &[]).await;
    let store = database.store();
    let client = Client::new(node.address, &new_key(&store, "t1", "client", None).await);
    let near = || counted(&client, "oncekey_near_identical_total", &["endpoint=\"chat\""]);

    let key = Uuid::new_v4();
    for attempt in 1..=3 {
        assert_eq!(ask(&client, key, "ann", attempt, "hello").await.status, 200);
    }
    assert_eq!(near().await, 0, "one key, as it should be");
    ask(&client, Uuid::new_v4(), "bob", 1, "hello").await;
    ask(&client, Uuid::new_v4(), "ann", 1, "another question").await;
    assert_eq!(near().await, 0, "two users, and two questions");
    let other = Client::new(node.address, &new_key(&store, "t2", "client", None).await);
    ask(&other, Uuid::new_v4(), "ann", 1, "hello").await;
    assert_eq!(near().await, 0, "two tenants");

    let minted = [Uuid::new_v4(), Uuid::new_v4()];
    for (attempt, key) in (2..).zip(minted) {
        ask(&client, key, "ann", attempt, "hello").await;
    }
    assert_eq!(near().await, 2);
    node.until_event("near_identical", |line| line["key"] == json!(minted[1])).await;
    let lines = node.events("near_identical");
    let told = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<Value>>();
    assert_eq!(told("key"), minted.map(|key| json!(key)));
    assert_eq!(told("earlier"), [json!(key), json!(minted[0])]);
    assert!(lines.iter().all(|line| line["request_id"].is_string()), "{lines:?}");

    // What clients tell of themselves: two repeats that were recovered, two that ran as if they were new.
    for outcome in ["replayed", "committed"] {
        let label = format!("outcome=\"{outcome}\"");
        let told = counted(&client, "oncekey_client_retries_total", &[&label]).await;
        assert_eq!(told, 2, "{outcome}");
    }
    let sources = counted(&other, "oncekey_requests_total", &["key_source=\"client\""]).await;
    assert_eq!(sources, 8, "the share of each source is known");
}
