//! Streams of the client library over connections that break: every text once and in order, however
//! often it was cut, and one outcome.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use oncekey::client::{
    Chat, ChatAnswer, ChatRequest, Client, ClientError, EventStream, Operation, Parse,
    ParseRequest, Reply as Told, RetryPolicy, StreamEvent, Why,
};
use oncekey::clock::ManualClock;

use crate::support::TestDatabase;
use crate::support::library::{Kept, Repeats, quick};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::parse::{echo, script};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, patiently};
use crate::support::proxy::{Mode, Proxy, Target};

const TEXT: &str = "1 2 3 4 5 6 7 8 9 10";

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    proxy: Arc<Proxy>,
    api_key: String,
    repeats: Repeats,
    client: Client,
    gates: Vec<Gate>,
}

/// What a caller has assembled.
#[derive(Default)]
struct Heard {
    text: String,
    restarts: usize,
    started: Vec<String>,
    reply: Option<Told<ChatAnswer>>,
}

impl Heard {
    /// Takes events until the text ends with this, or the answer is there.
    async fn until(&mut self, stream: &mut EventStream<Chat>, end: &str) {
        while self.reply.is_none() && (end.is_empty() || !self.text.ends_with(end)) {
            let event = patiently("a stream to go on", stream.next()).await.unwrap();
            match event.expect("the stream goes on") {
                StreamEvent::Started { request_id } => self.started.push(request_id),
                StreamEvent::Delta(text) => self.text.push_str(&text),
                StreamEvent::Restarted => {
                    self.restarts += 1;
                    self.text.clear();
                }
                StreamEvent::Completed(reply) => self.reply = Some(*reply),
                StreamEvent::Progress { .. } => panic!("a chat has none"),
            }
        }
    }

    async fn rest(&mut self, stream: &mut EventStream<Chat>) {
        self.until(stream, "").await;
        assert!(stream.next().await.unwrap().is_none(), "the answer is the last event");
        let reply = self.reply.as_ref().unwrap();
        assert_eq!(self.text, reply.answer.message.content);
        assert_eq!(self.started.last(), Some(&reply.answer.request_id));
    }
}

