//! What loads are measured, and what is taken down of each.

use serde::Serialize;

use super::machine::Resident;
use super::spread::Spread;

/// Who is measured doing what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contest {
    ClaimFewPartitions,
    ClaimFewRows,
    ClaimManyRows,
    /// The two before, while the server writes no page images.
    ClaimFewNoImages,
    ClaimManyNoImages,
    Floor,
    BareCommit,
    BareDelayed,
    New,
    NewDelayed,
    Talk,
    BareSelect,
    Replay,
    InProgress,
    Takeover,
}

impl Contest {
    pub fn label(self) -> &'static str {
        match self {
            Contest::ClaimFewPartitions => "claim: few rows, 2 partitions",
            Contest::ClaimFewRows => "claim: few rows, 9 partitions",
            Contest::ClaimManyRows => "claim: many rows, 9 partitions",
            Contest::ClaimFewNoImages => "claim: few rows, no page images",
            Contest::ClaimManyNoImages => "claim: many rows, no page images",
            Contest::Floor => "floor: one row, one commit",
            Contest::BareCommit => "bare handler: claim and commit",
            Contest::BareDelayed => "bare handler: claim, 20 ms, commit",
            Contest::New => "new operation",
            Contest::NewDelayed => "new operation, provider 20 ms",
            Contest::Talk => "new operation in a conversation",
            Contest::BareSelect => "bare handler: select",
            Contest::Replay => "replay",
            Contest::InProgress => "409 in_progress",
            Contest::Takeover => "takeover",
        }
    }
}

/// One load.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    pub operations: usize,
    pub seconds: f64,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// CPU of the service, or of the bare handlers' process, per operation.
    pub server_cpu_us: Option<f64>,
    /// CPU of the database server with all its processes, per operation.
    pub postgres_cpu_us: Option<f64>,
    pub wal_bytes: f64,
    /// That part of them that is whole pages, written as each page's first change after a checkpoint.
    pub page_image_bytes: Option<f64>,
    /// CPUs that were busy with neither of us.
    pub foreign_cpus: Option<f64>,
    /// What the calls of these operations took at their provider, in the middle. Where one of 20 ms is
    /// simulated: those and what its timer was late by.
    pub call_p50_ms: Option<f64>,
    /// Of the contestant, at the end of the load.
    pub resident: Option<Resident>,
}

/// The samples of one contest with so many clients, in the order of the rounds.
#[derive(Debug, Serialize)]
pub struct Scenario {
    pub contest: Contest,
    pub clients: usize,
    pub samples: Vec<Sample>,
}

impl Scenario {
    pub fn spread(&self, value: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(value))
    }
}
