//! Readers of a run whose process stands still, at another node: its connections stay open and say
//! nothing. They are told once its silence counts, or once its lock is gone; their repeat runs, and
//! the sleeper, when it wakes, writes nothing.

use chrono::TimeDelta;
use uuid::Uuid;

use crate::support::clock::TickingClock;
use crate::support::events::{Event, names_of, text_of};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, Events, TestDatabase, eventually};

/// So long that only what a test does to the database makes a run silent.
const LONG: (&str, &str) = ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "2h");

/// Node A, a process of its own, has said one word and is frozen; node B, whose clock can be hurried,
/// has a reader with that word and one that came too late for it.
struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    clock: TickingClock,
    a: ProcessNode,
    b: TestNode,
    at_b: Client,
    key: Uuid,
    gate: Gate,
    at_a: Events,
    with_text: Events,
    without: Events,
}

impl Scene {
    async fn start() -> Self {
        let database = TestDatabase::new().await;
        database.age_epoch().await;
        let provider = ScriptedProvider::start().await;
        let a = ProcessNode::on(&database, &provider, &[LONG]).await;
        let clock = TickingClock::start(TimeDelta::zero());
        let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
        let b = TestNode::start(&database, &provider, options.set(LONG.0, LONG.1)).await;
        let at_b = b.client("t1").await;
        let (key, gate) = (Uuid::new_v4(), Gate::closed());
        provider.reply(Reply::text("never finished").after(1, Action::Hold(gate.clone())));
        let mut at_a = at_b.at(a.address).stream(key, "c1", "hello").await;
        at_a.until_text("never ").await;
        let mut with_text = at_b.stream(key, "c1", "hello").await;
        with_text.until_text("never ").await;
        a.signal("STOP").await;
        let without = at_b.events(key, None).await;
        Self { database, provider, clock, a, b, at_b, key, gate, at_a, with_text, without }
    }

    /// What the readers at node B hear until they are told.
    async fn told(&mut self) -> [Vec<Event>; 2] {
        let mut told = Vec::new();
        for reader in [&mut self.with_text, &mut self.without] {
            let rest = reader.rest();
            tokio::pin!(rest);
            let events = loop {
                // More than what a silent connection is given, in a moment.
                let tick = tokio::time::sleep(std::time::Duration::from_millis(5));
                tokio::select! {
                    events = &mut rest => break events,
                    () = tick => self.clock.jump(std::time::Duration::from_millis(500)),
                }
            };
            told.push(events);
        }
        told.try_into().unwrap()
    }

    /// They heard of no more than the end; their repeat runs, and the sleeper writes nothing.
    async fn end(mut self, told: [Vec<Event>; 2]) {
        for events in told {
            is_lost(&events);
        }
        let repeat = self.at_b.stream_request(self.key, "c1", "hello");
        let repeat = repeat.header("last-event-id", self.with_text.last_id.clone().unwrap());
        let again = Events::open(repeat).await.rest().await;
        assert_eq!(names_of(&again), ["restarted", "started", "delta", "completed"]);
        assert!(again[1].id.as_deref().unwrap().starts_with("2-"));

        self.gate.open();
        self.a.signal("CONT").await;
        self.a.until_event("fenced_off", |_| true).await;
        // What came of its call by then is told to its own reader, and then that it came to nothing.
        is_lost(&[self.at_a.rest().await.pop().unwrap()]);
        assert_eq!(self.a.events("committed").len(), 0);
        assert_eq!(self.provider.count(), 2);
        let (fence, attempts, state, _) = self.database.standing(self.key).await;
        assert_eq!((fence, attempts, state.as_str()), (2, 2, "committed"));
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert_clean(self.b.store()).await;
        // Awake again, it tells what the other one wrote.
        let at_a = self.at_b.at(self.a.address);
        let answer = at_a.chat(self.key, "c1", "hello").await;
        assert_eq!(answer.content(), text_of(&again));
        assert_eq!(again.last().unwrap().data, answer.json());
        assert!(self.b.shut_down().await);
    }
}

/// Told that the run is lost, and nothing else.
fn is_lost(events: &[Event]) {
    assert_eq!(names_of(events), ["failed"], "{events:?}");
    let failed = &events[0];
    assert_eq!((&failed.data["error"], &failed.data["status"]), (&"run_lost".into(), &503.into()));
    assert_eq!(failed.data["retryable"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_node_that_froze_are_told_once_its_silence_counts() {
    let mut scene = Scene::start().await;
    scene.database.age_heartbeats().await;
    let told = scene.told().await;
    let lost = "select count(*) from nodes where suspected_at is not null or dead_at is not null";
    assert_eq!(scene.database.count(lost).await, 0, "a frozen process keeps its lock");
    scene.end(told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_node_that_froze_and_lost_its_lock_are_told_without_its_silence() {
    let mut scene = Scene::start().await;
    let node = scene.database.node_at(scene.a.address).await;
    let session = scene.database.lock_session(node).await;
    assert_ne!(session, 0);
    scene.database.execute(&format!("select pg_terminate_backend({session})")).await;
    let dead = format!("select count(*) from nodes where node_id = {node} and dead_at is not null");
    eventually("the node counts as dead", || async { scene.database.count(&dead).await == 1 })
        .await;
    let told = scene.told().await;
    scene.end(told).await;
}
