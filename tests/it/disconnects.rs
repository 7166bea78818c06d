//! A client that goes away ends nothing: the run goes on, it is the only one, and its verdict is
//! there for the retry.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::node::{assert_clean, new_key};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

const CONVERSATION: &str = "c1";
const MESSAGE: &str = "hello";

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: ProcessNode,
    client: Client,
    key: Uuid,
    gate: Gate,
}

/// How a client leaves.
#[derive(Clone, Copy)]
enum Leave {
    /// It closes its connection.
    Close,
    /// Its connection breaks.
    Reset,
    /// It says that it will say no more, and then closes.
    HalfClose,
}

impl Scene {
    /// The provider holds its first answer half way.
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let gate = Gate::closed();
        provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
        let node = ProcessNode::on(&database, &provider, &[]).await;
        let api_key = new_key(&database.store(), "t1", "client", None).await;
        let client = Client::new(node.address, &api_key);
        Self { database, provider, node, client, key: Uuid::new_v4(), gate }
    }

    /// A connection on which the whole request has been sent.
    async fn send(&self) -> TcpStream {
        let body = json!({"conversation_id": CONVERSATION, "message": MESSAGE}).to_string();
        let request = format!(
            "POST /v1/chat HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
            content-type: application/json\r\nidempotency-key: {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.node.address,
            self.client.key,
            self.key,
            body.len()
        );
        let mut connection = TcpStream::connect(self.node.address).await.unwrap();
        connection.set_nodelay(true).unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        connection
    }

    /// Lets the provider answer, and gets the verdict; there is one.
    async fn assert_one_verdict(self) {
        self.gate.open();
        let answer = self.client.chat_until_answered(self.key, CONVERSATION, MESSAGE).await;
        assert_eq!(answer.status, 200);
        let again = self.client.chat(self.key, CONVERSATION, MESSAGE).await;
        assert!(again.replayed());
        assert_eq!(again.bytes, answer.bytes);
        assert_eq!(self.provider.count(), 1);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert_eq!(self.database.count("select max(fence) from request_records").await, 1);
        assert_clean(&self.database.store()).await;
        assert!(self.node.events("taken_over").is_empty());
    }
}

async fn leave(mut connection: TcpStream, how: Leave) {
    match how {
        Leave::Close => {}
        Leave::Reset => connection.set_zero_linger().unwrap(),
        Leave::HalfClose => {
            connection.shutdown().await.unwrap();
            // Whatever the server makes of it; the answer is never waited for.
            let mut byte = [0; 1];
            let read = connection.read(&mut byte);
            drop(tokio::time::timeout(Duration::from_millis(20), read).await);
        }
    }
}

async fn ten_in_a_row(how: Leave) {
    let scene = Scene::start().await;
    for _ in 0..10 {
        leave(scene.send().await, how).await;
    }
    scene.assert_one_verdict().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_close_at_once() {
    ten_in_a_row(Leave::Close).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_break_off_at_once() {
    ten_in_a_row(Leave::Reset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_end_their_half_and_leave() {
    ten_in_a_row(Leave::HalfClose).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_have_the_patience_of_50_ms() {
    let scene = Scene::start().await;
    for _ in 0..10 {
        let connection = scene.send().await;
        // What these clients do, not something that the test waits for.
        tokio::time::sleep(Duration::from_millis(50)).await;
        leave(connection, Leave::Close).await;
    }
    scene.assert_one_verdict().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_leave_while_the_provider_answers() {
    let scene = Scene::start().await;
    let first = scene.send().await;
    scene.gate.until_reached(1).await;
    leave(first, Leave::Reset).await;
    for number in 1..10 {
        let mut connection = scene.send().await;
        if number % 2 == 0 {
            // With the first byte of its 409.
            connection.read_exact(&mut [0; 1]).await.unwrap();
        }
        leave(connection, Leave::Close).await;
    }
    let alive = scene.client.chat(scene.key, CONVERSATION, MESSAGE).await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    // Nobody waits for it, and yet it comes to its end.
    scene.gate.open();
    scene.node.until_event("committed", |_| true).await;
    let answer = scene.client.chat(scene.key, CONVERSATION, MESSAGE).await;
    assert!(answer.replayed(), "the run of the first connection is the one that committed");
    scene.assert_one_verdict().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_was_lost_on_its_way_is_there_for_the_retry() {
    let scene = Scene::start().await;
    scene.gate.open();
    let connection = scene.send().await;
    // Committed and answered; the client's end of the connection breaks with the answer unread.
    scene.node.until_event("committed", |_| true).await;
    leave(connection, Leave::Reset).await;
    let answer = scene.client.chat(scene.key, CONVERSATION, MESSAGE).await;
    assert!(answer.replayed());
    scene.assert_one_verdict().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_runs_nothing() {
    let scene = Scene::start().await;
    let mut connection = TcpStream::connect(scene.node.address).await.unwrap();
    let head = format!(
        "POST /v1/chat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
        content-type: application/json\r\nidempotency-key: {}\r\ncontent-length: 1000\r\n\r\n\
        {{\"conversation_id\": \"c1\", \"message\": \"hello\"}}",
        scene.client.key, scene.key
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.shutdown().await.unwrap();
    // The server closes; whether it says something before is its own choice.
    let mut said = Vec::new();
    connection.read_to_end(&mut said).await.unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{said}");
    assert_eq!(scene.provider.count(), 0);
    assert_eq!(scene.database.count("select count(*) from request_keys").await, 0);
    scene.assert_one_verdict().await;
}
