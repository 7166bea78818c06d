//! The database goes away and comes back. Every lock is free then and every heartbeat looks old, but
//! nothing of a living node is taken over; what cannot be had meanwhile is a 503 that says when.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use oncekey::postgres::Cluster;
use tokio::process::Command;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::clock::TickingClock;
use crate::support::database::start_server;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::{Answer, Client, TestDatabase, eventually};

/// How a server ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// At once, with a recovery at the next start.
    Crash,
    /// In good order: unlogged tables stay as they are.
    Orderly,
}

async fn signal(pid: i64, name: &str) {
    let status =
        Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().await.unwrap();
    assert!(status.success());
}

/// A server of the test's own, a node on it, and a second one whose whole way to it is a proxy.
struct Scene {
    folder: &'static str,
    database: TestDatabase,
    server: Option<Cluster>,
    provider: ScriptedProvider,
    proxy: Arc<Proxy>,
    /// The node behind the proxy, which runs.
    a: TestNode,
    b: TestNode,
    at_a: Client,
    at_b: Client,
    key: Uuid,
    clock: TickingClock,
}

impl Scene {
    async fn start(folder: &'static str) -> Self {
        let (database, server) = TestDatabase::with_own_server(folder).await;
        let provider = ScriptedProvider::start().await;
        let proxy = Arc::new(Proxy::start(Target::Unix(database.socket())).await);
        let clock = TickingClock::start(TimeDelta::zero());
        let through = NodeOptions {
            database_url: Some(database.url_through(proxy.address.port())),
            ..NodeOptions::default()
        };
        let a = TestNode::start(&database, &provider, through).await;
        let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
        let b = TestNode::start(&database, &provider, options).await;
        database.age_epoch().await;
        let at_a = a.client("t1").await;
        let at_b = at_a.at(b.address());
        let server = Some(server);
        let key = Uuid::new_v4();
        Self { folder, database, server, provider, proxy, a, b, at_a, at_b, key, clock }
    }

    /// Sends the request to node A, and holds it at the provider; the claim is on the disk.
    async fn run_at_a(&self) -> (JoinHandle<Answer>, Gate) {
        let gate = Gate::closed();
        self.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
        let (client, key) = (self.at_a.clone(), self.key);
        let asked = tokio::spawn(async move { client.chat(key, "c1", "hello").await });
        gate.until_reached(1).await;
        self.database.execute("checkpoint").await;
        (asked, gate)
    }

    async fn stop(&mut self, end: End) {
        let server = self.server.take().unwrap();
        if matches!(end, End::Crash) {
            signal(server.postmaster().into(), "QUIT").await;
        }
        tokio::task::spawn_blocking(move || server.stop()).await.unwrap().unwrap();
    }

    async fn start_again(&mut self) {
        self.server = Some(start_server(self.folder, &[]).await);
    }

    /// Waits until so many nodes stand in `nodes` of this incarnation of the database.
    async fn until_registered(&self, nodes: i64) {
        eventually(&format!("{nodes} nodes are registered and locked"), || async {
            self.database
                .count(
                    "select count(*) from nodes join server_epoch
                        on server_start = pg_postmaster_start_time()
                    where dead_at is null and exists (select from pg_locks
                        where locktype = 'advisory' and objid = node_id and granted
                            and mode = 'ExclusiveLock')",
                )
                .await
                == nodes
        })
        .await;
    }

    async fn ask_b(&self) -> Answer {
        self.at_b.chat(self.key, "c1", "hello").await
    }

    async fn assert_one_outcome(&self, calls: usize) {
        assert_eq!(self.provider.count(), calls);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert!(self.ask_b().await.replayed());
        assert_clean(self.b.store()).await;
    }

    async fn end(self) {
        self.proxy.set(Mode::Pass);
        assert!(self.a.shut_down().await);
        assert!(self.b.shut_down().await);
        self.database.pool.close().await;
        let server = self.server.unwrap();
        tokio::task::spawn_blocking(move || server.stop()).await.unwrap().unwrap();
    }
}

fn is_in_progress(answer: &Answer) {
    let text = String::from_utf8_lossy(&answer.bytes);
    assert_eq!((answer.status, answer.error().as_str()), (409, "in_progress"), "{text}");
}

