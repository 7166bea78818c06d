//! What was measured of streams, and how it reads.

use std::fmt;

use serde::Serialize;

use super::paced::{FAST_PER_SECOND, STEADY_PER_SECOND};
use super::spread::Spread;

/// Who hands the provider's stream on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    Bare,
    Service,
}

/// So many streams at once, for a while.
#[derive(Debug, Clone, Serialize)]
pub struct StreamSample {
    pub carrier: Carrier,
    pub streams: usize,
    /// Deltas that reached a reader, and how many would have, had everybody kept up.
    pub delivered_per_second: f64,
    pub asked_per_second: f64,
    /// From the provider's sending to the reader's having it.
    pub added_p50_ms: f64,
    pub added_p99_ms: f64,
    /// CPU of the carrier's process, per delta that was delivered.
    pub cpu_us: Option<f64>,
    /// Memory that the carrier's process grew by since it was idle, for each stream.
    pub bytes_each: Option<f64>,
    /// CPUs that were busy with none of us.
    pub foreign_cpus: Option<f64>,
}

/// The first delta of a stream that is alone.
#[derive(Debug, Clone, Serialize)]
pub struct FirstDelta {
    pub carrier: Carrier,
    pub streams: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// One stream and its readers.
#[derive(Debug, Clone, Serialize)]
pub struct FanOut {
    pub readers: usize,
    pub delivered_per_second: f64,
    pub asked_per_second: f64,
    pub added_p99_ms: f64,
    /// CPU of the service, per delta and reader that it was delivered to.
    pub cpu_us: Option<f64>,
    /// Memory that the service grew by, for each reader.
    pub bytes_each: Option<f64>,
    pub foreign_cpus: Option<f64>,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Streams {
    /// In the order of the rounds.
    pub steady: Vec<StreamSample>,
    pub first_delta: Vec<FirstDelta>,
    pub fan_out: Vec<FanOut>,
    pub ratios: Vec<StreamRatio>,
}

/// Of the service to the bare handler, round by round.
#[derive(Debug, Serialize)]
pub struct StreamRatio {
    pub name: String,
    pub value: Spread,
}

/// The first delta should reach its reader within this, in milliseconds.
const FIRST_DELTA_AIM_MS: f64 = 5.0;

impl Streams {
    /// Derives what follows from the samples.
    pub fn conclude(&mut self) {
        let mut ratios = Vec::new();
        for streams in self.sizes() {
            let mut add = |what: &str, value: fn(&StreamSample) -> Option<f64>| {
                let of = |carrier| self.of(carrier, streams).map(value);
                let values = of(Carrier::Service).zip(of(Carrier::Bare));
                let values = values.filter_map(|(service, bare)| Some(service? / bare?));
                if let Some(value) = Spread::of(values.filter(|value| value.is_finite())) {
                    let name = format!("{what} / of the bare handler, {streams} streams");
                    ratios.push(StreamRatio { name, value });
                }
            };
            add("CPU of a delta", |sample| sample.cpu_us);
            add("added latency, median", |sample| Some(sample.added_p50_ms));
            add("memory of a stream", |sample| sample.bytes_each);
        }
        let cpu = |readers| {
            let of = self.fan_out.iter().filter(move |fan| fan.readers == readers);
            of.map(|fan| fan.cpu_us)
        };
        let most = self.fan_out.iter().map(|fan| fan.readers).max().unwrap_or_default();
        let values = cpu(most).zip(cpu(1)).filter_map(|(many, one)| Some(many? / one?));
        if let Some(value) = Spread::of(values.filter(|value| value.is_finite())) {
            let name = format!("CPU of a delivered delta, {most} readers / 1");
            ratios.push(StreamRatio { name, value });
        }
        self.ratios = ratios;
    }

    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.steady.iter().map(|sample| sample.streams).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn of(&self, carrier: Carrier, streams: usize) -> impl Iterator<Item = &StreamSample> {
        let is =
            move |sample: &&StreamSample| (sample.carrier, sample.streams) == (carrier, streams);
        self.steady.iter().filter(is)
    }
}

fn median<T>(samples: &[&T], value: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    let values = samples.iter().filter_map(|sample| value(sample));
    Spread::of(values).map(|spread| spread.median)
}

fn shown(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
}

impl fmt::Display for Streams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{:<33}{:>4}  {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8}  {:>7}",
            format!("streams of {STEADY_PER_SECOND} deltas a second"),
            "at",
            "deltas/s",
            "asked",
            "p50 ms",
            "p99 ms",
            "cpu µs",
            "kB each",
            "foreign"
        )?;
        for streams in self.sizes() {
            for (carrier, label) in
                [(Carrier::Bare, "bare handler: forward"), (Carrier::Service, "stream")]
            {
                let samples: Vec<&StreamSample> = self.of(carrier, streams).collect();
                let of = |value: fn(&StreamSample) -> Option<f64>| median(&samples, value);
                writeln!(
                    out,
                    "{label:<33}{streams:>4}  {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8}  {:>7}",
                    shown(of(|s| Some(s.delivered_per_second)), 0),
                    shown(of(|s| Some(s.asked_per_second)), 0),
                    shown(of(|s| Some(s.added_p50_ms)), 2),
                    shown(of(|s| Some(s.added_p99_ms)), 2),
                    shown(of(|s| s.cpu_us), 1),
                    shown(of(|s| Some(s.bytes_each? / 1e3)), 1),
                    shown(of(|s| s.foreign_cpus), 2),
                )?;
            }
        }
        let mut readers: Vec<usize> = self.fan_out.iter().map(|fan| fan.readers).collect();
        readers.sort_unstable();
        readers.dedup();
        for readers in readers {
            let samples: Vec<&FanOut> =
                self.fan_out.iter().filter(|fan| fan.readers == readers).collect();
            let of = |value: fn(&FanOut) -> Option<f64>| median(&samples, value);
            writeln!(
                out,
                "{:<33}{readers:>4}  {:>8} {:>8}  {:>8} {:>8}  {:>8} {:>8}  {:>7}",
                format!("one of {FAST_PER_SECOND}, readers"),
                shown(of(|s| Some(s.delivered_per_second)), 0),
                shown(of(|s| Some(s.asked_per_second)), 0),
                "",
                shown(of(|s| Some(s.added_p99_ms)), 2),
                shown(of(|s| s.cpu_us), 1),
                shown(of(|s| Some(s.bytes_each? / 1e3)), 1),
                shown(of(|s| s.foreign_cpus), 2),
            )?;
        }
        writeln!(out)?;
        for StreamRatio { name, value: Spread { min, median, max } } in &self.ratios {
            writeln!(out, "{name:<58}{median:>6.2}  ({min:.2} to {max:.2})")?;
        }
        for FirstDelta { carrier, streams, p50_ms, p99_ms } in &self.first_delta {
            let (name, aim) = match carrier {
                Carrier::Bare => ("by the bare handler", String::new()),
                Carrier::Service => {
                    let verdict = if *p99_ms <= FIRST_DELTA_AIM_MS { "met" } else { "MISSED" };
                    ("by the service", format!("  aim: {FIRST_DELTA_AIM_MS} ms: {verdict}"))
                }
            };
            writeln!(
                out,
                "first delta of a stream alone, {name}: p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms \
                 of {streams}{aim}"
            )?;
        }
        Ok(())
    }
}
