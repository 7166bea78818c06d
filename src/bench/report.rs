//! What was measured, and how it reads.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::Settings;
use super::days_report::Days;
use super::events_report::Events;
use super::figures::{self, Figure};
use super::machine::{self, Resident};
use super::parses_report::Parses;
use super::samples::{Contest, Sample, Scenario};
use super::streams_report::Streams;

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
    pub idle: Option<Resident>,
    /// The most that was seen at the end of a load by 64 clients.
    pub at_64: Option<Resident>,
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
    /// Of two contests each, round by round.
    pub ratios: Vec<Figure>,
    pub figures: Vec<Figure>,
    /// What a reader must know.
    pub notes: Vec<String>,
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
            figures: Vec::new(),
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
        self.memory.at_64 =
            resident.filter_map(|sample| sample.resident).max_by_key(|resident| resident.bytes);
        self.ratios = figures::ratios(&self.scenarios, self.rows);
        self.figures = figures::figures(&self.scenarios);
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
        for figure in self.ratios.iter().chain(&self.figures) {
            writeln!(out, "{figure}")?;
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

impl Report {
    fn memory_lines(&self) -> String {
        let megabytes = |memory: Option<Resident>| {
            memory.map_or_else(
                || "-".to_owned(),
                |Resident { bytes, own_bytes }| {
                    let [all, own] = [bytes, own_bytes].map(|bytes| bytes as f64 / 1e6);
                    format!("{all:.1} MB, {own:.1} of them not the program's file")
                },
            )
        };
        let mut text = format!(
            "resident memory, idle: {}\nresident memory at 64 clients (aim: 25 MB): {}\n",
            megabytes(self.memory.idle),
            megabytes(self.memory.at_64)
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
