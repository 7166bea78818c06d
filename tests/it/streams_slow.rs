//! Readers that take nothing, answers that are long, and silence that must not look like death: the
//! run is slowed by none of them.

use std::time::Duration;

use chrono::TimeDelta;
use uuid::Uuid;

use crate::support::clock::TickingClock;
use crate::support::events::{Said, names_of, text_of};
use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, Events, TestDatabase};

const KB: usize = 1_000;

/// Different words, so that a piece that is missing or said twice shows.
fn words(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 1_000);
    for word in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(&format!("{word:-<999} "));
    }
    text
}

/// What a process holds in memory, in bytes.
fn resident(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_reach_every_reader_whole() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    for (conversation, bytes) in [("c1", 500 * KB), ("c2", 5_000 * KB)] {
        let (text, key) = (words(bytes), Uuid::new_v4());
        provider.reply(Reply::text(&text));
        let live = client.stream(key, conversation, "hello").await.rest().await;
        assert!(text_of(&live) == text, "the text is another one");
        let answer = client.chat(key, conversation, "hello").await;
        assert!(answer.content() == text);
        assert_eq!(live.last().unwrap().data, answer.json());
    }
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_that_are_stuck_cost_no_copies_and_hold_nothing_up() {
    const BYTES: usize = 3_000 * KB;
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    // What is given back goes back to the system at once, so that what is held shows.
    let exact = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "0")];
    let exact = [&exact[..], &[("MALLOC_MMAP_THRESHOLD_", "65536")]].concat();
    let node = ProcessNode::on(&database, &provider, &exact).await;
    let key = new_key(&database.store(), "t1", "client", None).await;
    let client = Client::new(node.address, &key);
    let text = words(BYTES);
    let mut grown = Vec::new();
    let late =
        "select coalesce(max(extract(epoch from r.completed_at - c.ended_at) * 1000), 0)::bigint
        from request_records r join provider_calls c using (tenant_id, operation_id)";
    // The first has what every later one finds in place; the second is what the third is held against.
    for stuck in [0, 0, 50] {
        let key = Uuid::new_v4();
        let before = resident(node.pid());
        let gate = Gate::closed();
        provider.reply(Reply::text(&text).after(1, Action::Hold(gate.clone())));
        let mut live = client.stream(key, &format!("c-{key}"), "hello").await;
        let mut events = vec![live.event().await];
        let mut readers = Vec::new();
        for _ in 0..stuck {
            let mut reader = client.events(key, None).await;
            assert_eq!(reader.event().await.name, "started");
            readers.push(reader);
        }
        gate.open();
        events.extend(live.rest().await);
        assert_eq!(names_of(&events), ["started", "delta", "completed"]);
        assert!(text_of(&events) == text);
        grown.push(resident(node.pid()).saturating_sub(before));
        // Once they read again they have it all.
        if let Some(mut reader) = readers.pop() {
            assert!(text_of(&reader.rest().await) == text);
        }
    }
    // Nor is a commit held up: with the process's clock and the database's on one machine.
    let late = database.count(late).await;
    assert!(late < 2_000, "committed {late} ms after the provider's end");
    let cost = grown[2].saturating_sub(grown[1]);
    assert!(cost < 2 * BYTES + 50 * 64 * 1024, "50 stuck readers cost {cost} bytes: {grown:?}");
}

