//! The primary is lost for good and its streaming standby promoted: with synchronous replication no answer
//! that was told is lost, no living run is taken over because the new server knows no heartbeats, and a
//! claim that was lost costs a provider call and nothing else.

use oncekey::postgres::Cluster;
use tokio::process::Command;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::proxy::{Mode, Proxy, Target};
use crate::support::standby::Standby;
use crate::support::{Answer, Client, TestDatabase, eventually};

/// So long that no test lives to see a real beat missed or the new server old.
const LONG: [(&str, &str); 2] =
    [("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "2m"), ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "20m")];

/// A primary with its standby. Nodes reach them by an address that an operator moves: a proxy each.
struct Servers {
    primary: Cluster,
    standby: Standby,
    database: TestDatabase,
}

impl Servers {
    async fn start(folder: &str) -> Self {
        let (database, primary) = TestDatabase::with_fresh_server(folder).await;
        let standby = Standby::of(&primary, &database).await;
        Self { primary, standby, database }
    }

    async fn way(&self) -> Proxy {
        Proxy::start(Target::Unix(self.database.socket())).await
    }

    /// The primary is gone with all connections; the ways lead nowhere.
    async fn kill_primary(self, ways: [&Proxy; 2]) -> Standby {
        for way in ways {
            way.set(Mode::Refuse);
            way.cut();
        }
        let pid = self.primary.postmaster().to_string();
        let killed = Command::new("kill").args(["-KILL", &pid]).status().await.unwrap();
        assert!(killed.success());
        let primary = self.primary;
        tokio::task::spawn_blocking(move || primary.stop()).await.unwrap().unwrap();
        self.standby
    }

    /// All that is committed so far is on the standby, what did not wait for it too.
    async fn flush(&self) {
        self.database.execute("create table flushed (); drop table flushed").await;
    }
}

fn open(way: &Proxy, standby: &Standby) {
    way.lead_to(Target::Unix(standby.socket().to_owned()));
    way.set(Mode::Pass);
}

async fn node(database: &TestDatabase, provider: &ScriptedProvider, way: &Proxy) -> TestNode {
    let mut options = NodeOptions {
        database_url: Some(database.url_through(way.address.port())),
        ..NodeOptions::default()
    };
    for (name, value) in LONG {
        options = options.set(name, value);
    }
    TestNode::start(database, provider, options).await
}

/// A run whose call is held at the provider.
struct Held {
    key: Uuid,
    conversation: &'static str,
    asked: JoinHandle<Answer>,
    gate: Gate,
}

impl Held {
    async fn ask(client: &Client, provider: &ScriptedProvider, conversation: &'static str) -> Self {
        let (key, gate) = (Uuid::new_v4(), Gate::closed());
        provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
        let client = client.clone();
        let asked = tokio::spawn(async move { client.chat(key, conversation, "hello").await });
        gate.until_reached(1).await;
        Self { key, conversation, asked, gate }
    }

    async fn ask_again(&self, client: &Client) -> Answer {
        client.chat(self.key, self.conversation, "hello").await
    }
}

fn is_in_progress(answer: &Answer) {
    let text = String::from_utf8_lossy(&answer.bytes);
    assert_eq!((answer.status, answer.error().as_str()), (409, "in_progress"), "{text}");
}

async fn until_registered(database: &TestDatabase, nodes: i64) {
    eventually(&format!("{nodes} nodes are registered"), || async {
        database.count("select count(*) from nodes where dead_at is null").await == nodes
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_told_is_lost_and_no_living_run_is_taken_over() {
    let servers = Servers::start("failover").await;
    let (way_a, way_b) = (servers.way().await, servers.way().await);
    let provider = ScriptedProvider::start().await;
    let a = node(&servers.database, &provider, &way_a).await;
    let b = node(&servers.database, &provider, &way_b).await;
    let at_a = a.client("t1").await;
    let at_b = at_a.at(b.address());
    let mut told = Vec::new();
    for number in 0..5 {
        let (key, message) = (Uuid::new_v4(), format!("question {number}"));
        let answer = at_a.chat(key, "told", &message).await;
        assert_eq!(answer.status, 200);
        told.push((key, message, answer));
    }
    let running = Held::ask(&at_a, &provider, "running").await;
    let committing = Held::ask(&at_a, &provider, "committing").await;
    servers.flush().await;

    // The standby does not get what comes now: a claim, and a commit that waits for it.
    servers.standby.follow_no_more(&servers.database).await;
    let lost = Held::ask(&at_a, &provider, "lost").await;
    committing.gate.open();
    let waits = "select count(*) from pg_stat_activity
        where wait_event = 'SyncRep' and starts_with(query, '/* commit.chat */')";
    eventually("the commit waits for the standby", || async {
        servers.database.count(waits).await == 1
    })
    .await;
    let name = servers.database.name.clone();
    let standby = servers.kill_primary([&way_a, &way_b]).await;

    // Not promoted yet it is no use, and nobody is told that something is broken for good.
    open(&way_b, &standby);
    for _ in 0..3 {
        let early = running.ask_again(&at_b).await;
        assert_eq!((early.status, early.error().as_str()), (503, "database_unavailable"));
    }
    standby.promote().await;
    let database = standby.database(&name).await;
    until_registered(&database, 1).await;

    // The new server knows neither node A nor a beat of it, and is too young for that to mean anything.
    database.age_heartbeats().await;
    let unknown = "select count(*) from request_records r left join nodes n on n.node_id = r.owner
        where r.state = 'in_progress' and n.node_id is null";
    assert_eq!(database.count(unknown).await, 2);
    is_in_progress(&running.ask_again(&at_b).await);
    is_in_progress(&committing.ask_again(&at_b).await);
    // The claim that did not get there is unknown; the retry begins anew.
    let anew = lost.ask_again(&at_b).await;
    assert_eq!(anew.status, 200, "{}", String::from_utf8_lossy(&anew.bytes));
    assert!(!anew.replayed());

    open(&way_a, &standby);
    until_registered(&database, 2).await;
    let committed = committing.asked.await.unwrap();
    assert_eq!(committed.status, 200, "{}", String::from_utf8_lossy(&committed.bytes));
    let beats = "select count(*) from request_records where state = 'in_progress'
        and heartbeat_at > clock_timestamp() - interval '1 hour'";
    eventually("node A beats again", || async { database.count(beats).await == 1 }).await;
    database.age_epoch().await;
    is_in_progress(&running.ask_again(&at_b).await);
    running.gate.open();
    let answer = running.asked.await.unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    // The run without a record writes nothing, and its client is told to send again.
    let again = (lost.key, lost.conversation);
    lost.gate.open();
    let told_to = lost.asked.await.unwrap();
    assert_eq!((told_to.status, told_to.error().as_str()), (503, "run_lost"));
    assert!(told_to.header("retry-after").is_some());
    let replay = at_a.chat(again.0, again.1, "hello").await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, anew.bytes);

    for (key, message, answer) in told {
        let replay = at_b.chat(key, "told", &message).await;
        assert!(replay.replayed());
        assert_eq!(replay.bytes, answer.bytes);
    }
    assert_eq!(database.outcomes().await, (8, 8, 8));
    assert_eq!(provider.count(), 9, "the lost claim's call is the one that was made twice");
    let taken = "select count(*) from request_records where fence > 1 or attempts > 1";
    assert_eq!(database.count(taken).await, 0, "no run was taken over");
    assert_clean(b.store()).await;
    assert!(a.shut_down().await && b.shut_down().await);
    database.pool.close().await;
    standby.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_node_died_with_the_primary_is_taken_over_once_the_new_server_is_known() {
    let servers = Servers::start("failover-death").await;
    let (way_a, way_b) = (servers.way().await, servers.way().await);
    let provider = ScriptedProvider::start().await;
    let through = servers.database.url_through(way_a.address.port());
    let variables = [LONG[0], LONG[1], ("DATABASE_URL", through.as_str())];
    let mut a = ProcessNode::on(&servers.database, &provider, &variables).await;
    let b = node(&servers.database, &provider, &way_b).await;
    let at_b = b.client("t1").await;
    let (key, gate) = (Uuid::new_v4(), Gate::closed());
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let at_a = at_b.at(a.address);
    let asked = tokio::spawn(async move { at_a.try_chat(key, "c1", "hello").await });
    gate.until_reached(1).await;
    servers.flush().await;

    a.kill().await;
    assert!(asked.await.unwrap().is_err());
    let name = servers.database.name.clone();
    let standby = servers.kill_primary([&way_a, &way_b]).await;
    standby.promote().await;
    open(&way_b, &standby);
    let database = standby.database(&name).await;
    until_registered(&database, 1).await;
    is_in_progress(&at_b.chat(key, "c1", "hello").await);
    database.age_epoch().await;
    assert_eq!(at_b.chat_until_answered(key, "c1", "hello").await.status, 200);
    assert_eq!(database.standing(key).await, (2, 2, "committed".into(), None));
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_clean(b.store()).await;
    assert!(b.shut_down().await);
    database.pool.close().await;
    standby.stop().await;
}
