//! The composition root: the only file that names every concrete type. It builds a node from its
//! configuration and takes it down again, in order.

mod events;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::background::{EventSweep, Keeper, RetentionRules, Sweep};
use crate::captures::{Captures, CapturesError};
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::documents::{Documents, ReadLimits};
use crate::domain::liveness::LivenessRules;
use crate::domain::retry::RetryRules;
use crate::domain::secret::Secret;
use crate::domain::usage::PriceId;
use crate::faults::Faults;
use crate::http::{Http, RenderMetrics, ServerSettings, router, serve};
use crate::lifecycle::Lifecycle;
use crate::operation::{
    Asked, BeatingRuns, MissingKey, Model, Models, Node, OperationSettings, Operations, Parsing,
    Parts, Refused, Rejections, Slots, Stall,
};
use crate::peers::Peers;
use crate::provider::{self, Provider, ProviderKind, ProviderSettings, Route};
use crate::store::{PricedModel, Store, StoreError, StoreSettings};

/// Beats and looks are not exact; silence and trust are judged with this much to spare.
const MARGIN: Duration = Duration::from_secs(2);
/// What statements in progress get once all work has ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// What cut runs get to write their end.
const CUT_LIMIT: Duration = Duration::from_secs(10);

/// Why a node did not start; one line each.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot listen on {address}: {error}; choose another with --listen")]
    Listen { address: SocketAddr, error: std::io::Error },
    #[error("{0}")]
    Provider(String),
    #[error("outbox.sinks: {name}: {problem}")]
    Sink { name: String, problem: String },
    #[error("no client for other nodes: {0}")]
    Peers(String),
    #[error(transparent)]
    Captures(#[from] CapturesError),
    #[error(transparent)]
    Config(#[from] config::ConfigError),
}

/// What a node is built from.
pub struct Setup {
    pub config: Config,
    /// Where the database is, the private one included.
    pub database_url: String,
    pub clock: Clock,
    pub faults: Faults,
    /// Added to the database's clock where a day or a retention is computed; zero but in tests.
    pub clock_offset: Duration,
    /// Whether this process has just started the database itself, so that no other node can live.
    pub alone: bool,
    pub render_metrics: RenderMetrics,
    /// The binary that reads uploads in processes of their own.
    pub program: PathBuf,
}

/// A running node.
pub struct App {
    address: SocketAddr,
    store: Store,
    clock: Clock,
    lifecycle: Lifecycle,
    drain: Duration,
}

/// The store of a configuration.
pub fn store(
    config: &Config,
    database_url: &str,
    clock: &Clock,
    clock_offset: Duration,
) -> Result<Store, StoreError> {
    let idempotency = &config.idempotency;
    let margin = MARGIN.min(idempotency.heartbeat);
    let direct_url = config.database.url_direct.as_ref().map(|url| url.expose().to_owned());
    let settings = StoreSettings {
        url: database_url.to_owned(),
        direct_url,
        coalesce: config.database.coalesce,
        pool_size: config.database.pool,
        liveness: LivenessRules {
            stale_after: idempotency.stale_after,
            grace: idempotency.heartbeat + margin,
        },
        clock_offset,
    };
    Store::new(settings, clock.clone())
}

impl App {
    /// Migrates, registers, and serves. Ready for requests when it returns.
    pub async fn start(setup: Setup) -> Result<Self, AppError> {
        let Setup { config, clock, faults, .. } = setup;
        let store = store(&config, &setup.database_url, &clock, setup.clock_offset)?
            .with_faults(faults.clone());
        store.migrate().await?;
        if setup.alone {
            store.declare_alone().await?;
        }
        if let Err(error) = store.ensure_partitions().await {
            // Without today nothing could be claimed; what is wrong with another day can wait.
            if !store.runway().await?.today {
                return Err(error.into());
            }
            tracing::error!(event = "partitions_failed", %error, "a day ahead has no partition");
        }
        let prices = store.book_prices(priced(&config)).await?;
        let models = models(&config, &prices, &clock, &faults)?;
        let parsing = parsing(&config, setup.program, &clock)?;
        let sinks = events::sinks(&config.outbox, &clock)?;
        let captures = parsing.captures.clone();
        // Bound before anything is announced: the address that other nodes reach may hold its port.
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|error| AppError::Listen { address: config.listen, error })?;
        let address = listener
            .local_addr()
            .map_err(|error| AppError::Listen { address: config.listen, error })?;

        let lifecycle = Lifecycle::new();
        let idempotency = &config.idempotency;
        let margin = MARGIN.min(idempotency.stale_after / 4);
        let runs = BeatingRuns::new(clock.clone(), idempotency.stale_after - margin);
        let node = Node {
            store: store.clone(),
            clock: clock.clone(),
            lifecycle: lifecycle.clone(),
            runs: runs.clone(),
            advertised: config.advertise.clone().unwrap_or_else(|| format!("http://{address}")),
            heartbeat: idempotency.heartbeat,
            stall: Stall::new(faults.clone()),
        };
        node.start().await?;
        let secret = store.cluster_secret(clock.secret()).await?;
        let operations = Operations::new(Parts {
            store: store.clone(),
            clock: clock.clone(),
            lifecycle: lifecycle.clone(),
            faults: faults.clone(),
            settings: operation_settings(&config),
            models,
            runs,
            parsing,
            peers: Peers::new(secret, clock.clone()).map_err(AppError::Peers)?,
        });
        Sweep { store: store.clone(), clock: clock.clone(), lifecycle: lifecycle.clone() }.start();
        let keeper = Keeper {
            store: store.clone(),
            clock: clock.clone(),
            lifecycle: lifecycle.clone(),
            retention: idempotency.retention,
            derive_window: idempotency.derive_window,
            rules: RetentionRules {
                turns: config.retention.turns,
                captures: config.retention.captures,
                provider_calls: config.retention.provider_calls,
            },
            captures,
        };
        keeper.start();
        if let Some(kept) = config.retention.published_events {
            let (store, clock, lifecycle) = (store.clone(), clock.clone(), lifecycle.clone());
            EventSweep { store, clock, lifecycle, kept }.start();
        }
        events::relay(&config.outbox, sinks, &store, &clock, &lifecycle, faults).start();
        let http = Http {
            operations,
            clock: clock.clone(),
            render_metrics: setup.render_metrics,
            max_body: usize::try_from(config.limits.max_body).unwrap_or(usize::MAX),
            max_wait: config.limits.max_wait,
        };
        lifecycle.spawn(serve(
            listener,
            router(http),
            lifecycle.clone(),
            clock.clone(),
            ServerSettings::default(),
        ));
        Ok(Self { address, store, clock, lifecycle, drain: config.limits.drain })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The node's store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The node's lifecycle, for who wants to drain or cut it by hand.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Drains, cuts what is left after `drain` or when `hurry` is ready, and ends. `true`: nothing
    /// had to be cut.
    pub async fn shut_down(self, hurry: impl Future<Output = ()>) -> bool {
        self.lifecycle.drain();
        tracing::info!(event = "draining", runs = self.lifecycle.runs(), "shutting down");
        let drained = tokio::select! {
            () = self.lifecycle.runs_ended() => true,
            () = self.clock.sleep(self.drain) => false,
            () = hurry => false,
        };
        if !drained {
            self.lifecycle.cut_runs();
            if self.clock.timeout(CUT_LIMIT, self.lifecycle.runs_ended()).await.is_err() {
                tracing::error!(
                    event = "runs_left",
                    "runs did not end in time; the next arrivals take them over"
                );
            }
        }
        self.lifecycle.end().await;
        // What is still on its way to a silent database is nobody's any more.
        let _ = self.clock.timeout(CLOSE_LIMIT, self.store.close()).await;
        drained
    }
}

fn operation_settings(config: &Config) -> OperationSettings {
    let retry = &config.retry;
    OperationSettings {
        missing_key: match config.idempotency.missing_key {
            config::MissingKey::Derive => {
                MissingKey::Derive { window: config.idempotency.derive_window }
            }
            config::MissingKey::Require => MissingKey::Require,
            config::MissingKey::Pass => MissingKey::Pass,
        },
        retry: RetryRules {
            max_attempts: retry.max_attempts,
            max_corrections: u32::MAX,
            total_wait: retry.total_wait,
            give_up_after: retry.give_up_after,
            max_runs: retry.max_runs,
        },
        max_history_turns: config.chat.max_history_turns,
        max_readers: usize::try_from(config.limits.max_readers).unwrap_or(usize::MAX),
    }
}

/// What parses stand on. Uploads are read by about as many at once as there are processors, since a reader
/// does nothing but compute; and by no more than four, each of which may take its memory.
fn parsing(config: &Config, program: PathBuf, clock: &Clock) -> Result<Parsing, AppError> {
    let readers = std::thread::available_parallelism().map_or(1, NonZero::get).clamp(2, 4);
    Ok(Parsing {
        profiles: config.profiles.clone(),
        documents: Documents::new(program, clock.clone(), ReadLimits::default(), readers),
        captures: Captures::open(&config.captures.location)?,
        chunk_chars: config.parse.chunk_chars as usize,
        parallel: config.parse.parallel as usize,
    })
}

/// A model and its ladder, as what an input is refused by.
fn identity(config: &Config, model: &config::Model) -> String {
    let tiers = model.tiers.iter().filter_map(|tier| config.models.get(tier));
    Model::identity(&asked(model), &tiers.map(asked).collect::<Vec<_>>())
}

fn asked(model: &config::Model) -> Asked<'_> {
    Asked {
        provider: &model.provider,
        upstream: &model.upstream,
        system: &model.system,
        max_output_tokens: model.max_output_tokens,
        temperature: model.temperature,
    }
}

