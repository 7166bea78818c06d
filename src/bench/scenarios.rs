//! The rounds: floor, bare handlers and service take turns, each with 1, 16 and 64 clients.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use sqlx::PgPool;
use tokio::task::JoinSet;

use super::child::Contestant;
use super::client::Connection;
use super::direct::Floor;
use super::held::Held;
use super::load::{self, Worker};
use super::report::Report;
use super::samples::Contest;
use super::stage::Stage;
use super::workload::{Client, DELAYED, Door, Question, Questions};
use super::{BenchError, CONCURRENCIES, Settings, database, machine, seed};

/// Stored answers that are told again in turn.
const KNOWN: usize = 512;
/// Operations of a conversation whose prompts hold what was said before.
const TALK: usize = 10;
/// Lost runs that are laid out for each second of load: more than can be taken over.
const LOST_PER_SECOND: f64 = 3_000.0;

/// What stands ready when the rounds begin.
struct Ready<'a> {
    stage: &'a Stage,
    settings: &'a Settings,
    floor: PgPool,
    bare: Contestant,
    service: Contestant,
    held: Held,
    stored: Arc<Vec<Question>>,
    bare_stored: Arc<Vec<Question>>,
    in_progress: Arc<Vec<Question>>,
    running: JoinSet<Result<(), BenchError>>,
}

/// What is contended, in the order of a round.
const ROUND: [Contest; 10] = [
    Contest::Floor,
    Contest::BareCommit,
    Contest::New,
    Contest::BareDelayed,
    Contest::NewDelayed,
    Contest::Talk,
    Contest::BareSelect,
    Contest::Replay,
    Contest::InProgress,
    Contest::Takeover,
];

/// Plays all rounds.
pub async fn rounds(
    stage: &Stage,
    settings: &Settings,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    tell("starting the service and the bare handlers");
    let mut ready = Ready::make(stage, settings, report).await?;
    stage.server.settle().await;
    for round in 1..=settings.repetitions {
        tell(&format!("round {round} of {}", settings.repetitions));
        for contest in ROUND {
            for clients in CONCURRENCIES {
                // One size is enough where nothing is compared by size.
                let only = match contest {
                    Contest::Takeover | Contest::Talk => Some(16),
                    Contest::BareDelayed => Some(1),
                    _ => None,
                };
                if only.is_some_and(|only| only != clients) {
                    continue;
                }
                let (workers, contestant) = ready.workers(contest, clients).await?;
                let mut sample = stage.measure(contestant, workers, settings.length).await?;
                if contest == Contest::NewDelayed {
                    sample.call_p50_ms = Some(ready.last_calls(sample.operations).await?);
                }
                report.add(contest, clients, sample);
            }
        }
    }
    ready.held.let_go();
    while let Some(ended) = ready.running.join_next().await {
        ended.map_err(|error| BenchError::failed(error.to_string()))??;
    }
    ready.service.stop().await?;
    ready.bare.stop().await?;
    ready.floor.close().await;
    Ok(())
}

