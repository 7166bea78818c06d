//! The service with all that surrounds it, and what each command does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use oncekey::clock::Clock;
use oncekey::domain::liveness::LivenessRules;
use oncekey::store::{Store, StoreSettings};
use tokio_util::task::TaskTracker;

use super::clients::{Body, Clients};
use super::history::{Command, History, Line, Way};
use super::journal::Journal;
use super::model::Model;
use super::node::Node;
use super::server::{self, Server};
use crate::support::node::{new_key, provider_variables};
use crate::support::provider::Wire;
use crate::support::{Client, TestDatabase, eventually};

/// How long a command waits for what it waits for before the history goes on.
const SOON: Duration = Duration::from_millis(700);
/// A node that is told to end is killed after this.
const DRAIN_LIMIT: Duration = Duration::from_millis(1_200);

/// One history being lived.
pub struct World {
    pub history: Arc<History>,
    pub journal: Journal,
    pub model: Model,
    pub clients: Clients,
    pub database: TestDatabase,
    pub nodes: Vec<Node>,
    /// No node starts before this day any more.
    floor: i64,
}

impl World {
    pub async fn new(history: Arc<History>, journal: Journal, server: &mut Server) -> Self {
        let database = TestDatabase::empty_on(server.up().await).await;
        let model = Model::start().await;
        let mut nodes = Vec::new();
        for (number, days) in history.nodes.iter().enumerate() {
            let mut variables = provider_variables(&model.server, Wire::Anthropic);
            variables.extend(settings(&history));
            let mut node = Node::new(number, *days, variables, &database).await;
            node.start(*days, &database, &journal).await.unwrap();
            nodes.push(node);
            if number == 0 {
                server::watch(&database, history.calm).await;
            }
        }
        server::age(&database).await;
        // A keeper's first round writes what would carry a claim to the disk that is to be forgotten.
        let rounds = || journal.events().get("keys_cleared").copied().unwrap_or(0);
        eventually("every keeper has made its round", || async { rounds() >= nodes.len() }).await;
        let store = store_of(&database);
        let tenants: BTreeSet<usize> =
            history.operations.iter().map(|operation| operation.tenant).collect();
        let mut clients = BTreeMap::new();
        for tenant in tenants.into_iter().map(|tenant| format!("t{tenant}")) {
            let key = new_key(&store, &tenant, "client", None).await;
            clients.insert(tenant, Client::new(nodes[0].address, &key));
        }
        let clients = Clients::new(history.clone(), journal.clone(), clients);
        Self { history, journal, model, clients, database, nodes, floor: 0 }
    }

    /// Lives all of the history.
    pub async fn live(&mut self, server: &mut Server) {
        for (place, command) in self.history.clone().commands.iter().enumerate() {
            self.journal.note(format!("#{place} {command:?}"));
            self.perform(*command, server).await;
        }
    }

    async fn perform(&mut self, command: Command, server: &mut Server) {
        match command {
            Command::Send { operation, node } => {
                self.clients.send(operation, Body::Own, self.nodes[node].address);
            }
            Command::SendPatiently { operation, node } => {
                self.clients.send(operation, Body::OwnPatiently, self.nodes[node].address);
            }
            Command::SendOther { operation, node } => {
                self.clients.send(operation, Body::Other, self.nodes[node].address);
            }
            Command::Cancel { operation, node } => {
                self.clients.cancel(operation, self.nodes[node].address);
            }
            Command::Erase { operation, node } => {
                self.clients.erase(operation, self.nodes[node].address);
            }
            Command::Cut { operation } => self.clients.cut(operation),
            Command::Fault { operation, fault } => self.model.fault(operation, fault),
            Command::Answer { operation } => self.model.answer(operation),
            Command::UntilCalled { operation } => self.soon(self.model.called(operation)).await,
            Command::UntilHeld { node } => self.soon(self.nodes[node].until_held()).await,
            Command::UntilServer => server::answers(&self.database).await,
            Command::Pause { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
            Command::Crash { node } => self.nodes[node].crash(),
            Command::Drain { node } => {
                let whole = self.nodes[node].drain(DRAIN_LIMIT).await;
                self.journal.note(format!("drained: {whole:?}"));
            }
            Command::Start { node, days } => self.start(node, days).await,
            Command::Freeze { node } => self.nodes[node].freeze(),
            Command::Thaw { node } => self.nodes[node].thaw(),
            Command::Line { node, line, way } => self.nodes[node].set_line(line, way),
            Command::CutLine { node, line } => self.nodes[node].cut_line(line),
            Command::Terminate { session } => server::terminate(&self.database, session).await,
            Command::CrashServer { session } => server::crash(&self.database, session).await,
            Command::RestartServer { down_ms } => {
                server.down().await;
                tokio::time::sleep(Duration::from_millis(down_ms)).await;
                server.up().await;
            }
            Command::DropDay { days, by_hand } => self.drop_day(days, by_hand).await,
            Command::Age => server::age(&self.database).await,
            Command::Hold { node, place } => self.nodes[node].hold(place),
            Command::Release { node } => self.nodes[node].release(),
            Command::Panic { node, place } => self.nodes[node].panic(place),
        }
    }

    async fn soon(&self, event: impl Future<Output = ()>) {
        if tokio::time::timeout(SOON, event).await.is_err() {
            self.journal.note("waited in vain");
        }
    }

    async fn start(&mut self, node: usize, days: i64) {
        let days = days.max(self.floor);
        let started = self.nodes[node].start(days, &self.database, &self.journal).await;
        if let Err(error) = started {
            self.journal.note(format!("node {node} does not start: {error}"));
        }
    }

    /// An old day alone: one that is over at every node, now and from now on.
    async fn drop_day(&mut self, days: i64, by_hand: bool) {
        let over = self.nodes.iter().filter(|node| node.is_running()).all(|node| node.days > days);
        if !over {
            return;
        }
        self.floor = self.floor.max(days + 1);
        let dropped = match by_hand {
            true => server::drop_day(&self.database, days).await.map_err(|error| error.to_string()),
            false => server::retire(&self.database, days, &self.journal).await,
        };
        if let Err(error) = dropped {
            self.journal.note(format!("the day is not dropped: {error}"));
        }
    }

    /// Ends every fault, so that whatever is still open must now come to its end.
    pub async fn mend(&mut self, server: &mut Server) {
        self.journal.note("mending");
        server.up().await;
        self.model.behave();
        for node in &mut self.nodes {
            for line in [Line::Pool, Line::Beats] {
                node.set_line(line, Way::Pass);
            }
            node.release();
            node.thaw();
        }
        for node in 0..self.nodes.len() {
            eventually_started(self, node).await;
        }
    }

    /// Sends every operation until it is answered, and once more. Returns what went wrong.
    pub async fn answer_all(&self) -> Vec<String> {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.address).collect();
        let bodies: Vec<(usize, Body)> = (0..self.history.operations.len())
            .flat_map(|operation| [(operation, Body::Own), (operation, Body::Other)])
            .filter(|&(operation, body)| body == Body::Own || self.other_was_sent(operation))
            .collect();
        let mut wrong = Vec::new();
        for round in 1..=2 {
            self.journal.note(format!("round {round} of asking for every operation"));
            let (tasks, results) =
                (TaskTracker::new(), Arc::new(std::sync::Mutex::new(Vec::new())));
            for &(operation, body) in &bodies {
                let (clients, results) = (self.clients.clone(), results.clone());
                let addresses = addresses.clone();
                tasks.spawn(async move {
                    let answer = clients.until_answered(operation, body, &addresses).await;
                    results.lock().unwrap().extend(answer.err());
                });
            }
            tasks.close();
            tasks.wait().await;
            wrong.append(&mut results.lock().unwrap());
        }
        wrong
    }

