//! Histories side by side, each lane with a server of its own; and the report of the one that fails.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio_util::task::TaskTracker;

use super::history::History;
use super::journal::Journal;
use super::server::Server;
use super::world::World;
use super::{check, generate};

/// Histories of a run that nobody asked for anything else.
const HISTORIES: u64 = 24;
/// Times that one history is run where it is asked for: it need not fail the first time.
const TIMES: u64 = 10;

/// What the variables ask for.
#[derive(Clone)]
pub struct Settings {
    histories: Option<u64>,
    first_seed: u64,
    seed: Option<u64>,
    file: Option<PathBuf>,
    lanes: usize,
}

impl Settings {
    /// `ONCEKEY_SIMULATION_HISTORIES`, `_FIRST_SEED`, `_SEED`, `_HISTORY` (a file) and `_LANES`.
    pub fn of_process() -> Self {
        let text = |name: &str| std::env::var(format!("ONCEKEY_SIMULATION_{name}")).ok();
        let number = |name: &str| {
            text(name).map(|text| {
                text.parse::<u64>().unwrap_or_else(|_| panic!("ONCEKEY_SIMULATION_{name}={text}"))
            })
        };
        Self {
            histories: number("HISTORIES"),
            first_seed: number("FIRST_SEED").unwrap_or(1),
            seed: number("SEED"),
            file: text("HISTORY").map(PathBuf::from),
            lanes: usize::try_from(number("LANES").unwrap_or(2)).unwrap(),
        }
    }

    pub fn with_lanes(self, lanes: usize) -> Self {
        Self { lanes, ..self }
    }

    pub fn is_about_one(&self) -> bool {
        self.seed.is_some() || self.file.is_some()
    }

    pub fn histories(&self) -> Box<dyn Iterator<Item = History> + Send> {
        let one = self
            .file
            .as_ref()
            .map(|file| History::from_json(&std::fs::read_to_string(file).unwrap()));
        let one = one.or(self.seed.map(generate::history));
        if let Some(history) = one {
            let times = usize::try_from(self.histories.unwrap_or(TIMES)).unwrap();
            return Box::new(std::iter::repeat_n(history, times));
        }
        let last = self.first_seed + self.histories.unwrap_or(HISTORIES);
        Box::new((self.first_seed..last).map(generate::history))
    }
}

/// Lives all histories and fails at the end if one did; the first failures end the run early.
pub async fn run(
    settings: &Settings,
    name: &str,
    histories: impl Iterator<Item = History> + Send + 'static,
) {
    let histories = Arc::new(Mutex::new(histories));
    let failures = Arc::new(Mutex::new(Vec::new()));
    let (done, events) = (Arc::new(AtomicUsize::new(0)), Events::default());
    let lanes = TaskTracker::new();
    for lane in 0..settings.lanes {
        let folder = format!("simulation-{name}-{lane}");
        let (histories, failures) = (histories.clone(), failures.clone());
        let (done, events) = (done.clone(), events.clone());
        lanes.spawn(async move {
            let server = Arc::new(tokio::sync::Mutex::new(Server::new(folder)));
            loop {
                let next = histories.lock().unwrap().next();
                let Some(history) = next.filter(|_| failures.lock().unwrap().is_empty()) else {
                    break;
                };
                if let Some(report) = live(Arc::new(history), server.clone(), &events).await {
                    failures.lock().unwrap().push(report);
                }
                let done = 1 + done.fetch_add(1, Ordering::Relaxed);
                if done.is_multiple_of(20) {
                    eprintln!("{done} histories");
                }
            }
            server.lock().await.down().await;
        });
    }
    lanes.close();
    lanes.wait().await;
    eprintln!("{} {name} histories: {:?}", done.load(Ordering::Relaxed), events.lock().unwrap());
    let failures = failures.lock().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// How often what was seen, over all histories: what never happens was never tested.
type Events = Arc<Mutex<BTreeMap<String, usize>>>;

/// Lives one history; the report where it failed.
async fn live(
    history: Arc<History>,
    server: Arc<tokio::sync::Mutex<Server>>,
    events: &Events,
) -> Option<String> {
    let journal = Journal::new();
    let its = journal.clone();
    let living = history.clone();
    let lived = tokio::spawn(async move {
        let mut server = server.lock_owned().await;
        let mut world = World::new(living, its, &mut server).await;
        world.live(&mut server).await;
        world.mend(&mut server).await;
        let mut wrong = world.answer_all().await;
        wrong.extend(world.come_to_rest().await);
        wrong.extend(check::everything(&world).await);
        if wrong.is_empty() {
            server.forget(&world.database.name).await;
        }
        wrong
    });
    let lived = lived.await;
    for (event, count) in journal.events() {
        *events.lock().unwrap().entry(event).or_default() += count;
    }
    let wrong = match lived {
        Ok(wrong) if wrong.is_empty() => return None,
        Ok(wrong) => wrong,
        Err(panic) => vec![format!("it did not come to its end: {panic:?}")],
    };
    Some(report(&history, &journal, &wrong))
}

/// Keeps what is needed to see it again, and says where.
fn report(history: &History, journal: &Journal, wrong: &[String]) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation-failures");
    std::fs::create_dir_all(&folder).unwrap();
    let name = folder.join(format!("seed-{}", history.seed));
    std::fs::write(name.with_extension("json"), history.to_json()).unwrap();
    let complaints = wrong.join("\n");
    let whole = format!("{}\n\n{complaints}\n", journal.text());
    std::fs::write(name.with_extension("log"), whole).unwrap();
    format!(
        "history of seed {} failed:\n{complaints}\n\nits commands:\n{}\nWhat happened stands in \
         {}.log. Again:\n  ONCEKEY_SIMULATION_SEED={} cargo test --test simulation\nor, cut down by \
         hand:\n  ONCEKEY_SIMULATION_HISTORY={}.json cargo test --test simulation",
        history.seed,
        history.to_json(),
        name.display(),
        history.seed,
        name.display()
    )
}
