//! Streams: a provider that speaks at an even pace, the service or a bare handler that hands it on, and
//! readers in this process, which has the provider too. So both ends of a delta's way are on one clock.
//!
//! The bare handler forwards the bytes as they come. The service reads the vendor's events, keeps the
//! text, formats its own, and commits at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::child::Contestant;
use super::client::Connection;
use super::held::Held;
use super::paced::{FAST, FAST_PER_SECOND, ONCE, Paced, STEADY, STEADY_PER_SECOND, Stamps};
use super::report::Report;
use super::stage::{Stage, Taken};
use super::streams_report::{Carrier, FanOut, FirstDelta, StreamSample, Streams};
use super::workload::Question;
use super::{BenchError, Settings, machine};

/// Smaller numbers of streams that are measured as well.
const FEWER: [usize; 2] = [100, 300];
/// Readers of one stream.
const FAN_OUT: [usize; 2] = [1, 100];
/// First deltas for each round.
const FIRST_DELTAS: usize = 20;
/// Streams that are opened at once.
const AT_ONCE: usize = 64;
/// What passes between the last stream's beginning and the first measurement.
const SETTLE: Duration = Duration::from_millis(300);
/// A load is measured for at least so long: there must be deltas in it.
const SHORTEST: Duration = Duration::from_millis(250);
/// Until when all streams must have begun.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// Descriptors that this process needs beside two for each stream.
const OTHER_DESCRIPTORS: usize = 200;

/// What stands ready.
struct Ready<'a> {
    stage: &'a Stage,
    paced: Paced,
    bare: Contestant,
    service: Contestant,
    /// Resident memory of both before any stream, in the order of the two.
    idle: [Option<u64>; 2],
    /// How long a load is measured for.
    length: Duration,
}

/// Measures streams.
pub async fn measure(
    stage: &Stage,
    settings: &Settings,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    let most = machine::descriptors()
        .map_or(usize::MAX, |most| most.saturating_sub(OTHER_DESCRIPTORS) / 2);
    let streams = settings.streams.min(most);
    if streams < settings.streams {
        report.notes.push(format!(
            "{streams} streams instead of {}: each takes two files of this process (ulimit -n)",
            settings.streams
        ));
    }
    let sizes: Vec<usize> =
        FEWER.into_iter().filter(|fewer| *fewer < streams).chain([streams]).collect();
    tell(&format!("streams: {sizes:?} at once, and one with {} readers", FAN_OUT[1]));
    let held = Held::start().await?;
    let mut ready = Ready::make(stage, settings, &held).await?;
    let mut measured = Streams::default();
    ready.first_deltas(settings, &mut measured).await?;
    ready.idle = [&ready.bare, &ready.service].map(|carrier| machine::resident(carrier.pid));
    for round in 1..=settings.repetitions {
        tell(&format!("streams, round {round} of {}", settings.repetitions));
        for streams in &sizes {
            for carrier in [Carrier::Bare, Carrier::Service] {
                measured.steady.push(ready.steady(carrier, *streams).await?);
            }
        }
        for readers in FAN_OUT {
            measured.fan_out.push(ready.fan_out(readers.min(streams)).await?);
        }
    }
    measured.conclude();
    report.streams = Some(measured);
    ready.service.stop().await?;
    ready.bare.stop().await
}

impl<'a> Ready<'a> {
    async fn make(stage: &'a Stage, settings: &Settings, held: &Held) -> Result<Self, BenchError> {
        let paced = Paced::start(&stage.clock).await?;
        let routes =
            format!("[{{ name = \"bench\", base_url = \"http://{}/v1\" }}]", paced.address);
        let mut variables = vec![
            ("ONCEKEY_PROVIDERS__PACED__KIND".to_owned(), "openai"),
            ("ONCEKEY_PROVIDERS__PACED__API_KEY_ENV".to_owned(), ""),
            ("ONCEKEY_PROVIDERS__PACED__ROUTES".to_owned(), &routes),
            // Slots are no part of what is measured here.
            ("ONCEKEY_PROVIDERS__PACED__MAX_CONCURRENCY".to_owned(), "100000"),
        ];
        for model in [STEADY, FAST, ONCE] {
            let name = format!("ONCEKEY_MODELS__{}__", model.to_uppercase());
            variables.push((format!("{name}PROVIDER"), "paced"));
            variables.push((format!("{name}UPSTREAM"), model));
        }
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let service = stage.start_service(held, &variables).await?;
        let bare = stage.start_bare().await?;
        let length = (settings.length * 2).max(SHORTEST);
        Ok(Self { stage, paced, bare, service, idle: [None; 2], length })
    }

