//! Readers at another node than the run's: they hear the same events through its node, are told when
//! it dies, and are told the record where it cannot be reached. No node is a way to anywhere else.

use std::sync::Arc;

use chrono::{TimeDelta, Utc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use oncekey::domain::ids::{RequestId, TenantId};
use oncekey::domain::peer::ClusterSecret;

use crate::support::events::{Event, names_of, text_of};
use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key};
use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, patiently};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Client, Events, Pair, TestDatabase};

const TEXT: &str = "1 2 3 4 5 6";

/// Two nodes in this process; the run is at A, and others reach A through a proxy.
struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    a: TestNode,
    b: TestNode,
    at_a: Client,
    at_b: Client,
    proxy: Proxy,
    key: Uuid,
    gates: Vec<Gate>,
}

impl Scene {
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let gates: Vec<Gate> = (0..6).map(|_| Gate::closed()).collect();
        let reply = gates.iter().enumerate().fold(Reply::text(TEXT), |reply, (at, gate)| {
            reply.after(at + 1, Action::Hold(gate.clone()))
        });
        provider.reply(reply);
        // A learns from its beats what became of its run at B.
        let quick = NodeOptions::default().set("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "200ms");
        let a = TestNode::start(&database, &provider, quick).await;
        let b = TestNode::start(&database, &provider, NodeOptions::default()).await;
        let proxy = Proxy::start(Target::Tcp(a.address())).await;
        let at_a = a.client("t1").await;
        let at_b = at_a.at(b.address());
        let scene =
            Self { database, provider, a, b, at_a, at_b, proxy, key: Uuid::new_v4(), gates };
        scene.advertise(&format!("http://{}", scene.proxy.address)).await;
        scene
    }

    /// Says that every node is reached here.
    async fn advertise(&self, address: &str) {
        self.database.execute(&format!("update nodes set advertised = '{address}'")).await;
    }

    fn open(&self, gates: std::ops::Range<usize>) {
        self.gates[gates].iter().for_each(Gate::open);
    }

