//! `Prefer: wait`: an arrival waits for somebody else's run, at whatever node, and takes over what
//! goes stale meanwhile.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, patiently};
use crate::support::{Answer, Client, TestDatabase, eventually};

async fn waits(client: &Client, key: Uuid, message: &str, seconds: u64) -> Answer {
    let body = json!({"conversation_id": "c1", "message": message});
    let request = client.chat_request(key, &body).header("prefer", format!("wait={seconds}"));
    client.send(request).await.unwrap()
}

/// Two nodes on one database, and a run at the first that the provider holds.
struct Held {
    database: TestDatabase,
    provider: ScriptedProvider,
    nodes: [TestNode; 2],
    client: Client,
    gate: Gate,
    key: Uuid,
    first: tokio::task::JoinHandle<Answer>,
}

impl Held {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let gate = Gate::closed();
        provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
        let nodes = [
            TestNode::start(&database, &provider, NodeOptions::default()).await,
            TestNode::start(&database, &provider, NodeOptions::default()).await,
        ];
        let client = nodes[0].client("t1").await;
        let key = Uuid::new_v4();
        let sender = client.clone();
        let first = tokio::spawn(async move { sender.chat(key, "c1", "hello").await });
        provider.until_requests(1).await;
        Self { database, provider, nodes, client, gate, key, first }
    }

    async fn end(self) {
        self.database.until_settled().await;
        assert_clean(self.nodes[0].store()).await;
        for node in self.nodes {
            assert!(node.shut_down().await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_verdict_of_the_run_here_and_elsewhere() {
    let held = Held::new().await;
    let mut waiting = Vec::new();
    for node in &held.nodes {
        let client = held.client.at(node.address());
        let key = held.key;
        waiting.push(tokio::spawn(async move { waits(&client, key, "hello", 1_000).await }));
    }
    held.gate.open();
    let first = held.first.await.unwrap();
    for waiting in waiting {
        let answer = patiently("the waiting answer", waiting).await.unwrap();
        assert_eq!(answer.bytes, first.bytes);
        assert_eq!(answer.header("preference-applied"), Some("wait=900"));
    }
    assert_eq!(held.provider.count(), 1);
    assert_eq!(held.database.outcomes().await, (1, 1, 1));
    for node in held.nodes {
        assert!(node.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_says_so_and_the_run_goes_on() {
    let held = Held::new().await;
    let client = held.client.at(held.nodes[1].address());
    let answer = waits(&client, held.key, "hello", 1).await;
    assert_eq!((answer.status, answer.error().as_str()), (503, "wait_timeout"));
    assert!(answer.header("retry-after").is_some());
    held.gate.open();
    let (key, provider) = (held.key, &held.provider);
    provider.until_idle().await;
    assert_eq!(client.chat_until_answered(key, "c1", "hello").await.status, 200);
    assert_eq!(provider.count(), 1);
    held.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_question_that_waits_is_asked_after_the_first_answer() {
    let held = Held::new().await;
    let client = held.client.at(held.nodes[1].address());
    let second = tokio::spawn(async move { waits(&client, Uuid::new_v4(), "and now?", 60).await });
    held.gate.open();
    let first = held.first.await.unwrap().content();
    assert_eq!(patiently("the second answer", second).await.unwrap().status, 200);
    let prompt = held.provider.requests()[1].messages();
    let said = |role: &str, text: &str| (role.to_owned(), text.to_owned());
    assert_eq!(
        prompt,
        [said("user", "hello"), said("assistant", &first), said("user", "and now?")]
    );
    assert_eq!(held.database.outcomes().await, (2, 2, 2));
    for node in held.nodes {
        assert!(node.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_takes_over_a_run_that_goes_stale() {
    let held = Held::new().await;
    let client = held.client.at(held.nodes[1].address());
    let key = held.key;
    let waiting = tokio::spawn(async move { waits(&client, key, "hello", 60).await });
    eventually("the poll looks at the run", || async {
        // Its owner is gone as far as the database knows, and has been for long.
        held.database
            .execute(
                "update server_epoch set first_seen = clock_timestamp() - interval '1 hour';
                update request_records set heartbeat_at = clock_timestamp() - interval '1 hour'
                where fence = 1",
            )
            .await;
        held.provider.count() == 2
    })
    .await;
    let answer = patiently("the answer of the taker", waiting).await.unwrap();
    assert_eq!(answer.status, 200, "{:?}", answer.json());
    held.gate.open();
    let fenced = held.first.await.unwrap();
    assert_ne!(fenced.status, 500);
    assert_eq!(held.database.outcomes().await, (1, 1, 1));
    for node in held.nodes {
        node.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_while_it_waits_starts_nothing_later() {
    let held = Held::new().await;
    let client = held.client.at(held.nodes[1].address());
    let waiting = tokio::spawn(async move { waits(&client, Uuid::new_v4(), "and now?", 60).await });
    let lifecycle = held.nodes[1].app().lifecycle().clone();
    eventually("the second question waits", || async { lifecycle.runs() == 1 }).await;
    waiting.abort();
    eventually("nobody waits", || async { lifecycle.runs() == 0 }).await;
    held.gate.open();
    held.first.await.unwrap();
    assert_eq!(held.provider.count(), 1);
    held.database.until_settled().await;
    for node in held.nodes {
        let drained = tokio::time::timeout(Duration::from_secs(20), node.shut_down()).await;
        assert_eq!(drained, Ok(true));
    }
}
