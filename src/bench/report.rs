//! What was measured, and how it reads.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::days_report::Days;
use super::events_report::Events;
use super::parses_report::Parses;
use super::spread::Spread;
use super::streams_report::Streams;
use super::{CONCURRENCIES, Settings, machine};

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
    New,
    NewDelayed,
    Talk,
    BareSelect,
    Replay,
    InProgress,
    Takeover,
}

impl Contest {
    fn label(self) -> &'static str {
        match self {
            Contest::ClaimFewPartitions => "claim: few rows, 2 partitions",
            Contest::ClaimFewRows => "claim: few rows, 9 partitions",
            Contest::ClaimManyRows => "claim: many rows, 9 partitions",
            Contest::ClaimFewNoImages => "claim: few rows, no page images",
            Contest::ClaimManyNoImages => "claim: many rows, no page images",
            Contest::Floor => "floor: one row, one commit",
            Contest::BareCommit => "bare handler: claim and commit",
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
    /// Of the contestant, at the end of the load.
    pub resident_bytes: Option<u64>,
}

/// The samples of one contest with so many clients, in the order of the rounds.
#[derive(Debug, Serialize)]
pub struct Scenario {
    pub contest: Contest,
    pub clients: usize,
    pub samples: Vec<Sample>,
}

impl Scenario {
    fn spread(&self, value: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(value))
    }
}

/// A ratio of two contests, taken round by round.
#[derive(Debug, Serialize)]
pub struct Ratio {
    pub name: String,
    pub value: Spread,
    /// What it should not exceed.
    pub at_most: Option<f64>,
    /// What it should reach.
    pub at_least: Option<f64>,
    /// Whether the median is as it should be.
    pub met: Option<bool>,
}

/// Thousands of clients at one run.
#[derive(Debug, Serialize)]
pub struct Waits {
    pub waiters: usize,
    /// Memory that the service grew by, for each.
    pub bytes_each: Option<f64>,
    /// How often the node asked the database about them, all together.
    pub polls_per_second: f64,
    /// From the end of the run to the last answer.
    pub all_answered_seconds: f64,
    /// Times that one of them was told to come again, since so many came at once.
    pub asked_again: u32,
}

/// Resident memory of the service.
#[derive(Debug, Default, Serialize)]
pub struct Memory {
    pub idle_bytes: Option<u64>,
    /// The most that was seen at the end of a load by 64 clients.
    pub at_64_bytes: Option<u64>,
}

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub postgres: String,
    pub cpus: usize,
    pub seconds: f64,
    pub repetitions: usize,
    pub rows: u64,
    pub optimised: bool,
    pub scenarios: Vec<Scenario>,
    pub memory: Memory,
    pub waits: Option<Waits>,
    pub streams: Option<Streams>,
    pub parses: Option<Parses>,
    pub events: Option<Events>,
    pub days: Option<Days>,
    pub ratios: Vec<Ratio>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// Whether a median is as it should be.
#[derive(Clone, Copy)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
    None,
}

impl Report {
    pub fn new(settings: &Settings, postgres: String) -> Self {
        let mut notes = Vec::new();
        if cfg!(debug_assertions) {
            notes.push(
                "This program was built without optimisation: the ratios mean nothing.".into(),
            );
        }
        if machine::busy().is_none() {
            notes.push("There is no /proc here: CPU time and memory are not known.".into());
        }
        Self {
            version: env!("CARGO_PKG_VERSION"),
            postgres,
            cpus: machine::cpus(),
            seconds: settings.length.as_secs_f64(),
            repetitions: settings.repetitions,
            rows: settings.rows,
            optimised: !cfg!(debug_assertions),
            scenarios: Vec::new(),
            memory: Memory::default(),
            waits: None,
            streams: None,
            parses: None,
            events: None,
            days: None,
            ratios: Vec::new(),
            notes,
        }
    }