/// A run outlives a restart that is over before its answer comes.
async fn outlived(folder: &'static str, end: End) {
    let mut scene = Scene::start(folder).await;
    let (asked, gate) = scene.run_at_a().await;
    scene.stop(end).await;
    scene.start_again().await;
    scene.until_registered(2).await;
    is_in_progress(&scene.ask_b().await);
    gate.open();
    let answer = asked.await.unwrap();
    assert_eq!(answer.content(), "Answer to message 1: hello");
    assert!(!answer.replayed());
    scene.assert_one_outcome(1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlives_a_crash_of_the_server() {
    outlived("server-crash", End::Crash).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlives_an_orderly_restart_of_the_server() {
    outlived("server-restart", End::Orderly).await;
}

/// The answer comes while the server is down; the run waits with it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_meanwhile_is_kept_and_written_afterwards() {
    let mut scene = Scene::start("server-away").await;
    let (asked, gate) = scene.run_at_a().await;
    scene.stop(End::Crash).await;
    gate.open();
    scene.provider.until_idle().await;
    scene.start_again().await;
    let answer = asked.await.unwrap();
    assert_eq!(answer.content(), "Answer to message 1: hello");
    scene.until_registered(2).await;
    scene.assert_one_outcome(1).await;
    scene.end().await;
}

/// A node that comes back later than the others loses nothing at first, and its run once things
/// count again.
async fn late(folder: &'static str, end: End) {
    let mut scene = Scene::start(folder).await;
    let (asked, gate) = scene.run_at_a().await;
    scene.proxy.set(Mode::Refuse);
    scene.stop(end).await;
    scene.start_again().await;
    scene.until_registered(1).await;
    scene.database.age_heartbeats().await;
    // Longer than a detector takes to be sure, with a look at every turn.
    for _ in 0..8 {
        is_in_progress(&scene.ask_b().await);
        scene.clock.jump(Duration::from_millis(300));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let doubted =
        "select count(*) from nodes where dead_at is not null or suspected_at is not null";
    assert_eq!(scene.database.count(doubted).await, 0);
    assert_eq!(scene.provider.count(), 1);

    scene.database.age_epoch().await;
    let answer = scene.at_b.chat_until_answered(scene.key, "c1", "hello").await;
    assert_eq!(answer.content(), "Answer to message 1: hello");
    scene.assert_one_outcome(2).await;

    // It comes back, and is told what became of its operation.
    scene.proxy.set(Mode::Pass);
    gate.open();
    let late = asked.await.unwrap();
    assert!(
        late.bytes == answer.bytes || late.error() == "run_lost",
        "{}",
        String::from_utf8_lossy(&late.bytes)
    );
    scene.until_registered(2).await;
    scene.assert_one_outcome(2).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_silence_and_free_locks_count_only_when_everybody_had_the_time_to_return() {
    late("server-crash-late", End::Crash).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_orderly_restart_free_locks_count_only_when_everybody_had_the_time_to_return() {
    late("server-restart-late", End::Orderly).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_killed_child_of_the_server_costs_no_run() {
    let scene = Scene::start("server-child").await;
    let (asked, gate) = scene.run_at_a().await;
    let start = "select extract(epoch from pg_postmaster_start_time())::bigint";
    let started = scene.database.count(start).await;
    let victim = scene.database.count("select pg_backend_pid()::bigint").await;
    signal(victim, "KILL").await;
    eventually("the server has recovered", || async {
        let count =
            "select count(*) from server_epoch where first_seen > now() - interval '1 hour'";
        sqlx::query_scalar(count).fetch_one(&scene.database.pool).await.is_ok_and(|n: i64| n == 1)
    })
    .await;
    assert_eq!(scene.database.count(start).await, started, "it is the same server");
    scene.until_registered(2).await;
    scene.database.age_heartbeats().await;
    is_in_progress(&scene.ask_b().await);
    gate.open();
    assert_eq!(asked.await.unwrap().content(), "Answer to message 1: hello");
    scene.assert_one_outcome(1).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_database_every_question_is_answered_with_when_to_come_back() {
    let mut scene = Scene::start("server-gone").await;
    scene.stop(End::Orderly).await;
    let (client, key) = (scene.at_b.clone(), scene.key);
    let chat = tokio::spawn(async move { client.chat(key, "c1", "hello").await });
    let client = scene.at_b.clone();
    let read = tokio::spawn(async move { client.get(&format!("/v1/requests/{key}")).await });
    let client = scene.at_b.clone();
    let ready = tokio::spawn(async move { client.get("/readyz").await });
    for answer in [chat, read, ready] {
        let answer = scene.clock.hurry(answer).await;
        assert_eq!((answer.status, answer.error().as_str()), (503, "database_unavailable"));
        assert_eq!(answer.json()["retryable"], true);
        assert!(answer.header("retry-after").is_some());
        assert!(answer.header("x-request-id").is_some());
        let text = String::from_utf8_lossy(&answer.bytes).to_lowercase();
        assert!(!text.contains("socket") && !text.contains("postgres"), "{text}");
    }
    assert_eq!(scene.at_b.get("/healthz").await.status, 200);
    assert_eq!(scene.provider.count(), 0);

    scene.start_again().await;
    assert_eq!(scene.at_b.chat_until_answered(key, "c1", "hello").await.status, 200);
    assert_eq!(scene.at_b.get("/readyz").await.status, 200);
    scene.assert_one_outcome(1).await;
    scene.end().await;
}
