//! What everything is measured on, and how one load is measured.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::child::{Contestant, Start};
use super::database::{Server, Target};
use super::held::Held;
use super::load::{self, Worker};
use super::samples::Sample;
use super::workload::{DELAY, Door, TENANT};
use super::{BenchError, Settings, database, machine};
use crate::clock::Clock;
use crate::domain::api_key::{ApiKey, ApiRole};
use crate::domain::ids::{ApiKeyId, TenantId};
use crate::store::NewApiKey;

/// The server, the databases on it, and the key of the tenant that asks.
pub struct Stage {
    pub server: Server,
    pub clock: Clock,
    /// The service's database.
    service_url: String,
    /// That of the floor and of the bare handlers.
    pub bare_url: String,
    api_key: ApiKey,
    settings: Settings,
    /// Every process that was started.
    pids: Mutex<Vec<i32>>,
}

/// What was taken while time passed.
pub struct Taken {
    pub elapsed: Duration,
    /// CPU of the contestant.
    pub contestant: Option<Duration>,
    /// CPU of the database server with all its processes.
    pub postgres: Option<Duration>,
    /// How far the write-ahead log moved.
    pub wal_bytes: i64,
    /// CPUs that were busy with neither of us.
    pub foreign_cpus: Option<f64>,
}

/// What the counters said at one moment.
struct Counters {
    contestant: Option<Duration>,
    postgres: Option<Duration>,
    ours: Option<Duration>,
    busy: Option<Duration>,
    wal_bytes: i64,
}

impl Stage {
    pub async fn set(
        settings: &Settings,
        target: &Target,
        clock: &Clock,
        tell: &(dyn Fn(&str) + Sync),
    ) -> Result<Self, BenchError> {
        tell("making databases");
        let server = Server::connect(target).await?;
        let service_url = server.make("service").await?;
        let bare_url = server.make("bare").await?;
        let api_key = ApiKey::from_secret(clock.secret());
        let store = database::store(&service_url, clock, 1)?;
        store.migrate().await?;
        store
            .insert_api_key(NewApiKey {
                tenant: TenantId::new(TENANT),
                id: ApiKeyId(clock.new_id()),
                hash: api_key.hash(),
                role: ApiRole::Client.as_str().to_owned(),
                subject: None,
            })
            .await?;
        store.close().await;
        Ok(Self {
            server,
            clock: clock.clone(),
            service_url,
            bare_url,
            api_key,
            settings: settings.clone(),
            pids: Mutex::default(),
        })
    }

    pub async fn clear(&self) -> Result<(), BenchError> {
        self.server.clear().await
    }

    pub fn service_url(&self) -> &str {
        &self.service_url
    }

    /// Starts the service as it comes, with three models: one that answers at once, one whose first
    /// byte takes 20 ms, and one that waits to be let go.
    pub async fn start_service(
        &self,
        held: &Held,
        settings: &[(&str, &str)],
    ) -> Result<Contestant, BenchError> {
        let routes = format!("[{{ name = \"bench\", base_url = \"http://{}/v1\" }}]", held.address);
        let delay = format!("{}ms", DELAY.as_millis());
        let variables = [
            ("DATABASE_URL", self.service_url.as_str()),
            ("ONCEKEY_LISTEN", "127.0.0.1:0"),
            ("ONCEKEY_PROVIDERS__PROMPT__KIND", "simulated"),
            ("ONCEKEY_PROVIDERS__PROMPT__TOKENS_PER_SECOND", NO_PACE),
            ("ONCEKEY_PROVIDERS__DELAYED__KIND", "simulated"),
            ("ONCEKEY_PROVIDERS__DELAYED__FIRST_BYTE_DELAY", &delay),
            ("ONCEKEY_PROVIDERS__DELAYED__TOKENS_PER_SECOND", NO_PACE),
            ("ONCEKEY_PROVIDERS__HELD__KIND", "openai"),
            ("ONCEKEY_PROVIDERS__HELD__API_KEY_ENV", ""),
            ("ONCEKEY_PROVIDERS__HELD__ROUTES", &routes),
            ("ONCEKEY_PROVIDERS__HELD__FIRST_BYTE_TIMEOUT", "1h"),
            ("ONCEKEY_PROVIDERS__HELD__CALL_TIMEOUT", "2h"),
            ("ONCEKEY_MODELS__DEFAULT__PROVIDER", "prompt"),
            ("ONCEKEY_MODELS__DELAYED__PROVIDER", "delayed"),
            ("ONCEKEY_MODELS__HELD__PROVIDER", "held"),
            ("ONCEKEY_MODELS__HELD__UPSTREAM", "held"),
        ];
        let variables = variables.iter().chain(settings);
        let start = Start {
            name: "service",
            arguments: &["serve"],
            variables: variables.map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        };
        self.started(Contestant::start(&self.settings, &self.clock, start).await?)
    }

