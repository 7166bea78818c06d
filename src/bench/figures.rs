//! What follows from the samples: ratios of two contests within a round, and single figures, each beside
//! what it should be.

use std::fmt;

use serde::Serialize;

use super::CONCURRENCIES;
use super::samples::{Contest, Sample, Scenario};
use super::spread::Spread;

/// Something derived, over the rounds.
#[derive(Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: Spread,
    /// What it should not exceed.
    pub at_most: Option<f64>,
    /// What it should reach.
    pub at_least: Option<f64>,
    /// Whether the median is as it should be.
    pub met: Option<bool>,
}

/// Whether a median is as it should be.
#[derive(Clone, Copy)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
    None,
}

/// Ratios of two contests each, taken round by round. `rows`: how many are many.
pub fn ratios(scenarios: &[Scenario], rows: u64) -> Vec<Figure> {
    let cpu = |sample: &Sample| Some(sample.server_cpu_us? + sample.postgres_cpu_us?);
    let rate = |sample: &Sample| Some(sample.per_second);
    let time = |sample: &Sample| Some(sample.p50_ms);
    let mut ratios = Vec::new();
    for clients in CONCURRENCIES {
        let name = format!("CPU of a new operation / of the bare handler, {clients} clients");
        let both = (Contest::New, Contest::BareCommit, clients);
        ratios.extend(ratio(scenarios, name, both, cpu, Aim::AtMost(1.5)));
    }
    for clients in CONCURRENCIES {
        let name = format!("rate of replays / of the bare select, {clients} clients");
        let both = (Contest::Replay, Contest::BareSelect, clients);
        ratios.extend(ratio(scenarios, name, both, rate, Aim::AtLeast(0.7)));
    }
    for clients in CONCURRENCIES {
        let name = format!("rate of new operations / of the floor, {clients} clients");
        let both = (Contest::New, Contest::Floor, clients);
        let aim = if clients == 64 { Aim::AtLeast(0.18) } else { Aim::None };
        ratios.extend(ratio(scenarios, name, both, rate, aim));
    }
    // Both wait for the same timer, which is late for both.
    let [new, bare] =
        [Contest::NewDelayed, Contest::BareDelayed].map(|contest| samples(scenarios, contest, 1));
    let beyond = new.iter().zip(bare).filter_map(|(new, bare)| {
        let call = new.call_p50_ms?;
        Some((new.p50_ms - call) / (bare.p50_ms - call))
    });
    let name = "p50 beyond a provider's 20 ms / of the bare handler".to_owned();
    ratios.extend(Figure::of(name, beyond, Aim::None));
    let few = Contest::ClaimFewRows;
    for (name, of, to, aim) in [
        (format!("{rows} rows / few"), Contest::ClaimManyRows, few, Aim::AtMost(1.2)),
        ("9 partitions / 2".to_owned(), few, Contest::ClaimFewPartitions, Aim::AtMost(1.2)),
        (
            format!("{rows} rows / few, no page images"),
            Contest::ClaimManyNoImages,
            Contest::ClaimFewNoImages,
            Aim::None,
        ),
    ] {
        let name = format!("time of a claim, {name}");
        ratios.extend(ratio(scenarios, name, (of, to, 1), time, aim));
    }
    ratios
}

/// Single figures.
pub fn figures(scenarios: &[Scenario]) -> Vec<Figure> {
    let millis = |micros: Option<f64>| micros.map(|micros| micros / 1e3);
    let service: &dyn Fn(&Sample) -> Option<f64> = &|sample| millis(sample.server_cpu_us);
    let postgres = &|sample: &Sample| millis(sample.postgres_cpu_us);
    let rate = &|sample: &Sample| Some(sample.per_second);
    let beyond = &|sample: &Sample| Some(sample.p50_ms - sample.call_p50_ms?);
    [
        ("the service's CPU of a new operation, ms", Contest::New, 64, service, Aim::AtMost(0.22)),
        ("PostgreSQL's CPU of a new operation, ms", Contest::New, 64, postgres, Aim::AtMost(0.25)),
        ("replays a second", Contest::Replay, 64, rate, Aim::AtLeast(6_000.0)),
        ("p50 beyond a provider's 20 ms, ms", Contest::NewDelayed, 1, beyond, Aim::AtMost(2.5)),
    ]
    .into_iter()
    .filter_map(|(what, contest, clients, value, aim)| {
        let name = format!("{what}, {clients} clients");
        Figure::of(name, samples(scenarios, contest, clients).iter().filter_map(value), aim)
    })
    .collect()
}

fn samples(scenarios: &[Scenario], contest: Contest, clients: usize) -> &[Sample] {
    let found = scenarios.iter().find(|known| (known.contest, known.clients) == (contest, clients));
    found.map_or(&[], |found| &found.samples)
}

fn ratio(
    scenarios: &[Scenario],
    name: String,
    (of, to, clients): (Contest, Contest, usize),
    value: impl Fn(&Sample) -> Option<f64>,
    aim: Aim,
) -> Option<Figure> {
    let [of, to] = [of, to].map(|contest| samples(scenarios, contest, clients));
    let rounds = of.iter().zip(to);
    Figure::of(name, rounds.filter_map(|(of, to)| Some(value(of)? / value(to)?)), aim)
}

impl Figure {
    /// `None` where nothing was measured, or a load was so short that it took no measurable time.
    fn of(name: String, values: impl Iterator<Item = f64>, aim: Aim) -> Option<Self> {
        let value = Spread::of(values.filter(|value| value.is_finite()))?;
        let (at_most, at_least, met) = match aim {
            Aim::AtMost(most) => (Some(most), None, Some(value.median <= most)),
            Aim::AtLeast(least) => (None, Some(least), Some(value.median >= least)),
            Aim::None => (None, None, None),
        };
        Some(Self { name, value, at_most, at_least, met })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { min, median, max } = self.value;
        write!(out, "{:<58}{median:>6.2}  ({min:.2} to {max:.2})", self.name)?;
        let aim = match (self.at_most, self.at_least) {
            (Some(most), _) => format!("at most {most}"),
            (None, Some(least)) => format!("at least {least}"),
            (None, None) => return Ok(()),
        };
        let verdict = if self.met == Some(true) { "met" } else { "MISSED" };
        write!(out, "  aim: {aim}: {verdict}")
    }
}