    async fn end(self) {
        assert_eq!(self.provider.count(), 1);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert_clean(self.a.store()).await;
        assert!(self.b.shut_down().await && self.a.shut_down().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_at_another_node_hears_the_same_events() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    let mut of_a = vec![first.event().await, first.event().await];
    // Each piece is read before the next is said, and so is an event of its own.
    for gate in 0..2 {
        scene.open(gate..gate + 1);
        of_a.push(first.event().await);
    }
    let mut posted = scene.at_b.stream(scene.key, "c1", "hello").await;
    let mut of_posted = posted.until_text("3 ").await;
    let second = of_a.iter().find(|event| event.name == "delta" && event.text() == "2 ").unwrap();
    let second = second.id.clone().unwrap();
    let mut behind = scene.at_b.events(scene.key, Some(&second)).await;
    let mut of_behind = vec![behind.event().await];
    let mut elsewhere = scene.at_b.events(scene.key, Some("9-9")).await;
    assert_eq!(elsewhere.event().await.name, "restarted");
    // Each word passes as it is said.
    scene.open(2..3);
    of_posted.push(posted.event().await);
    assert_eq!(of_posted.last().unwrap().text(), "4 ");
    scene.open(3..6);
    of_a.extend(first.rest().await);
    of_posted.extend(posted.rest().await);
    of_behind.extend(behind.rest().await);
    assert_eq!(of_posted, of_a);
    assert_eq!(of_behind, of_a[of_a.len() - of_behind.len()..]);
    assert_eq!(of_behind[0].text(), "3 ");
    assert_eq!(text_of(&elsewhere.rest().await), TEXT);
    assert_eq!(text_of(&of_a), TEXT);
    // And where it is over, a place in it is still found at the node that had it.
    let again = scene.at_b.events(scene.key, Some(&second)).await.rest().await;
    assert_eq!(again, of_behind);
    // Behind the last one nothing can follow, at whatever node.
    for client in [&scene.at_a, &scene.at_b] {
        client.assert_over(scene.key, of_a.last().unwrap().id.as_deref()).await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_is_cut_is_taken_up_where_it_broke() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    let mut of_a = first.until_text("1 ").await;
    let mut through = scene.at_b.stream(scene.key, "c1", "hello").await;
    let mut events = through.until_text("1 ").await;
    for gate in 0..3 {
        scene.proxy.cut();
        scene.open(gate..gate + 1);
        of_a.push(first.event().await);
        events.push(through.event().await);
    }
    scene.proxy.set(Mode::DelayReplies(std::time::Duration::from_millis(20)));
    scene.open(3..6);
    of_a.extend(first.rest().await);
    events.extend(through.rest().await);
    assert_eq!(events, of_a);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_reached_is_waited_for_and_its_record_told() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    first.until_text("1 ").await;
    // One reader has text already, the other nothing yet.
    let mut with_text = scene.at_b.stream(scene.key, "c1", "hello").await;
    let mut of_with_text = with_text.until_text("1 ").await;
    scene.proxy.set(Mode::Refuse);
    scene.proxy.cut();
    let mut without = scene.at_b.events(scene.key, None).await;
    scene.proxy.until_refused(2).await;
    scene.open(0..6);
    first.rest().await;
    let answer = scene.at_a.chat(scene.key, "c1", "hello").await;
    of_with_text.extend(with_text.rest().await);
    let of_without = without.rest().await;
    assert_eq!(names_of(&of_without), ["started", "delta", "completed"]);
    assert_eq!(
        names_of(&of_with_text),
        ["started", "delta", "restarted", "started", "delta", "completed"]
    );
    for events in [&of_with_text, &of_without] {
        assert_eq!(text_of(events), TEXT);
        assert_eq!(events.last().unwrap().data, answer.json());
        assert_eq!(events.last().unwrap().id.as_deref(), Some("1-r3"));
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_node_that_dies_are_told_and_their_repeat_runs() {
    let mut pair = Pair::start(&[], &[]).await;
    let said = Gate::closed();
    pair.provider.reply(Reply::text("never finished").after(1, Action::Hold(said.clone())));
    let mut at_a = pair.at_a.stream(pair.key, CONVERSATION, MESSAGE).await;
    at_a.until_text("never ").await;
    let mut stream = pair.at_b.stream(pair.key, CONVERSATION, MESSAGE).await;
    let mut events = stream.until_text("never ").await;
    pair.a.kill().await;
    events.extend(stream.rest().await);
    assert_eq!(names_of(&events), ["started", "delta", "failed"]);
    let failed = events.last().unwrap();
    assert_eq!((&failed.data["error"], &failed.data["status"]), (&"run_lost".into(), &503.into()));
    assert_eq!(failed.data["retryable"], true);
    assert_eq!(failed.id, None, "it is no event of the run's");

    // With the id in hand as a client would send it.
    let request = pair.at_b.stream_request(pair.key, CONVERSATION, MESSAGE);
    let request = request.header("last-event-id", stream.last_id.clone().unwrap());
    let again = Events::open(request).await.rest().await;
    assert_eq!(names_of(&again), ["restarted", "started", "delta", "completed"]);
    assert!(again[1].id.as_deref().unwrap().starts_with("2-"));
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    let answer = pair.ask_b().await;
    assert_eq!(answer.content(), text_of(&again));
    pair.assert_one_outcome(&answer).await;
}

/// One request on a connection of its own, by hand.
async fn asked(address: std::net::SocketAddr, head: String) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!("{head}host: x\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut said = String::new();
    connection.read_to_string(&mut said).await.unwrap();
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_given_to_nodes_alone_and_nothing_of_the_client_to_them() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    let started = first.event().await;
    let run = started.data["request_id"].as_str().unwrap();
    // Whoever stands behind the address that A is said to have sees what B sends.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    scene.advertise(&format!("http://{address}")).await;
    let mut reader = scene.at_b.stream(scene.key, "c1", "hello").await;
    let (mut connection, _) = patiently("node B to ask", listener.accept()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(!head.contains(&scene.at_b.key) && !head.to_lowercase().contains("authorization"));
    let secret = "select encode(secret, 'hex') from cluster_secret";
    assert!(!head.contains(&scene.database.text(secret).await));
    drop((connection, listener));

    // What it was sent opens this run's stream, and no other: not another run's, nor under another
    // tenant; and no API key opens any.
    let proof = head.lines().find(|line| line.starts_with("x-oncekey-proof")).unwrap().to_owned();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let a = scene.a.address();
    let get = |path: &str, proof: &str| format!("GET {path} HTTP/1.1\r\n{proof}\r\n");
    let other = Uuid::new_v4().to_string();
    let with_key = format!("authorization: Bearer {}", scene.at_a.key);
    for (path, proof) in [
        (path.replace(run, &other), proof.clone()),
        (path.replace(&scene.key.to_string(), &other), proof.clone()),
        (path.replace("tenant=t1", "tenant=t2"), proof.clone()),
        (path.clone(), with_key),
        (path.clone(), "x-oncekey-proof: ".to_owned()),
        ("/internal/streams".to_owned(), proof.clone()),
    ] {
        let said = asked(a, get(&path, &proof)).await;
        assert!(said.starts_with("HTTP/1.1 404 ") && said.contains("not_found"), "{said}");
    }
    let right = tokio::spawn(async move { asked(a, get(&path, &proof)).await });
    scene.open(0..6);
    let said = right.await.unwrap();
    assert!(said.starts_with("HTTP/1.1 200 ") && said.contains("completed"), "{said}");
    assert_eq!(text_of(&reader.rest().await), TEXT);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_is_refused_once_it_is_old_from_too_far_ahead_or_for_another_run() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    let run = RequestId(first.event().await.data["request_id"].as_str().unwrap().parse().unwrap());
    let secret = scene.database.text("select encode(secret, 'hex') from cluster_secret").await;
    let byte = |at: usize| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap();
    let secret = ClusterSecret::new(std::array::from_fn(byte));
    let (tenant, key, now) = (TenantId::new("t1"), scene.key, Utc::now());
    let proof = |run, minutes| secret.proof(&tenant, key, run, now + TimeDelta::minutes(minutes));
    let ask = |proof: String| {
        let query = format!("tenant=t1&key={key}&run={run}");
        let head =
            format!("GET /internal/streams?{query} HTTP/1.1\r\nx-oncekey-proof: {proof}\r\n");
        asked(scene.a.address(), head)
    };
    let other = RequestId(Uuid::new_v4());
    let without_time = proof(run, 0).split_once('.').unwrap().1.to_owned();
    for wrong in [proof(run, -6), proof(run, 6), proof(other, 0), without_time] {
        let said = ask(wrong).await;
        assert!(said.starts_with("HTTP/1.1 404 ") && said.contains("not_found"), "{said}");
    }
    scene.open(0..6);
    first.rest().await;
    for right in [proof(run, -4), proof(run, 4)] {
        let said = ask(right).await;
        assert!(said.starts_with("HTTP/1.1 200 ") && said.contains("completed"), "{said}");
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_leads_no_node_astray() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    first.event().await;
    let (astray, entrance) =
        tokio::join!(TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
    let (astray, entrance) = (Arc::new(astray.unwrap()), entrance.unwrap());
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
        astray.local_addr().unwrap()
    );
    scene.advertise(&format!("http://{}", entrance.local_addr().unwrap())).await;
    let (asked, mut asks) = tokio::sync::watch::channel(0);
    let serving = tokio::spawn(async move {
        loop {
            let (mut connection, _) = entrance.accept().await.unwrap();
            connection.write_all(answer.as_bytes()).await.unwrap();
            drop(connection.read(&mut [0; 4096]).await);
            asked.send_modify(|asked| *asked += 1);
        }
    });
    let mut reader = scene.at_b.events(scene.key, None).await;
    // Asked again, it has been through with the first answer.
    patiently("node B to ask twice", asks.wait_for(|asked| *asked >= 2)).await.unwrap();
    scene.open(0..6);
    assert_eq!(text_of(&reader.rest().await), TEXT);
    let led = astray.clone();
    let none = tokio::time::timeout(std::time::Duration::ZERO, led.accept()).await;
    assert!(none.is_err(), "it went where it was sent");
    serving.abort();
    scene.end().await;
}

/// Something else may have the address by now; or it breaks off before it says anything, each time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_stream_is_not_passed_on_nor_asked_for_without_a_pause() {
    for kind in ["text/html", "text/event-stream"] {
        let scene = Scene::start().await;
        let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
        first.event().await;
        let entrance = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let says = if kind == "text/html" { "event: delta\n\n" } else { "event: del" };
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{says}");
        scene.advertise(&format!("http://{}", entrance.local_addr().unwrap())).await;
        let (asked, mut asks) = tokio::sync::watch::channel(Vec::new());
        let serving = tokio::spawn(async move {
            loop {
                let (mut connection, _) = entrance.accept().await.unwrap();
                asked.send_modify(|asked| asked.push(tokio::time::Instant::now()));
                drop(connection.read(&mut [0; 4096]).await);
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let mut reader = scene.at_b.events(scene.key, None).await;
        let asks = patiently("node B to ask twice", asks.wait_for(|asked| asked.len() >= 2)).await;
        let asks = asks.unwrap().clone();
        assert!(asks[1] - asks[0] > std::time::Duration::from_millis(500), "{kind}: no pause");
        scene.open(0..6);
        let events = reader.rest().await;
        assert_eq!(names_of(&events), ["started", "delta", "completed"], "{kind}");
        assert_eq!(text_of(&events), TEXT);
        serving.abort();
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_told_where_the_run_is_cancelled() {
    let scene = Scene::start().await;
    let mut first = scene.at_a.stream(scene.key, "c1", "hello").await;
    first.until_text("1 ").await;
    let mut reader = scene.at_b.stream(scene.key, "c1", "hello").await;
    reader.until_text("1 ").await;
    let operator = new_key(scene.b.store(), "t1", "operator", None).await;
    let path = format!("/v1/requests/{}/cancel", scene.key);
    let cancel = scene.at_b.with_key(&operator).request("POST", &path);
    assert_eq!(scene.at_b.send(cancel).await.unwrap().json()["state"], "failed");
    for events in [first.rest().await, reader.rest().await] {
        let failed: &Event = events.last().unwrap();
        assert_eq!((failed.name.as_str(), &failed.data["error"]), ("failed", &"cancelled".into()));
        assert_eq!(failed.data["retryable"], false);
    }
    let again = scene.at_b.stream(scene.key, "c1", "hello").await.rest().await;
    assert_eq!(text_of(&again), "Answer to message 1: hello");
    assert!(scene.b.shut_down().await && scene.a.shut_down().await);
}