/// The models as the book of prices has them.
fn priced(config: &Config) -> Vec<PricedModel> {
    let priced = |(name, model): (&String, &config::Model)| PricedModel {
        name: name.clone(),
        provider: model.provider.clone(),
        upstream: model.upstream.clone(),
        prices: model.prices,
    };
    config.models.iter().map(priced).collect()
}

/// All models, those of one provider sharing its client and its slots.
fn models(
    config: &Config,
    prices: &BTreeMap<String, PriceId>,
    clock: &Clock,
    faults: &Faults,
) -> Result<Models, AppError> {
    let mut models = Models::new();
    for (name, settings) in &config.providers {
        let built = provider::with_faults(
            built(name, settings, clock)?,
            faults,
            clock.clone(),
            settings.first_byte_timeout,
            settings.call_timeout,
        );
        let slots = Slots::new(
            name,
            settings.max_concurrency as usize,
            settings.slot_wait,
            config.retry.total_wait,
            clock.clone(),
        );
        for (model_name, model) in &config.models {
            if model.provider != *name {
                continue;
            }
            let model = Model {
                name: model_name.clone(),
                provider: built.clone(),
                slots: slots.clone(),
                upstream: model.upstream.clone(),
                max_output_tokens: model.max_output_tokens,
                temperature: model.temperature,
                images: model.images,
                prices: model.prices,
                price: prices.get(model_name).copied(),
                system: model.system.as_str().into(),
                rules: model.rules.clone(),
                tiers: model.tiers.clone(),
                refused: Refused::default(),
                identity: identity(config, model),
                rejections: Rejections::default(),
            };
            models.insert(model_name.clone(), model);
        }
    }
    Ok(models)
}

