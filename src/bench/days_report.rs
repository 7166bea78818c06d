//! What was measured of days that go, and how it reads.

use std::fmt;

use serde::Serialize;

use super::spread::Spread;

/// What claims felt.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Felt {
    pub claims: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub longest_ms: f64,
}

/// Rows that went while claims were made.
#[derive(Debug, Clone, Serialize)]
pub struct Going {
    pub seconds: f64,
    /// That of the claims meanwhile is in it.
    pub wal_bytes: i64,
    pub felt: Felt,
    pub foreign_cpus: Option<f64>,
}

/// Bytes, after the first days and after the last.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sizes {
    pub records_early: i64,
    pub records_late: i64,
    pub keys_early: i64,
    pub keys_late: i64,
}

/// What was measured; of each kind, a value for each round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Days {
    pub rows: u64,
    pub quiet: Vec<Felt>,
    /// Detaching and dropping the partition.
    pub dropping: Vec<Going>,
    /// Clearing its keys away, in batches.
    pub clearing: Vec<Going>,
    /// Deleting as many rows in one statement and vacuuming after it.
    pub deleting: Vec<Going>,
    pub simulated: u64,
    pub simulated_rows: u64,
    pub partitioned: Option<Sizes>,
    pub flat: Option<Sizes>,
}

fn shown(values: impl Iterator<Item = f64>, places: usize) -> String {
    Spread::of(values).map_or_else(
        || "-".to_owned(),
        |Spread { min, median, max }| {
            format!("{median:.places$} ({min:.places$} to {max:.places$})")
        },
    )
}

fn felt_line(name: &str, felt: &[Felt]) -> String {
    format!(
        "{name:<36} claims: p50 {} ms, p99 {} ms, longest {} ms",
        shown(felt.iter().map(|felt| felt.p50_ms), 2),
        shown(felt.iter().map(|felt| felt.p99_ms), 1),
        shown(felt.iter().map(|felt| felt.longest_ms), 0)
    )
}

fn going_lines(name: &str, goings: &[Going]) -> String {
    let felt: Vec<Felt> = goings.iter().map(|going| going.felt).collect();
    let foreign = goings.iter().filter_map(|going| going.foreign_cpus).fold(0.0, f64::max);
    format!(
        "{}\n{:<36} took {} s, {} MB of log with that of the claims, foreign at most {foreign:.2}",
        felt_line(name, &felt),
        "",
        shown(goings.iter().map(|going| going.seconds), 2),
        shown(goings.iter().map(|going| going.wal_bytes as f64 / 1e6), 0)
    )
}

impl fmt::Display for Days {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "a day of {} rows goes while four clients claim", self.rows)?;
        writeln!(out, "{}", felt_line("nothing else", &self.quiet))?;
        writeln!(out, "{}", going_lines("its partition is dropped", &self.dropping))?;
        writeln!(out, "{}", going_lines("its keys are cleared in batches", &self.clearing))?;
        writeln!(out, "{}", going_lines("DELETE and VACUUM of as many rows", &self.deleting))?;
        let times = self.dropping.iter().zip(&self.deleting);
        writeln!(
            out,
            "time of DELETE and VACUUM / of the drop                     {}",
            shown(times.map(|(dropped, deleted)| deleted.seconds / dropped.seconds), 0)
        )?;
        let megabytes = |bytes: i64| bytes as f64 / 1e6;
        for (name, sizes) in [("partitions", self.partitioned), ("DELETE and VACUUM", self.flat)] {
            let Some(sizes) = sizes else { continue };
            writeln!(
                out,
                "{} days of {} rows, two kept, {name}: records {:.1} MB on the third day, {:.1} MB on \
                 the last",
                self.simulated,
                self.simulated_rows,
                megabytes(sizes.records_early),
                megabytes(sizes.records_late)
            )?;
        }
        if let Some(sizes) = self.partitioned {
            let (early, late) = (megabytes(sizes.keys_early), megabytes(sizes.keys_late));
            writeln!(out, "their keys: {early:.1} MB on the third day, {late:.1} MB on the last")?;
        }
        Ok(())
    }
}