    /// Adds one load to those of its kind.
    pub fn add(&mut self, contest: Contest, clients: usize, sample: Sample) {
        let same = |known: &&mut Scenario| (known.contest, known.clients) == (contest, clients);
        match self.scenarios.iter_mut().find(same) {
            Some(known) => known.samples.push(sample),
            None => self.scenarios.push(Scenario { contest, clients, samples: vec![sample] }),
        }
    }

    /// Derives what follows from the samples.
    pub fn conclude(&mut self) {
        let loaded = self.scenarios.iter().filter(|scenario| {
            scenario.clients == 64 && matches!(scenario.contest, Contest::New | Contest::NewDelayed)
        });
        let resident = loaded.flat_map(|scenario| &scenario.samples);
        self.memory.at_64_bytes = resident.filter_map(|sample| sample.resident_bytes).max();

        let cpu = |sample: &Sample| Some(sample.server_cpu_us? + sample.postgres_cpu_us?);
        let rate = |sample: &Sample| Some(sample.per_second);
        for clients in CONCURRENCIES {
            let name = format!("CPU of a new operation / of the bare handler, {clients} clients");
            self.ratio(&name, (Contest::New, Contest::BareCommit, clients), cpu, Aim::AtMost(1.5));
        }
        for clients in CONCURRENCIES {
            let name = format!("rate of replays / of the bare select, {clients} clients");
            self.ratio(
                &name,
                (Contest::Replay, Contest::BareSelect, clients),
                rate,
                Aim::AtLeast(0.7),
            );
        }
        for clients in CONCURRENCIES {
            let name = format!("rate of new operations / of the floor, {clients} clients");
            self.ratio(&name, (Contest::New, Contest::Floor, clients), rate, Aim::None);
        }
        let time = |sample: &Sample| Some(sample.p50_ms);
        let claims = [
            (
                format!("time of a claim, {} rows / few", self.rows),
                Contest::ClaimManyRows,
                Contest::ClaimFewRows,
            ),
            (
                "time of a claim, 9 partitions / 2".into(),
                Contest::ClaimFewRows,
                Contest::ClaimFewPartitions,
            ),
        ];
        for (name, of, to) in claims {
            self.ratio(&name, (of, to, 1), time, Aim::AtMost(1.2));
        }
        let name = format!("time of a claim, {} rows / few, no page images", self.rows);
        let control = (Contest::ClaimManyNoImages, Contest::ClaimFewNoImages, 1);
        self.ratio(&name, control, time, Aim::None);
    }

    fn ratio(
        &mut self,
        name: &str,
        (of, to, clients): (Contest, Contest, usize),
        value: impl Fn(&Sample) -> Option<f64>,
        aim: Aim,
    ) {
        let samples = |contest| {
            let mut all = self.scenarios.iter();
            let found = all.find(|known| (known.contest, known.clients) == (contest, clients));
            found.map_or(&[][..], |found| &found.samples)
        };
        let rounds = samples(of).iter().zip(samples(to));
        let values = rounds.filter_map(|(of, to)| Some(value(of)? / value(to)?));
        // A load so short that it took no measurable time has no ratio.
        let Some(value) = Spread::of(values.filter(|value| value.is_finite())) else { return };
        let (at_most, at_least) = match aim {
            Aim::AtMost(most) => (Some(most), None),
            Aim::AtLeast(least) => (None, Some(least)),
            Aim::None => (None, None),
        };
        let met = match aim {
            Aim::AtMost(most) => Some(value.median <= most),
            Aim::AtLeast(least) => Some(value.median >= least),
            Aim::None => None,
        };
        self.ratios.push(Ratio { name: name.to_owned(), value, at_most, at_least, met });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "oncekey {} · PostgreSQL {} · {} CPUs · {} × {} s a scenario",
            self.version, self.postgres, self.cpus, self.repetitions, self.seconds
        )?;
        if !self.scenarios.is_empty() {
            writeln!(out)?;
            self.table(out)?;
        }
        if let Some(streams) = &self.streams {
            write!(out, "\n{streams}")?;
        }
        if let Some(parses) = &self.parses {
            write!(out, "\n{parses}")?;
        }
        if let Some(events) = &self.events {
            write!(out, "\n{events}")?;
        }
        if let Some(days) = &self.days {
            write!(out, "\n{days}")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }
}

