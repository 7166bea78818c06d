//! Events to NATS JetStream: under the event's id, and delivered when the stream has stored them.

use crate::support::TestDatabase;
use crate::support::hook::Hook;
use crate::support::nats::{NatsServer, Say};
use crate::support::node::NodeOptions;
use crate::support::outbox::{put, relay, sink, variables};
use crate::support::process::ProcessNode;

fn nats(url: &str, also: &str) -> String {
    format!("{{ kind = 'nats', url = '{url}'{also} }}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_published_under_its_id_and_its_type() {
    let database = TestDatabase::new().await;
    let server = NatsServer::deciding(|_| Say::Stored).await;
    let options = NodeOptions::default().set("TEST_NATS_TOKEN", "hush");
    let sink = nats(&server.url(), ", secret_env = 'TEST_NATS_TOKEN'");
    let node = relay(&database, &[sink], options).await;
    let id = put(&database, "c1", 7).await;
    database.until_published(1).await;
    let messages = server.messages();
    assert_eq!(messages.len(), 1);
    let message = &messages[0];
    assert_eq!(message.subject, "oncekey.call_completed");
    assert_eq!(message.header("Nats-Msg-Id"), id.to_string());
    assert_eq!(message.header("Content-Type"), "application/cloudevents+json; charset=utf-8");
    assert_eq!(message.payload["id"], id.to_string());
    assert_eq!(message.payload["data"]["number"], 7);
    assert_eq!(message.connect["auth_token"], "hush");
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_before_the_acknowledgement_makes_it_come_again_as_the_same() {
    let database = TestDatabase::new().await;
    let mut tries = 0;
    let server = NatsServer::deciding(move |_| {
        tries += 1;
        if tries <= 2 { Say::Cut } else { Say::Stored }
    })
    .await;
    let sink = nats(&server.url(), ", subject = 'usage.{type}.v1', timeout = '500ms'");
    let node = relay(&database, &[sink], NodeOptions::default()).await;
    let id = put(&database, "c1", 1).await;
    database.until_published(1).await;
    let messages = server.messages();
    assert_eq!(
        messages.iter().map(|message| message.stored).collect::<Vec<_>>(),
        [false, false, true]
    );
    assert!(messages.iter().all(|message| message.header("Nats-Msg-Id") == id.to_string()));
    assert_eq!(messages[2].subject, "usage.call_completed.v1");
    assert_eq!(database.count("select attempts::bigint from outbox").await, 0);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_stream_is_said_and_costs_no_attempt() {
    let database = TestDatabase::new().await;
    let server = NatsServer::deciding(|_| Say::NobodyThere).await;
    let mut all = variables(&[nats(&server.url(), "")]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    let node = ProcessNode::start(all).await;
    put(&database, "c1", 1).await;
    let line = node.until_event("sink_down", |_| true).await;
    let why = line["why"].as_str().unwrap();
    assert!(why.contains("no stream takes the subject oncekey.call_completed"), "{why}");
    assert_eq!(database.count("select attempts::bigint from outbox").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_for_the_server_or_its_stream_is_a_dead_letter() {
    let database = TestDatabase::new().await;
    let server = NatsServer::deciding(|message| match message.payload["data"]["number"].as_i64() {
        Some(2) => Say::Error(10_054, "message size exceeds maximum allowed"),
        _ => Say::Stored,
    })
    .await;
    let node = relay(&database, &[nats(&server.url(), "")], NodeOptions::default()).await;
    put(&database, "good", 1).await;
    database.until_published(1).await;
    let by_stream = put(&database, "c2", 2).await;
    let by_server = uuid::Uuid::now_v7();
    let large = "insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
        values ($1, 't1', 'conversation', 'c3', 'call_completed',
            jsonb_build_object('x', repeat('x', 9000)))";
    sqlx::query(large).bind(by_server).execute(&database.pool).await.unwrap();
    database.until_dead(by_stream).await;
    database.until_dead(by_server).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_holds_up_no_other_sink() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let sinks = [nats("nats://127.0.0.1:1", ""), sink(&hook)];
    let node = relay(&database, &sinks, NodeOptions::default()).await;
    for number in 0..5 {
        put(&database, "c1", number).await;
    }
    hook.until_taken(5).await;
    assert_eq!(
        database.count("select count(*) from outbox where published_at is not null").await,
        0
    );
    node.shut_down().await;
}

/// Kills a real server when dropped.
struct RealServer(std::process::Child);

impl Drop for RealServer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Against the server itself, where its binary is on the machine: `cargo test --test it -- --ignored
/// nats_server`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the binary nats-server"]
async fn a_real_nats_server_stores_an_event_once_however_often_it_is_sent() {
    use async_nats::jetstream;
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nats");
    drop(std::fs::remove_dir_all(&folder));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let arguments =
        ["-js", "-a", "127.0.0.1", "-p", &free.port().to_string(), "--auth", "hush", "-sd"];
    let server = std::process::Command::new("nats-server")
        .args(arguments)
        .arg(&folder)
        .stderr(std::process::Stdio::null())
        .spawn();
    let _server = RealServer(server.unwrap());
    let database = TestDatabase::new().await;
    let url = format!("nats://{free}");
    let options = NodeOptions::default().set("TEST_NATS_TOKEN", "hush");
    let sink = nats(&url, ", secret_env = 'TEST_NATS_TOKEN', name = 'real'");
    let node = relay(&database, &[sink], options).await;
    let id = put(&database, "c1", 7).await;
    // First there is no stream, which costs nothing; then there is one.
    let client = async_nats::ConnectOptions::with_token("hush".into())
        .retry_on_initial_connect()
        .connect(&url)
        .await
        .unwrap();
    let context = jetstream::new(client);
    let config = jetstream::stream::Config {
        name: "EVENTS".into(),
        subjects: vec!["oncekey.>".into()],
        ..Default::default()
    };
    crate::support::eventually("the stream is made", || async {
        context.get_or_create_stream(config.clone()).await.is_ok()
    })
    .await;
    database.until_published(1).await;
    assert_eq!(database.count("select attempts::bigint from outbox").await, 0);
    // As if the relay had died before it marked it.
    database.execute("update outbox set published_at = null, acked_by = '{}'").await;
    database.until_published(1).await;
    let mut stream = context.get_stream("EVENTS").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 1);
    let message = stream.get_raw_message(1).await.unwrap();
    assert_eq!(message.subject.as_str(), "oncekey.call_completed");
    let body: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!(body["id"], id.to_string());
    node.shut_down().await;
}
