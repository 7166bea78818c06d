//! Traces go to a collector where one is named, and to nobody otherwise; a collector that is away or
//! silent costs an operation nothing; and nothing that a user wrote, nor a credential, goes there.

use std::path::Path;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;
use uuid::Uuid;

use crate::support::collector::{Collector, attribute, spans};
use crate::support::node::new_key;
use crate::support::process::ProcessNode;
use crate::support::provider::{Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

struct Traced {
    _database: TestDatabase,
    provider: ScriptedProvider,
    node: ProcessNode,
    client: Client,
}

impl Traced {
    /// A node with these variables, which delivers spans at once where it does at all.
    async fn start(variables: &[(&str, &str)]) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let variables = [&[("OTEL_BSP_SCHEDULE_DELAY", "20")][..], variables].concat();
        let node = ProcessNode::on(&database, &provider, &variables).await;
        let api_key = new_key(&database.store(), "t1", "client", None).await;
        let client = Client::new(node.address, &api_key);
        Self { _database: database, provider, node, client }
    }

    async fn ends_well(mut self) {
        self.node.signal("TERM").await;
        assert_eq!(self.node.ended().await, Some(0), "{:?}", self.node.raw_log());
    }
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_a_span_with_its_parts_and_nothing_private() {
    let collector = Collector::start().await;
    let endpoint = collector.endpoint();
    let traced = Traced::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=red"),
        ("OTEL_SERVICE_NAME", "front"),
        // The log is no condition for a trace.
        ("ONCEKEY_LOG_LEVEL", "error"),
    ])
    .await;
    let private = |what: &str| format!("PRIVATE-{what}-{}", Uuid::new_v4().simple());
    let [question, answer, conversation, metadata] =
        ["question", "answer", "conversation", "metadata"].map(private);
    let overloaded = Reply::status(529, &[("retry-after", "0")], "{}");
    traced.provider.reply(overloaded);
    traced.provider.reply(Reply::text(&answer));
    let key = Uuid::new_v4();
    let body =
        json!({"conversation_id": conversation, "message": question, "metadata": {"m": metadata}});
    let ask = async || {
        let request = traced.client.chat_request(key, &body);
        let request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01"));
        traced.client.send(request).await.unwrap()
    };
    let first = ask().await;
    assert_eq!(first.content(), answer);
    let again = ask().await;
    assert!(again.replayed());

    let spans_seen = collector.until_spans(|spans| named(spans, "arrival").len() == 2).await;
    let deliveries = collector.deliveries.borrow().clone();
    assert!(deliveries.iter().all(|it| it.head.starts_with("post /v1/traces http/1.1\r\n")));
    assert!(deliveries.iter().all(|it| it.head.contains("\r\nx-team: red\r\n")));
    let resource = deliveries[0].request().resource_spans.remove(0).resource.unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("front"));

    // Both arrivals belong to the client's own span.
    let mut outcomes = Vec::new();
    for arrival in named(&spans_seen, "arrival") {
        assert_eq!(hex(&arrival.trace_id), TRACE);
        assert_eq!(hex(&arrival.parent_span_id), PARENT);
        assert_eq!(arrival.kind(), SpanKind::Server);
        let of = |name: &str| attribute(&arrival.attributes, name).unwrap_or_default();
        assert_eq!((of("tenant_id"), of("endpoint")), ("t1".into(), "chat".into()));
        assert_eq!((of("key_source"), of("status")), ("client".into(), "200".into()));
        outcomes.push((of("outcome"), of("request_id")));
        assert!(arrival.end_time_unix_nano > arrival.start_time_unix_nano);
    }
    outcomes.sort();
    let id = |answer: &crate::support::Answer| answer.header("x-request-id").unwrap().to_owned();
    assert_eq!(outcomes, [("committed".into(), id(&first)), ("replayed".into(), id(&again))]);

    // The run's parts lie in its arrival.
    let run = named(&spans_seen, "arrival")
        .into_iter()
        .find(|arrival| attribute(&arrival.attributes, "outcome").as_deref() == Some("committed"))
        .unwrap();
    let parts: Vec<&Span> =
        spans_seen.iter().filter(|span| span.parent_span_id == run.span_id).collect();
    let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["claim", "commit", "provider_call", "provider_call"]);
    for part in &parts {
        assert!(part.start_time_unix_nano >= run.start_time_unix_nano, "{part:?}");
        assert!(part.end_time_unix_nano <= run.end_time_unix_nano, "{part:?}");
    }
    let calls: Vec<_> = parts.iter().filter(|part| part.name == "provider_call").collect();
    let kinds: Vec<_> = calls.iter().map(|call| attribute(&call.attributes, "kind")).collect();
    assert!(kinds.contains(&Some("overloaded".into())) && kinds.contains(&None), "{kinds:?}");
    assert!(calls.iter().all(|call| attribute(&call.attributes, "provider").is_some()));
    let events: Vec<&str> = run.events.iter().map(|event| event.name.as_str()).collect();
    let order = ["claimed", "retrying", "committed"];
    assert_eq!(events.iter().filter(|it| order.contains(it)).copied().collect::<Vec<_>>(), order);

    let api_key = traced.client.key.clone();
    traced.ends_well().await;
    let deliveries = collector.deliveries.borrow().clone();
    let secret = api_key.strip_prefix("ok_").unwrap();
    for private in [&question, &answer, &conversation, &metadata, secret, "sk-test"] {
        let within =
            |body: &[u8]| body.windows(private.len()).any(|part| part == private.as_bytes());
        assert!(!deliveries.iter().any(|delivery| within(&delivery.body)), "{private} went out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_spans_are_sent_before_the_process_ends() {
    let collector = Collector::start().await;
    let endpoint = format!("{}/v1/traces", collector.endpoint());
    let traced = Traced::start(&[
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ])
    .await;
    assert_eq!(traced.client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert!(collector.deliveries.borrow().is_empty());
    traced.ends_well().await;
    assert_eq!(named(&spans(&collector.deliveries.borrow()), "arrival").len(), 1);
    let resource = collector.deliveries.borrow()[0].request().resource_spans.remove(0).resource;
    let attributes = resource.unwrap().attributes;
    assert_eq!(attribute(&attributes, "service.name").as_deref(), Some("oncekey"));
}

/// Whether the process has the thread that delivers.
fn delivers(node: &ProcessNode) -> bool {
    let threads = std::fs::read_dir(Path::new("/proc").join(node.pid().to_string()).join("task"));
    let mut names = threads
        .unwrap()
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name.starts_with("OpenTelemetry"))
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_named_or_all_is_off_nothing_is_loaded_or_sent() {
    let collector = Collector::start().await;
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint());
    for variables in [
        &[][..],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
        &[endpoint, ("OTEL_SDK_DISABLED", "true")],
        &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
        &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "user:PRIVATE@collector:4318")],
    ] {
        let traced = Traced::start(variables).await;
        assert_eq!(traced.client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
        assert!(!delivers(&traced.node), "{variables:?}");
        let told = traced.node.events("traces_off");
        let wrong = variables.iter().any(|(_, value)| *value == "grpc" || value.contains("user:"));
        assert_eq!(told.len(), usize::from(wrong), "{variables:?}: {told:?}");
        let log = traced.node.raw_log();
        assert!(!log.iter().any(|line| line.contains("PRIVATE")), "{log:?}");
        traced.ends_well().await;
    }
    assert_eq!(*collector.connections.borrow(), 0);

    // The same look sees it where it is.
    let traced = Traced::start(&[endpoint]).await;
    assert!(delivers(&traced.node));
    traced.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_collector_holds_nobody_up() {
    let collector = Collector::silent().await;
    let endpoint = collector.endpoint();
    let traced = Traced::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        // Only what bounds the end of the process can end it in time.
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "6"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2"),
    ])
    .await;
    let ask = || traced.client.chat(Uuid::new_v4(), "c1", "hello");
    assert_eq!(ask().await.status, 200);
    let mut deliveries = collector.deliveries.clone();
    deliveries.wait_for(|deliveries| !deliveries.is_empty()).await.unwrap();
    // From here on the collector holds the one thread that delivers.
    for _ in 0..10 {
        assert_eq!(ask().await.status, 200);
    }
    traced.node.signal("TERM").await;
    let mut node = traced.node;
    assert_eq!(node.ended().await, Some(0));
    let [delivery] = &collector.deliveries.borrow()[..] else { panic!("more than one delivery") };
    assert!(delivery.head.contains("\r\ncontent-encoding: gzip\r\n"), "{}", delivery.head);
    assert!(delivery.body.starts_with(&[0x1f, 0x8b]));
    let told = node.events("traces_lost");
    let [told] = &told[..] else { panic!("{told:?}") };
    // Four spans a chat; at most two are on their way and six wait.
    assert!(told["spans"].as_u64().unwrap() >= 11 * 4 - 2, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_told_of_once() {
    let away = Collector::start().await;
    let endpoint = away.endpoint();
    drop(away);
    let traced = Traced::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "50"),
    ])
    .await;
    assert_eq!(traced.client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    traced.node.until_event("traces_lost", |_| true).await;
    for _ in 0..3 {
        assert_eq!(traced.client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    }
    assert_eq!(traced.node.events("traces_lost").len(), 1);
    let mut node = traced.node;
    node.signal("TERM").await;
    assert_eq!(node.ended().await, Some(0));
    let told = node.events("traces_lost");
    assert!(told.last().unwrap()["spans"].as_u64().unwrap() >= 4, "{told:?}");
    assert_eq!(told.len(), 2);
}