impl Scene {
    /// The provider says ten pieces, each only when the gate behind it is open.
    async fn start(options: NodeOptions) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, options).await;
        let api_key = node.client("t1").await.key;
        let proxy = Arc::new(Proxy::start(Target::Tcp(node.address())).await);
        let repeats = Repeats::new();
        let client = repeats.client(proxy.address, &api_key);
        let gates = Vec::new();
        Self { database, provider, node, proxy, api_key, repeats, client, gates }
    }

    async fn with_gates() -> Self {
        let mut scene = Self::start(NodeOptions::default()).await;
        scene.gates = (0..10).map(|_| Gate::closed()).collect();
        let gates = scene.gates.iter().enumerate();
        scene.provider.reply(gates.fold(Reply::text(TEXT), |reply, (at, gate)| {
            reply.after(at + 1, Action::Hold(gate.clone()))
        }));
        scene
    }

    fn open(&self, gates: std::ops::Range<usize>) {
        self.gates[gates].iter().for_each(Gate::open);
    }

    fn hello(&self) -> Operation<Chat> {
        self.client.begin(ChatRequest::new("c1", "hello"))
    }

    async fn end_with_one_outcome(self, provider_calls: usize) {
        assert_eq!(self.provider.count(), provider_calls);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_again_and_again_goes_on_where_it_was() {
    let scene = Scene::with_gates().await;
    let kept = Kept::default();
    let builder = scene.repeats.builder(scene.proxy.address, &scene.api_key);
    let client = builder.journal(kept.clone()).build().unwrap();
    let operation = scene.hello();
    let mut stream = client.stream(&operation);
    let mut heard = Heard::default();
    heard.until(&mut stream, "1 ").await;
    // More often than a way that leads nowhere is tried.
    for piece in 2..=7 {
        scene.proxy.cut();
        scene.open(piece - 2..piece - 1);
        heard.until(&mut stream, &format!("{piece} ")).await;
    }
    assert_eq!(kept.all().len(), 1);
    scene.open(6..10);
    heard.rest(&mut stream).await;
    assert_eq!((heard.text.as_str(), heard.restarts, heard.started.len()), (TEXT, 0, 1));
    assert_eq!(scene.repeats.why(), [Why::Lost]);
    assert_eq!(scene.repeats.count(), 6);
    let reply = heard.reply.unwrap();
    assert_eq!(reply.attempts, 1, "the request itself was sent once");
    assert!(!reply.replayed);
    assert!(kept.all().is_empty());

    let again = client.send(&operation).await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.body, reply.body, "byte for byte");
    let mut stream = client.stream(&operation);
    let mut replayed = Heard::default();
    replayed.rest(&mut stream).await;
    assert_eq!(replayed.text, TEXT);
    scene.end_with_one_outcome(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_fell_silent_is_left() {
    let scene = Scene::with_gates().await;
    let manual = ManualClock::new(Utc::now());
    let silence = Duration::from_secs(45);
    let builder = scene.repeats.builder(scene.proxy.address, &scene.api_key);
    let client = builder.clock(manual.clock()).build().unwrap();
    let mut stream = client.stream(&scene.hello());
    let mut heard = Heard::default();
    heard.until(&mut stream, "1 ").await;
    scene.proxy.silence();
    let asked = tokio::spawn(async move {
        heard.rest(&mut stream).await;
        heard
    });
    patiently("silence to be noticed", manual.until_sleeping_for(silence)).await;
    manual.advance(silence);
    patiently("a wait to begin", manual.until_sleeping_for(quick().waits[0])).await;
    manual.advance(quick().waits[0]);
    scene.open(0..10);
    let heard = asked.await.unwrap();
    assert_eq!((heard.text.as_str(), heard.restarts), (TEXT, 0));
    assert_eq!(scene.repeats.why(), [Why::Lost]);
    scene.end_with_one_outcome(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_behind_its_first_text_is_asked_for_anew_and_that_is_told() {
    let scene = Scene::start(NodeOptions::default()).await;
    let gate = Gate::closed();
    let broken = Reply::text("one two three").after(1, Action::Hold(gate.clone()));
    scene.provider.reply(broken.after(1, Action::Close));
    let operation = scene.hello();
    let mut stream = scene.client.stream(&operation);
    let mut heard = Heard::default();
    heard.until(&mut stream, "one ").await;
    gate.open();
    heard.rest(&mut stream).await;
    assert_eq!(heard.restarts, 1);
    assert_eq!(heard.text, "Answer to message 1: hello");
    assert_eq!(heard.started.len(), 2);
    assert_ne!(heard.started[0], heard.started[1]);
    assert_eq!(heard.reply.unwrap().attempts, 2);
    assert_eq!(scene.repeats.why(), [Why::Status(502)]);
    assert_eq!(scene.client.record(operation.key()).await.unwrap().attempts, 2);
    scene.end_with_one_outcome(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_stream_that_did_not_arrive_is_sent_again() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.proxy.set(Mode::SwallowReplies);
    let mut stream = scene.client.stream(&scene.hello());
    let asked = tokio::spawn(async move {
        let mut heard = Heard::default();
        heard.rest(&mut stream).await;
        heard
    });
    // The head of the stream is lost, and the connection with it.
    scene.proxy.until_swallowed(1).await;
    scene.proxy.heal();
    let heard = asked.await.unwrap();
    assert_eq!(heard.text, "Answer to message 1: hello");
    assert_eq!(heard.reply.unwrap().attempts, 2);
    scene.end_with_one_outcome(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_leads_nowhere_ends() {
    let scene = Scene::with_gates().await;
    let mut stream = scene.client.stream(&scene.hello());
    let mut heard = Heard::default();
    heard.until(&mut stream, "1 ").await;
    scene.proxy.set(Mode::Refuse);
    scene.proxy.cut();
    match patiently("the stream to end", stream.next()).await {
        Err(ClientError::ConnectionLost(lost)) => assert_eq!(lost.attempts, 1),
        other => panic!("{other:?}"),
    }
    assert!(stream.next().await.unwrap().is_none(), "it says so once");
    assert_eq!(scene.proxy.refused(), 2, "two repeats");
    // The run went on without anybody.
    scene.open(0..10);
    scene.proxy.heal();
    scene.provider.until_idle().await;
    scene.database.until_settled().await;
    scene.end_with_one_outcome(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_input_ends_a_stream_at_once() {
    let scene = Scene::start(NodeOptions::default()).await;
    let body = br#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#;
    scene.provider.reply(Reply::status(400, &[("content-type", "application/json")], &body[..]));
    let mut stream = scene.client.stream(&scene.hello());
    let error = loop {
        match stream.next().await {
            Ok(Some(StreamEvent::Started { .. })) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    match error {
        ClientError::YourInput(failed) => {
            assert_eq!((failed.problem.status, failed.attempts), (422, 1));
            assert_eq!(failed.problem.error, "input_rejected");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((scene.repeats.count(), scene.provider.count()), (0, 1));
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parse_tells_its_progress_over_a_broken_connection_and_sends_its_file_once() {
    let options = NodeOptions::default()
        .set("ONCEKEY_PARSE__CHUNK_CHARS", "400")
        .set("ONCEKEY_PARSE__PARALLEL", "1");
    let scene = Scene::start(options).await;
    let gate = Gate::closed();
    let (held, mut calls) = (gate.clone(), 0);
    scene.provider.reply_by(move |request| {
        calls += 1;
        // The third piece waits.
        let reply = echo(request);
        if calls == 3 { reply.before_head(Action::Hold(held.clone())) } else { reply }
    });
    let text = script(16);
    let operation: Operation<Parse> = scene.client.begin(ParseRequest::file(text.into_bytes()));
    let mut stream = scene.client.stream(&operation);
    let (mut done, mut pieces) = (Vec::new(), 0);
    let reply = loop {
        match patiently("a parse to go on", stream.next()).await.unwrap().unwrap() {
            StreamEvent::Progress { done: so_far, chunks } => {
                done.push(so_far);
                pieces = chunks;
                if so_far == 2 {
                    gate.until_reached(1).await;
                    scene.proxy.cut();
                    gate.open();
                }
            }
            StreamEvent::Completed(reply) => break reply,
            StreamEvent::Restarted => panic!("it goes on where it was"),
            StreamEvent::Started { .. } | StreamEvent::Delta(_) => {}
        }
    };
    assert!(pieces > 3, "{pieces}");
    assert!(done.is_sorted_by(|a, b| a < b), "each step once: {done:?}");
    assert_eq!(done.last(), Some(&pieces));
    assert_eq!(reply.answer.result["dialogue"].as_array().unwrap().len(), 16);
    assert_eq!(reply.attempts, 1);
    assert_eq!(scene.repeats.why(), [Why::Lost]);
    assert_eq!(scene.provider.count() as u64, pieces);
    assert_eq!(scene.database.count("select count(*) from parse_results").await, 1);
    let record = scene.client.record(operation.key()).await.unwrap();
    let again = scene.client.begin(ParseRequest::capture(&record.operation_id));
    let again = scene.client.send(&again).await.unwrap();
    assert_eq!(again.answer.result, reply.answer.result);
    assert!(!again.replayed, "a new operation");
    assert_clean(scene.node.store()).await;
    assert!(scene.node.shut_down().await, "nothing had to be cut");
}

/// The error that ends a stream.
async fn end_of(stream: &mut EventStream<Chat>) -> ClientError {
    loop {
        match patiently("a stream to end", stream.next()).await {
            Ok(Some(StreamEvent::Completed(reply))) => panic!("{reply:?}"),
            Ok(event) => assert!(event.is_some(), "it says why"),
            Err(error) => return error,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_the_key_alone_hears_a_run_and_cancels_it() {
    let scene = Scene::with_gates().await;
    let operation = scene.hello();
    let mut stream = scene.client.stream(&operation);
    Heard::default().until(&mut stream, "1 ").await;
    let kept = Kept::default();
    let builder = scene.repeats.builder(scene.proxy.address, &scene.api_key);
    let other = builder.journal(kept.clone()).build().unwrap();
    let mut attached = other.attach::<Chat>(operation.key()).unwrap();
    let mut heard = Heard::default();
    heard.until(&mut attached, "1 ").await;
    scene.proxy.cut();
    scene.open(0..1);
    heard.until(&mut attached, "2 ").await;
    assert_eq!((heard.text.as_str(), heard.restarts), ("1 2 ", 0));

    let record = other.cancel(operation.key()).await.unwrap();
    assert_eq!((record.state.as_str(), record.attempts), ("failed", 1));
    for stream in [&mut stream, &mut attached] {
        match end_of(stream).await {
            ClientError::YourInput(failed) => assert_eq!(failed.problem.error, "cancelled"),
            error => panic!("{error:?}"),
        }
    }
    scene.client.send(&operation).await.unwrap();
    let mut attached = other.attach::<Chat>(operation.key()).unwrap();
    let mut replayed = Heard::default();
    replayed.rest(&mut attached).await;
    assert_eq!(replayed.text, "Answer to message 1: hello");
    assert_eq!(other.cancel(operation.key()).await.unwrap().state, "committed");
    assert!(kept.all().is_empty(), "it began nothing");
    assert!(matches!(other.attach::<Chat>("a b"), Err(ClientError::NotSent(_))));
    match end_of(&mut other.attach("no-such").unwrap()).await {
        ClientError::YourInput(failed) => assert_eq!(failed.problem.status, 404),
        error => panic!("{error:?}"),
    }
    scene.end_with_one_outcome(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_attaches_does_not_make_a_failed_run_begin_again() {
    let scene = Scene::start(NodeOptions::default()).await;
    let gate = Gate::closed();
    let broken = Reply::text("one two three").after(1, Action::Hold(gate.clone()));
    scene.provider.reply(broken.after(1, Action::Close));
    let once = scene.repeats.builder(scene.proxy.address, &scene.api_key);
    let once = once.retry(RetryPolicy::never()).build().unwrap();
    let operation = scene.hello();
    let mut stream = once.stream(&operation);
    Heard::default().until(&mut stream, "one ").await;
    let mut attached = scene.client.attach::<Chat>(operation.key()).unwrap();
    Heard::default().until(&mut attached, "one ").await;
    gate.open();
    for stream in [&mut stream, &mut attached] {
        match end_of(stream).await {
            ClientError::OurSide(failed) => assert_eq!(failed.problem.error, "provider_failed"),
            error => panic!("{error:?}"),
        }
    }
    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.database.outcomes().await, (0, 0, 0));
    assert_clean(scene.node.store()).await;
    assert!(scene.node.shut_down().await, "nothing had to be cut");
}