impl<'a> Ready<'a> {
    async fn make(
        stage: &'a Stage,
        settings: &'a Settings,
        report: &mut Report,
    ) -> Result<Self, BenchError> {
        let floor = Floor::prepare(&stage.bare_url).await?;
        let bare = stage.start_bare().await?;
        let held = Held::start().await?;
        // Runs that look lost are seeded; the sweep, which looks every twelfth part of this, must not
        // find them before an arrival does.
        let patience = [("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "12h")];
        let service = stage.start_service(&held, &patience).await?;
        report.memory.idle = machine::memory(service.pid);
        let clock = &stage.clock;
        let new = |model| move |_| Question::new(clock, model);
        let stored: Vec<_> = (0..KNOWN).map(new("default")).collect();
        let bare_stored: Vec<_> = (0..KNOWN).map(new("default")).collect();
        let in_progress = vec![new("held")(0)];
        let mut running = JoinSet::new();
        for question in in_progress.clone() {
            let door = stage.door(&service, 200, false);
            running.spawn(async move {
                let mut connection = Connection::open(door.address).await?;
                door.ask(&mut connection, &question).await.map(drop)
            });
        }
        held.until_calls(in_progress.len()).await;
        let ready = Self {
            stage,
            settings,
            floor,
            bare,
            service,
            held,
            stored: Arc::new(stored),
            bare_stored: Arc::new(bare_stored),
            in_progress: Arc::new(in_progress),
            running,
        };
        ready.warm_up().await?;
        Ok(ready)
    }

    /// Stores the answers that are told again later, over as many connections as will ever be used,
    /// so that connections, statements and pages are there before anything is counted.
    async fn warm_up(&self) -> Result<(), BenchError> {
        let clients = CONCURRENCIES[CONCURRENCIES.len() - 1];
        let doors = [
            (self.stage.door(&self.service, 200, false), &self.stored),
            (self.bare_door("/commit"), &self.bare_stored),
        ];
        for (door, known) in doors {
            let questions = Questions::Once(known.clone(), Arc::default());
            let workers = over_http(door, &questions, clients).await?;
            load::run(&self.stage.clock, workers, LONG).await?;
        }
        Ok(())
    }

    async fn workers(
        &self,
        contest: Contest,
        clients: usize,
    ) -> Result<(Vec<Box<dyn Worker>>, Option<&Contestant>), BenchError> {
        let clock = self.stage.clock.clone();
        let delayed = matches!(contest, Contest::NewDelayed | Contest::BareDelayed);
        let model = if delayed { DELAYED } else { "default" };
        let new = Questions::New { clock: clock.clone(), model };
        let committed = self.stage.door(&self.service, 200, false);
        let (door, questions) = match contest {
            Contest::Floor => {
                let worker = |_| Floor::worker(&self.floor, &clock);
                return Ok(((0..clients).map(worker).collect(), None));
            }
            Contest::BareCommit | Contest::BareDelayed => (self.bare_door("/commit"), new),
            Contest::BareSelect => {
                (self.bare_door("/select"), Questions::Again(self.bare_stored.clone()))
            }
            Contest::New | Contest::NewDelayed => (committed, new),
            Contest::Talk => (committed, Questions::Talk { clock, length: TALK }),
            Contest::Replay => {
                (self.stage.door(&self.service, 200, true), Questions::Again(self.stored.clone()))
            }
            Contest::InProgress => (
                self.stage.door(&self.service, 409, false),
                Questions::Again(self.in_progress.clone()),
            ),
            Contest::Takeover => (committed, self.lost_runs().await?),
            Contest::ClaimFewPartitions
            | Contest::ClaimFewRows
            | Contest::ClaimManyRows
            | Contest::ClaimFewNoImages
            | Contest::ClaimManyNoImages => {
                return Err(BenchError::failed("claims alone are measured elsewhere"));
            }
        };
        let bare =
            matches!(contest, Contest::BareCommit | Contest::BareDelayed | Contest::BareSelect);
        let contestant = if bare { &self.bare } else { &self.service };
        Ok((over_http(door, &questions, clients).await?, Some(contestant)))
    }

    fn bare_door(&self, path: &'static str) -> Door {
        Door {
            address: self.bare.address,
            path,
            authorization: None,
            prefer: None,
            status: 200,
            replayed: false,
        }
    }

    /// How long the last so many calls to a provider took, in the middle, in milliseconds.
    async fn last_calls(&self, count: usize) -> Result<f64, BenchError> {
        let mut session = database::session(self.stage.service_url()).await?;
        database::median_of_last_calls(&mut session, count).await
    }

    async fn lost_runs(&self) -> Result<Questions, BenchError> {
        let count = (LOST_PER_SECOND * self.settings.length.as_secs_f64()).ceil() as usize;
        let questions: Vec<_> =
            (0..count).map(|_| Question::new(&self.stage.clock, "default")).collect();
        let mut session = database::session(self.stage.service_url()).await?;
        seed::lost_runs(&mut session, &questions).await?;
        Ok(Questions::Once(Arc::new(questions), Arc::new(AtomicUsize::new(0))))
    }
}

/// Ends with the questions.
const LONG: std::time::Duration = std::time::Duration::from_secs(600);

async fn over_http(
    door: Door,
    questions: &Questions,
    clients: usize,
) -> Result<Vec<Box<dyn Worker>>, BenchError> {
    let door = Arc::new(door);
    let mut workers = Vec::new();
    for place in 0..clients {
        workers.push(Client::open(&door, questions, place).await?);
    }
    Ok(workers)
}