fn built(
    name: &str,
    settings: &config::Provider,
    clock: &Clock,
) -> Result<Arc<dyn Provider>, AppError> {
    let (kind, upstream) = match &settings.kind {
        config::ProviderKind::Anthropic(upstream) => (ProviderKind::Anthropic, Some(upstream)),
        config::ProviderKind::OpenAi(upstream) => (ProviderKind::OpenAi, Some(upstream)),
        config::ProviderKind::Simulated(simulated) => {
            let kind = ProviderKind::Simulated {
                first_byte_delay: simulated.first_byte_delay,
                tokens_per_second: simulated.tokens_per_second,
            };
            (kind, None)
        }
    };
    let api_key = match upstream.and_then(|upstream| upstream.api_key.as_ref()) {
        Some(variable) => Some(Secret::new(variable.get()?.expose())),
        None => None,
    };
    let routes = upstream.map_or(&[][..], |upstream| &upstream.routes);
    let settings = ProviderSettings {
        name: name.to_owned(),
        kind,
        api_key,
        routes: routes
            .iter()
            .map(|route| Route { name: route.name.clone(), base_url: route.base_url.clone() })
            .collect(),
        first_byte_timeout: settings.first_byte_timeout,
        idle_timeout: settings.idle_timeout,
        call_timeout: settings.call_timeout,
        max_answer_bytes: provider::DEFAULT_MAX_ANSWER_BYTES,
    };
    provider::build(settings, clock.clone()).map_err(|error| AppError::Provider(error.to_string()))
}