    pub fn was_sent(&self, is_it: impl Fn(&Command) -> bool) -> bool {
        self.history.commands.iter().any(is_it)
    }

    pub fn other_was_sent(&self, operation: usize) -> bool {
        self.was_sent(|command| {
            matches!(command, Command::SendOther { operation: known, .. } if *known == operation)
        })
    }

    /// Whether somebody wanted the operation's conversation deleted.
    pub fn was_erased(&self, operation: usize) -> bool {
        let place =
            |operation| (self.history.tenant(operation), self.history.conversation(operation));
        self.was_sent(|command| match command {
            Command::Erase { operation: known, .. } => place(*known) == place(operation),
            _ => false,
        })
    }

    /// Waits until nothing works any more, and ends every node. Returns what went wrong.
    pub async fn come_to_rest(&mut self) -> Vec<String> {
        self.clients.ended().await;
        self.model.server.until_idle().await;
        let nodes = &self.nodes;
        eventually("no node works on anything", || async {
            nodes.iter().all(|node| node.runs() == 0)
        })
        .await;
        let mut wrong = Vec::new();
        for node in &mut self.nodes {
            if node.drain(crate::support::PATIENCE).await != Some(true) {
                wrong.push(format!("node {} at rest did not end in good order", node.number));
            }
        }
        wrong
    }
}

pub fn is_erasure(command: &Command) -> bool {
    matches!(command, Command::Erase { .. })
}

async fn eventually_started(world: &mut World, node: usize) {
    for _ in 0..100 {
        if world.nodes[node].is_running() {
            return;
        }
        world.start(node, world.nodes[node].days).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("node {node} does not start");
}

/// Short times where something is to go wrong, so that silence is reached; long ones where not.
fn settings(history: &History) -> Vec<(String, String)> {
    let max_runs = history.max_runs.to_string();
    let mut settings = vec![
        ("ONCEKEY_DATABASE__POOL", "6"),
        // Days are dropped by command alone: the keepers would go by the day of their own node.
        ("ONCEKEY_IDEMPOTENCY__RETENTION", "1000d"),
        ("ONCEKEY_LIMITS__DRAIN", "300ms"),
        ("ONCEKEY_RETRY__MAX_ATTEMPTS", "3"),
        ("ONCEKEY_RETRY__TOTAL_WAIT", "400ms"),
        ("ONCEKEY_RETRY__MAX_RUNS", &max_runs),
    ];
    if !history.calm {
        settings.extend([
            ("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "200ms"),
            ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "3s"),
            ("ONCEKEY_PROVIDERS__MAIN__FIRST_BYTE_TIMEOUT", "3s"),
            ("ONCEKEY_PROVIDERS__MAIN__IDLE_TIMEOUT", "3s"),
        ]);
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Straight to the server, with connections that no recovery has broken yet.
pub fn store_of(database: &TestDatabase) -> Store {
    store_ahead(database, 0)
}

/// The same, so many days ahead.
pub fn store_ahead(database: &TestDatabase, days: i64) -> Store {
    let settings = StoreSettings {
        url: database.url.clone(),
        direct_url: None,
        pool_size: 3,
        coalesce: true,
        // Every run has ended when the audit looks: none may be without an owner at all.
        liveness: LivenessRules { stale_after: Duration::ZERO, grace: Duration::ZERO },
        clock_offset: Duration::from_secs(u64::try_from(days).unwrap() * 86_400),
    };
    Store::new(settings, Clock::system()).unwrap()
}