    /// Starts the bare handlers.
    pub async fn start_bare(&self) -> Result<Contestant, BenchError> {
        let start = Start {
            name: "bare",
            arguments: &["bench", "--reference"],
            variables: vec![("DATABASE_URL".to_owned(), self.bare_url.clone())],
        };
        self.started(Contestant::start(&self.settings, &self.clock, start).await?)
    }

    fn started(&self, contestant: Contestant) -> Result<Contestant, BenchError> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(contestant.pid);
        Ok(contestant)
    }

    /// The service's door for chats, and what they must be answered with.
    pub fn door(&self, service: &Contestant, status: u16, replayed: bool) -> Door {
        Door {
            address: service.address,
            path: "/v1/chat",
            authorization: Some(self.authorization()),
            prefer: None,
            status,
            replayed,
        }
    }

    /// One load: what it did, and what it took of whom.
    pub async fn measure(
        &self,
        contestant: Option<&Contestant>,
        workers: Vec<Box<dyn Worker>>,
        length: Duration,
    ) -> Result<Sample, BenchError> {
        let before = self.counters(contestant).await?;
        let load = load::run(&self.clock, workers, length).await?;
        let after = self.counters(contestant).await?;
        let operations = load.operations() as f64;
        let images = self.server.page_image_bytes(before.wal_bytes, after.wal_bytes).await;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / operations;
        Ok(Sample {
            operations: load.operations(),
            seconds: load.elapsed.as_secs_f64(),
            per_second: load.per_second(),
            p50_ms: load.quantile(0.5).as_secs_f64() * 1e3,
            p99_ms: load.quantile(0.99).as_secs_f64() * 1e3,
            server_cpu_us: spent(before.contestant, after.contestant).map(micros),
            postgres_cpu_us: spent(before.postgres, after.postgres).map(micros),
            wal_bytes: (after.wal_bytes - before.wal_bytes) as f64 / operations,
            page_image_bytes: images.map(|bytes| bytes as f64 / operations),
            foreign_cpus: foreign(&before, &after, load.elapsed),
            call_p50_ms: None,
            resident: contestant.and_then(|contestant| machine::memory(contestant.pid)),
        })
    }

    /// What the database and strangers take while something is done.
    pub async fn while_doing<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<(T, Taken), BenchError> {
        let before = self.counters(None).await?;
        let begun = self.clock.now();
        let outcome = work.await;
        let elapsed = self.clock.now().since(begun);
        let after = self.counters(None).await?;
        Ok((outcome, taken(&before, &after, elapsed)))
    }

    /// What a contestant and strangers take while time passes.
    pub async fn during(
        &self,
        contestant: &Contestant,
        length: Duration,
    ) -> Result<Taken, BenchError> {
        let before = self.counters(Some(contestant)).await?;
        let begun = self.clock.now();
        self.clock.sleep(length).await;
        let elapsed = self.clock.now().since(begun);
        let after = self.counters(Some(contestant)).await?;
        Ok(taken(&before, &after, elapsed))
    }

    /// What the service's tenant shows.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.api_key.reveal())
    }

    async fn counters(&self, contestant: Option<&Contestant>) -> Result<Counters, BenchError> {
        let wal_bytes = self.server.wal_bytes().await?;
        let postgres = self.server.postmaster.and_then(machine::cpu_of_family);
        let own = i32::try_from(std::process::id()).ok().and_then(machine::cpu_of);
        let started: Duration = {
            let pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
            // One that was stopped takes nothing any more.
            pids.iter().filter_map(|pid| machine::cpu_of(*pid)).sum()
        };
        Ok(Counters {
            contestant: contestant.and_then(|contestant| machine::cpu_of(contestant.pid)),
            postgres,
            ours: own.map(|own| own + started + postgres.unwrap_or_default()),
            busy: machine::busy(),
            wal_bytes,
        })
    }
}

/// So many tokens a second that none waits for the one before it.
const NO_PACE: &str = "4000000000";

fn taken(before: &Counters, after: &Counters, elapsed: Duration) -> Taken {
    Taken {
        elapsed,
        contestant: spent(before.contestant, after.contestant),
        postgres: spent(before.postgres, after.postgres),
        wal_bytes: after.wal_bytes - before.wal_bytes,
        foreign_cpus: foreign(before, after, elapsed),
    }
}

fn foreign(before: &Counters, after: &Counters, elapsed: Duration) -> Option<f64> {
    let ours = after.ours?.checked_sub(before.ours?)?;
    let busy = after.busy?.checked_sub(before.busy?)?;
    // Counted by different clocks of the kernel: the difference can be less than nothing.
    Some(busy.saturating_sub(ours).as_secs_f64() / elapsed.as_secs_f64())
}

fn spent(before: Option<Duration>, after: Option<Duration>) -> Option<Duration> {
    after?.checked_sub(before?)
}