    fn of(&self, carrier: Carrier) -> (&Contestant, Option<u64>) {
        match carrier {
            Carrier::Bare => (&self.bare, self.idle[0]),
            Carrier::Service => (&self.service, self.idle[1]),
        }
    }

    /// A chat that asks for a stream; of the bare handler, the provider's own.
    fn ask(
        &self,
        carrier: Carrier,
        question: &Question,
    ) -> Result<Request<Full<Bytes>>, BenchError> {
        let request = match carrier {
            Carrier::Service => Request::post("/v1/chat")
                .header("accept", "text/event-stream")
                .header("authorization", self.stage.authorization())
                .header("idempotency-key", question.key.to_string()),
            Carrier::Bare => Request::post("/forward").header(
                "x-bench-provider",
                format!("http://{}/v1/chat/completions", self.paced.address),
            ),
        };
        let request =
            request.header("host", "localhost").header("content-type", "application/json");
        Ok(request.body(Full::new(question.body.clone()))?)
    }

    fn join(&self, question: &Question) -> Result<Request<Full<Bytes>>, BenchError> {
        let request = Request::get(format!("/v1/requests/{}/events", question.key))
            .header("host", "localhost")
            .header("authorization", self.stage.authorization());
        Ok(request.body(Full::default())?)
    }

    /// From the provider's first piece to its reader, one stream after the other.
    async fn first_deltas(
        &self,
        settings: &Settings,
        measured: &mut Streams,
    ) -> Result<(), BenchError> {
        let mut added = [Vec::new(), Vec::new()];
        for _ in 0..FIRST_DELTAS * settings.repetitions {
            for (carrier, added) in [Carrier::Bare, Carrier::Service].into_iter().zip(&mut added) {
                let request = self.ask(carrier, &Question::new(&self.stage.clock, ONCE))?;
                let mut connection = Connection::open(self.of(carrier).0.address).await?;
                let (times, mut stamps, mut first) = (&self.paced.times, Stamps::default(), None);
                connection
                    .follow(request, |bytes| {
                        let now = times.now();
                        stamps.read(bytes, |sent| {
                            first.get_or_insert(now.saturating_sub(sent));
                        });
                    })
                    .await?;
                let none = || BenchError::failed("a stream ended without its only delta");
                added.push(first.ok_or_else(none)?);
            }
        }
        for (carrier, mut added) in [Carrier::Bare, Carrier::Service].into_iter().zip(added) {
            added.sort_unstable();
            measured.first_delta.push(FirstDelta {
                carrier,
                streams: added.len(),
                p50_ms: quantile(&added, 0.5),
                p99_ms: quantile(&added, 0.99),
            });
        }
        Ok(())
    }

    /// So many streams at once, each of a conversation and a connection of its own.
    async fn steady(&self, carrier: Carrier, streams: usize) -> Result<StreamSample, BenchError> {
        let (contestant, idle) = self.of(carrier);
        let mut audience = Audience::new(&self.paced);
        self.paced.speak();
        for _ in 0..streams {
            let question = Question::new(&self.stage.clock, STEADY);
            audience.seat(contestant, self.ask(carrier, &question)?);
        }
        let heard = self.listen(audience, contestant).await?;
        let asked = f64::from(STEADY_PER_SECOND) * streams as f64;
        Ok(StreamSample {
            carrier,
            streams,
            delivered_per_second: heard.per_second(),
            asked_per_second: asked,
            added_p50_ms: quantile(&heard.added, 0.5),
            added_p99_ms: quantile(&heard.added, 0.99),
            cpu_us: heard.cpu_us(),
            bytes_each: grown(idle, heard.resident, streams),
            foreign_cpus: heard.taken.foreign_cpus,
        })
    }

    /// One stream, and so many who read it.
    async fn fan_out(&self, readers: usize) -> Result<FanOut, BenchError> {
        let before = machine::resident(self.service.pid);
        let mut audience = Audience::new(&self.paced);
        self.paced.speak();
        let question = Question::new(&self.stage.clock, FAST);
        audience.seat(&self.service, self.ask(Carrier::Service, &question)?);
        // There must be something to join.
        audience.begun(1, &self.stage.clock).await?;
        for _ in 1..readers {
            audience.seat(&self.service, self.join(&question)?);
        }
        let heard = self.listen(audience, &self.service).await?;
        Ok(FanOut {
            readers,
            delivered_per_second: heard.per_second(),
            asked_per_second: f64::from(FAST_PER_SECOND) * readers as f64,
            added_p99_ms: quantile(&heard.added, 0.99),
            cpu_us: heard.cpu_us(),
            bytes_each: grown(before, heard.resident, readers),
            foreign_cpus: heard.taken.foreign_cpus,
        })
    }

