//! Whoever arrives, at whatever node and however many at once: one key is one run of one tenant's
//! operation, and everybody learns its outcome.

use serde_json::json;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, default_answer};
use crate::support::{Client, TestDatabase};

/// Two nodes on one database.
async fn two_nodes(database: &TestDatabase, provider: &ScriptedProvider) -> [TestNode; 2] {
    [
        TestNode::start(database, provider, NodeOptions::default()).await,
        TestNode::start(database, provider, NodeOptions::default()).await,
    ]
}

/// One tenant's client at each of two nodes.
async fn clients(nodes: &[TestNode; 2], tenant: &str) -> [Client; 2] {
    let first = nodes[0].client(tenant).await;
    let second = first.at(nodes[1].address());
    [first, second]
}

/// A 409 tells when to ask again, within the contract's bounds, in both forms.
pub fn assert_says_when(answer: &Answer) {
    let body = answer.json();
    let wait = body["retry_after_ms"].as_u64().unwrap();
    assert!((500..=10_000).contains(&wait), "{body}");
    let seconds = wait.div_ceil(1_000).to_string();
    assert_eq!(answer.header("retry-after"), Some(seconds.as_str()));
    assert_eq!(body["retryable"], true);
    assert_eq!(body["request_id"].as_str(), answer.header("x-request-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_identical_requests_at_two_nodes_are_one_run_and_one_answer() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let nodes = two_nodes(&database, &provider).await;
    let clients = clients(&nodes, "t1").await;
    let key = Uuid::new_v4();

    let mut arrivals = JoinSet::new();
    for number in 0..100 {
        let client = clients[number % 2].clone();
        arrivals.spawn(async move { client.chat(key, "c1", "hello").await });
    }
    // While the provider holds its answer, everybody but the winner is told to come back.
    for _ in 0..99 {
        let told = arrivals.join_next().await.unwrap().unwrap();
        assert_eq!((told.status, told.error().as_str()), (409, "in_progress"));
        assert_says_when(&told);
    }
    provider.until_requests(1).await;
    gate.open();
    let winner = arrivals.join_next().await.unwrap().unwrap();
    assert_eq!(winner.status, 200);
    assert!(!winner.replayed());

    let run = winner.json()["request_id"].as_str().unwrap().to_owned();
    let mut retries = JoinSet::new();
    for number in 0..100 {
        let client = clients[number % 2].clone();
        retries.spawn(async move { client.chat(key, "c1", "hello").await });
    }
    for retry in retries.join_all().await {
        assert_eq!((retry.status, &retry.bytes), (200, &winner.bytes));
        assert!(retry.replayed());
        assert_eq!(retry.header("x-idempotent-replay"), Some(run.as_str()));
    }
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_eq!(database.standing(key).await, (1, 1, "committed".into(), None));
    assert_clean(nodes[0].store()).await;
    for node in nodes {
        assert!(node.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_operations_at_once_in_one_conversation_see_every_earlier_answer() {
    const OPERATIONS: usize = 20;
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let nodes = two_nodes(&database, &provider).await;
    let clients = clients(&nodes, "t1").await;

    let mut operations = JoinSet::new();
    for number in 0..OPERATIONS {
        let client = clients[number % 2].clone();
        operations.spawn(async move {
            let message = format!("question {number}");
            client.chat_until_answered(Uuid::new_v4(), "c1", &message).await
        });
    }
    for answer in operations.join_all().await {
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    }

    let turns = clients[0].get("/v1/conversations/c1/turns").await.json()["turns"].clone();
    let turns: Vec<(String, String)> = turns
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(place, turn)| {
            assert_eq!(turn["seq"].as_u64().unwrap(), place as u64 + 1, "gapless");
            let text = |name: &str| turn[name].as_str().unwrap().to_owned();
            (text("role"), text("content"))
        })
        .collect();
    assert_eq!(turns.len(), 2 * OPERATIONS);
    for (place, (role, _)) in turns.iter().enumerate() {
        assert_eq!(role, ["user", "assistant"][place % 2], "they alternate");
    }
    // The prompts that the provider saw are the conversation as it stood, each one answer longer.
    let requests = provider.requests();
    assert_eq!(requests.len(), OPERATIONS);
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(request.messages(), turns[..=2 * number], "prompt {number}");
    }
    assert_eq!(database.outcomes().await, (20, 20, 20));
    assert_clean(nodes[0].store()).await;
    for node in nodes {
        assert!(node.shut_down().await);
    }
}

/// What a client can tell one answer from another by, without what is new in every answer.
fn seen(answer: &Answer) -> (u16, Vec<String>, serde_json::Value) {
    let mut names: Vec<String> = answer.headers.keys().map(ToString::to_string).collect();
    names.sort();
    let mut body = answer.json();
    for id in ["request_id", "turn_id"] {
        if let Some(id) = body.get_mut(id) {
            *id = json!("an id");
        }
    }
    (answer.status, names, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_at_two_tenants_is_two_operations_that_know_nothing_of_each_other() {
    let provider = ScriptedProvider::start().await;
    let key = Uuid::new_v4();
    let other_body = json!({"conversation_id": "c1", "message": "something else"});

    // What t2 sees where t1 was there before it, with the key in progress, answered and refused;
    // and what it sees on a database of its own.
    let mut views = Vec::new();
    for with_t1 in [true, false] {
        let database = TestDatabase::new().await;
        let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
        let (t1, t2) = (node.client("t1").await, node.client("t2").await);
        let before = provider.count();
        if with_t1 {
            assert_eq!(t1.chat(key, "c1", "hello").await.status, 200);
        }
        let unknown = t2.get(&format!("/v1/requests/{key}")).await;
        let turns = t2.get("/v1/conversations/c1/turns").await;
        let first = t2.chat(key, "c1", "hello").await;
        let changed = t2.send(t2.chat_request(key, &other_body)).await.unwrap();
        let again = t2.chat(key, "c1", "hello").await;
        assert_eq!((unknown.status, turns.status, first.status), (404, 404, 200));
        assert_eq!((changed.status, changed.error().as_str()), (422, "idempotency_key_reuse"));
        assert_eq!(again.bytes, first.bytes);
        views.push([unknown, turns, first, changed, again.clone()].map(|answer| seen(&answer)));

        let runs = if with_t1 { 2 } else { 1 };
        assert_eq!(provider.count() - before, runs);
        let outcomes = i64::try_from(runs).unwrap();
        assert_eq!(database.outcomes().await, (outcomes, outcomes, outcomes));
        if with_t1 {
            // t2's prompt held nothing of t1's conversation, and t1's record was not touched.
            assert_eq!(provider.requests()[before + 1].messages().len(), 1);
            let replay = t1.chat(key, "c1", "hello").await;
            assert_eq!(replay.status, 200);
            assert!(replay.replayed());
            assert_ne!(replay.json()["request_id"], again.json()["request_id"]);
            let of_each = "select count(distinct operation_id) from usage_receipts
                where tenant_id in ('t1', 't2')";
            assert_eq!(database.count(of_each).await, 2);
        }
        assert_clean(node.store()).await;
        assert!(node.shut_down().await);
    }
    assert_eq!(views[0], views[1]);
    assert_eq!(views[0][2].2["message"]["content"], default_answer(1, "hello"));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_question_under_a_running_key_learns_nothing_of_the_run() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.chat(key, "c1", "hello").await }
    });
    provider.until_requests(1).await;

    let bodies = [
        json!({"conversation_id": "c1", "message": "hello!"}),
        json!({"conversation_id": "c2", "message": "hello"}),
        json!({"conversation_id": "c1", "message": "hello", "options": {"max_tokens": 7}}),
    ];
    for body in bodies {
        let refused = client.send(client.chat_request(key, &body)).await.unwrap();
        assert_eq!((refused.status, refused.error().as_str()), (422, "idempotency_key_reuse"));
        let problem = refused.json();
        assert_eq!(problem["request_id"].as_str(), refused.header("x-request-id"));
        assert!(problem.get("retry_after_ms").is_none());
        assert_eq!(problem["retryable"], false);
    }
    // On behalf of an end user it is another question too.
    let body = json!({"conversation_id": "c1", "message": "hello"});
    let request = client.chat_request(key, &body).header("x-end-user", "somebody");
    assert_eq!(client.send(request).await.unwrap().error(), "idempotency_key_reuse");

    gate.open();
    assert_eq!(run.await.unwrap().status, 200);
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert!(node.shut_down().await);
}