impl Report {
    /// All scenarios with what follows from them.
    fn table(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{:<33}{:>4}  {:>8} {:>17}  {:>8} {:>8}  {:>8} {:>8}  {:>6} {:>6}  {:>7}",
            "",
            "at",
            "ops/s",
            "min to max",
            "p50 ms",
            "p99 ms",
            "cpu µs",
            "pg µs",
            "wal B",
            "images",
            "foreign"
        )?;
        for scenario in &self.scenarios {
            writeln!(out, "{}", row(scenario))?;
        }
        writeln!(out)?;
        for ratio in &self.ratios {
            writeln!(out, "{}", ratio_line(ratio))?;
        }
        writeln!(out)?;
        write!(out, "{}", self.memory_lines())
    }
}

/// One line of the table; what is not known is a dash.
fn row(scenario: &Scenario) -> String {
    let shown = |value: Option<f64>, places: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
    };
    let median =
        |value: &dyn Fn(&Sample) -> Option<f64>| scenario.spread(value).map(|spread| spread.median);
    let rate = scenario.spread(|sample| Some(sample.per_second));
    let range = rate.map_or_else(String::new, |rate| format!("{:.0} to {:.0}", rate.min, rate.max));
    format!(
        "{:<33}{:>4}  {:>8} {:>17}  {:>8} {:>8}  {:>8} {:>8}  {:>6} {:>6}  {:>7}",
        scenario.contest.label(),
        scenario.clients,
        shown(rate.map(|rate| rate.median), 0),
        range,
        shown(median(&|sample| Some(sample.p50_ms)), 2),
        shown(median(&|sample| Some(sample.p99_ms)), 2),
        shown(median(&|sample| sample.server_cpu_us), 0),
        shown(median(&|sample| sample.postgres_cpu_us), 0),
        shown(median(&|sample| Some(sample.wal_bytes)), 0),
        shown(median(&|sample| sample.page_image_bytes), 0),
        shown(median(&|sample| sample.foreign_cpus), 2),
    )
}

fn ratio_line(ratio: &Ratio) -> String {
    let Spread { min, median, max } = ratio.value;
    let mut line = format!("{:<58}{median:>6.2}  ({min:.2} to {max:.2})", ratio.name);
    let aim = match (ratio.at_most, ratio.at_least) {
        (Some(most), _) => format!("at most {most}"),
        (None, Some(least)) => format!("at least {least}"),
        (None, None) => return line,
    };
    let verdict = if ratio.met == Some(true) { "met" } else { "MISSED" };
    // Writing to a string cannot fail.
    let _ = write!(line, "  aim: {aim}: {verdict}");
    line
}

impl Report {
    fn memory_lines(&self) -> String {
        let megabytes = |bytes: Option<u64>| {
            bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6))
        };
        let mut text = format!(
            "resident memory: {} idle (aim: 20 MB), {} at 64 clients (aim: 50 MB)\n",
            megabytes(self.memory.idle_bytes),
            megabytes(self.memory.at_64_bytes)
        );
        if let Some(waits) = &self.waits {
            let each =
                waits.bytes_each.map_or_else(|| "-".to_owned(), |b| format!("{:.1} kB", b / 1e3));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "waiting: {} clients at one run: {each} each (aim: 30 kB), {:.1} polls of the database \
                 a second by all together; the last was answered {:.2} s after the run's end; \
                 {} were told to come again",
                waits.waiters,
                waits.polls_per_second,
                waits.all_answered_seconds,
                waits.asked_again
            );
        }
        text
    }
}