    /// Waits until everybody hears something, counts for a while, and lets all streams end.
    async fn listen(
        &self,
        mut audience: Audience,
        contestant: &Contestant,
    ) -> Result<Heard, BenchError> {
        audience.begun(audience.listeners.len(), &self.stage.clock).await?;
        self.stage.clock.sleep(SETTLE).await;
        audience.counting.store(true, Ordering::Relaxed);
        let taken = self.stage.during(contestant, self.length).await?;
        audience.counting.store(false, Ordering::Relaxed);
        let resident = machine::resident(contestant.pid);
        self.paced.end();
        let mut added = Vec::new();
        while let Some(ended) = audience.listeners.join_next().await {
            added.append(&mut of_task(ended)?);
        }
        added.sort_unstable();
        Ok(Heard { added, taken, resident })
    }
}

/// Readers, each in a task.
struct Audience {
    paced: super::paced::Times,
    /// In microseconds, of every delta that was heard while it counted.
    listeners: JoinSet<Result<Vec<u64>, BenchError>>,
    turns: Arc<Semaphore>,
    /// How many have heard something.
    begun: Arc<watch::Sender<usize>>,
    counting: Arc<AtomicBool>,
}

/// What an audience came to.
struct Heard {
    /// Shortest first.
    added: Vec<u64>,
    taken: Taken,
    resident: Option<u64>,
}

impl Audience {
    fn new(paced: &Paced) -> Self {
        Self {
            paced: paced.times.clone(),
            listeners: JoinSet::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            begun: Arc::default(),
            counting: Arc::default(),
        }
    }

    /// One more reader, on a connection of its own.
    fn seat(&mut self, contestant: &Contestant, request: Request<Full<Bytes>>) {
        let (times, turns, address) = (self.paced.clone(), self.turns.clone(), contestant.address);
        let (begun, counting) = (self.begun.clone(), self.counting.clone());
        self.listeners.spawn(async move {
            let mut turn = turns.acquire_owned().await.ok();
            let mut connection = Connection::open(address).await?;
            let (mut stamps, mut added, mut silent) = (Stamps::default(), Vec::new(), true);
            let hear = |bytes: &[u8]| {
                let now = times.now();
                let counts = counting.load(Ordering::Relaxed);
                stamps.read(bytes, |sent| {
                    if std::mem::take(&mut silent) {
                        drop(turn.take());
                        begun.send_modify(|begun| *begun += 1);
                    }
                    if counts {
                        added.push(now.saturating_sub(sent));
                    }
                });
            };
            connection.follow(request, hear).await?;
            Ok(added)
        });
    }

    /// Ready once so many have heard something.
    async fn begun(&mut self, count: usize, clock: &crate::clock::Clock) -> Result<(), BenchError> {
        let mut begun = self.begun.subscribe();
        let all = clock.timeout(BEGIN_LIMIT, begun.wait_for(|begun| *begun >= count));
        tokio::select! {
            all = all => match all {
                Ok(_) => Ok(()),
                Err(_) => Err(BenchError::failed("not all streams began within a minute")),
            },
            Some(ended) = self.listeners.join_next() => {
                of_task(ended)?;
                Err(BenchError::failed("a stream ended before it was told to"))
            }
        }
    }
}

fn of_task(
    ended: Result<Result<Vec<u64>, BenchError>, tokio::task::JoinError>,
) -> Result<Vec<u64>, BenchError> {
    ended.map_err(|error| BenchError::failed(error.to_string()))?
}

impl Heard {
    fn per_second(&self) -> f64 {
        self.added.len() as f64 / self.taken.elapsed.as_secs_f64()
    }

    fn cpu_us(&self) -> Option<f64> {
        let each = self.taken.contestant?.as_secs_f64() * 1e6 / self.added.len() as f64;
        Some(each).filter(|each| each.is_finite())
    }
}

/// In milliseconds, of times in microseconds, shortest first; 0 where there are none.
fn quantile(sorted: &[u64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).ceil() as usize;
    let found = sorted.get(place.clamp(1, sorted.len().max(1)) - 1);
    found.map_or(0.0, |micros| *micros as f64 / 1e3)
}

fn grown(before: Option<u64>, after: Option<u64>, count: usize) -> Option<f64> {
    Some(after?.saturating_sub(before?) as f64 / count.max(1) as f64)
}
