//! What was measured of parses, and how it reads.

use std::fmt;

use serde::Serialize;

use super::scribe::{LONG_BYTES, LONGER_BYTES};

/// What was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Parses {
    pub chunks: usize,
    pub characters: usize,
    pub calls: usize,
    /// Of each play, in seconds, and what `chunks / 8 × slowest call` is for it.
    pub took: Vec<f64>,
    pub bound: Vec<f64>,
    /// Of the service at its most, before any parse and while one of eight long answers ran.
    pub idle_bytes: Option<u64>,
    pub eight_long_bytes: Option<u64>,
    /// CPU of the service for an answer of one piece, in microseconds.
    pub long_cpu_us: Vec<f64>,
    pub longer_cpu_us: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for Parses {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: Option<u64>| {
            bytes.map_or("?".to_owned(), |bytes| format!("{:.1}", bytes as f64 / 1e6))
        };
        let ratios: Vec<f64> =
            self.took.iter().zip(&self.bound).map(|(took, bound)| took / bound).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        writeln!(
            out,
            "a play of {} characters in {} chunks, {} calls: {:.2} s",
            self.characters,
            self.chunks,
            self.calls,
            median(&self.took)
        )?;
        writeln!(
            out,
            "time of a play / (chunks / 8 × slowest call)                {:.2}  ({least:.2} to {most:.2})  aim: at most 1.1: {}",
            median(&ratios),
            if median(&ratios) <= 1.1 { "met" } else { "MISSED" }
        )?;
        writeln!(
            out,
            "resident memory: {} MB idle, {} MB at most with eight answers of {} kB at once",
            megabytes(self.idle_bytes),
            megabytes(self.eight_long_bytes),
            LONG_BYTES / 1000
        )?;
        let (long, longer) = (median(&self.long_cpu_us), median(&self.longer_cpu_us));
        writeln!(
            out,
            "CPU of an answer of {} kB {:.0} ms, of {} kB {:.0} ms: {:.1} times as much for {} times the length",
            LONG_BYTES / 1000,
            long / 1e3,
            LONGER_BYTES / 1000,
            longer / 1e3,
            longer / long,
            LONGER_BYTES / LONG_BYTES
        )
    }
}
