//! The measuring instrument: how much the service costs beside the least that the same machine, the
//! same database and the same libraries could do it with, all in one run.
//!
//! Numbers of different runs, machines or hours do not compare; ratios of one run do. So the floor
//! (single-row commits), bare handlers written as short as they can be (`reference`), and the service
//! take turns, round by round, and each ratio is taken within a round. Nothing here is part of the
//! product, and its SQL is none of the product's: it stands on a database of its own.
//!
//! The service and the bare handlers run as processes of their own, so that what they use is told
//! apart from the load that is put on them.

mod child;
mod client;
mod database;
mod days;
mod days_report;
mod direct;
mod events;
mod events_report;
mod figures;
mod held;
mod load;
mod machine;
mod paced;
mod parses;
mod parses_report;
mod reference;
mod report;
mod samples;
mod scenarios;
mod scribe;
mod seed;
mod spread;
mod stage;
mod streams;
mod streams_report;
mod waits;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

pub use database::Target;
pub use reference::serve as serve_reference;
pub use report::Report;

use crate::clock::Clock;
use crate::store::StoreError;

/// Operations at once, in every scenario that takes several.
const CONCURRENCIES: [usize; 3] = [1, 16, 64];
/// Connections to the database of each contestant: the service's own default.
const POOL: u32 = 16;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    All,
    Streams,
    Parses,
    Events,
    /// Not part of all: it takes its minutes.
    Days,
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of load, per scenario, number of clients and repetition.
    pub length: Duration,
    pub repetitions: usize,
    /// Records that the larger table of the claim comparison holds.
    pub rows: u64,
    /// Records of the day that is dropped.
    pub day_rows: u64,
    /// Clients that wait for one run.
    pub waiters: usize,
    /// Streams at once.
    pub streams: usize,
    pub part: Part,
    /// The binary that serves.
    pub program: PathBuf,
    /// For the logs of the processes that are started; it exists.
    pub folder: PathBuf,
}

/// Why there is no report; one line each.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("the store: {0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("a request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("a request could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }
}

/// Measures everything. `tell` hears what is being done, a line each.
pub async fn run(
    settings: &Settings,
    target: &Target,
    clock: &Clock,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Report, BenchError> {
    let stage = stage::Stage::set(settings, target, clock, tell).await?;
    let measured = measure(&stage, settings, clock, tell).await;
    stage.clear().await?;
    measured
}

async fn measure(
    stage: &stage::Stage,
    settings: &Settings,
    clock: &Clock,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Report, BenchError> {
    let mut report = Report::new(settings, stage.server.version.clone());
    if settings.part == Part::All {
        direct::compare_claims(stage, settings, &mut report, tell).await?;
        scenarios::rounds(stage, settings, &mut report, tell).await?;
        waits::measure(stage, settings, clock, &mut report, tell).await?;
    }
    if matches!(settings.part, Part::All | Part::Streams) {
        streams::measure(stage, settings, &mut report, tell).await?;
    }
    if matches!(settings.part, Part::All | Part::Parses) {
        parses::measure(stage, settings, &mut report, tell).await?;
    }
    if matches!(settings.part, Part::All | Part::Events) {
        events::measure(stage, settings, &mut report, tell).await?;
    }
    if settings.part == Part::Days {
        days::measure(stage, settings, &mut report, tell).await?;
    }
    report.conclude();
    Ok(report)
}