/// The same for those who come when it is over, at a node that has only the record.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_that_are_stuck_in_a_record_share_it() {
    const BYTES: usize = 3_000 * KB;
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let exact = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "0")];
    let exact = [&exact[..], &[("MALLOC_MMAP_THRESHOLD_", "65536")]].concat();
    let node = ProcessNode::on(&database, &provider, &exact).await;
    let key = new_key(&database.store(), "t1", "client", None).await;
    let client = Client::new(node.address, &key);
    let (text, key) = (words(BYTES), Uuid::new_v4());
    provider.reply(Reply::text(&text));
    // Nobody reads along, so nothing but the record is left of it.
    assert!(client.chat(key, "c1", "hello").await.content() == text);
    // The first has what every later one finds in place.
    assert!(text_of(&client.events(key, None).await.rest().await) == text);
    let before = resident(node.pid());
    let mut readers = Vec::new();
    for _ in 0..50 {
        let mut reader = client.events(key, None).await;
        assert_eq!(reader.event().await.id.as_deref(), Some("1-r1"));
        readers.push(reader);
    }
    let cost = resident(node.pid()).saturating_sub(before);
    // Its text and its body.
    let shared = 2 * BYTES + 50 * 64 * 1024;
    assert!(cost < shared, "50 readers of a record of {BYTES} bytes cost {cost}");
    assert!(text_of(&readers.pop().unwrap().rest().await) == text);
}

struct Ticking {
    provider: ScriptedProvider,
    clock: TickingClock,
    node: TestNode,
    client: Client,
}

impl Ticking {
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let clock = TickingClock::start(TimeDelta::zero());
        let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() }
            .set("ONCEKEY_PROVIDERS__MAIN__IDLE_TIMEOUT", "10m")
            .set("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "1h");
        let node = TestNode::start(&database, &provider, options).await;
        let client = node.client("t1").await;
        Self { provider, clock, node, client }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_kept_warm() {
    let scene = Ticking::start().await;
    let gate = Gate::closed();
    scene.provider.reply(Reply::text("one two").after(1, Action::Hold(gate.clone())));
    let mut stream = scene.client.stream(Uuid::new_v4(), "c1", "hello").await;
    stream.until_text("one ").await;
    for _ in 0..3 {
        scene.clock.jump(Duration::from_secs(15));
        assert_eq!(stream.said().await, Some(Said::Comment));
    }
    gate.open();
    assert_eq!(names_of(&stream.rest().await), ["delta", "completed"]);
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_stuck_is_cut_and_goes_on_where_it_was() {
    let scene = Ticking::start().await;
    // More than the system's buffers take for a connection.
    let (text, key) = (words(7_900 * KB), Uuid::new_v4());
    let gate = Gate::closed();
    scene.provider.reply(Reply::text(&text).after(1, Action::Hold(gate.clone())));
    let mut live = scene.client.stream(key, "c1", "hello").await;
    live.event().await;
    let mut stuck = scene.client.events(key, None).await;
    let mut events = vec![stuck.event().await];
    gate.open();
    assert_eq!(names_of(&live.rest().await), ["delta", "completed"]);
    // Half a minute and more for the connection, less than a minute for what is kept.
    for _ in 0..40 {
        scene.clock.jump(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    events.extend(stuck.rest().await);
    assert!(events.iter().all(|event| event.name != "completed"), "it was not cut");
    let had = text_of(&events).len();
    assert!(had < text.len());
    let request = scene.client.events_request(key, stuck.last_id.as_deref());
    events.extend(Events::open(request).await.rest().await);
    assert_eq!(names_of(&events), ["started", "delta", "completed"]);
    assert!(text_of(&events) == text, "the text is another one");
    assert_eq!(scene.provider.count(), 1);
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_is_told_as_it_happened_for_a_minute() {
    let scene = Ticking::start().await;
    let key = Uuid::new_v4();
    let live = scene.client.stream(key, "c1", "hello").await.rest().await;
    scene.clock.jump(Duration::from_secs(40));
    assert_eq!(scene.client.events(key, None).await.rest().await, live);
    scene.clock.jump(Duration::from_secs(20));
    let told = scene.client.events(key, live[1].id.as_deref()).await.rest().await;
    assert_eq!(names_of(&told), ["restarted", "started", "delta", "completed"]);
    assert_eq!(told[1].id.as_deref(), Some("1-r1"));
    assert_eq!(text_of(&told), text_of(&live));
    assert!(scene.node.shut_down().await);
}
