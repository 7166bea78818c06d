//! What was measured of events, and how it reads.

use std::fmt;

use serde::Serialize;

use super::spread::Spread;

/// An outbox that was emptied once.
#[derive(Debug, Clone, Serialize)]
pub struct Emptying {
    pub seconds: f64,
    /// CPU of the database with all its processes, for each event.
    pub postgres_cpu_us: Option<f64>,
    pub foreign_cpus: Option<f64>,
}

/// What was measured; a value for each round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Events {
    /// In each emptying.
    pub events: i32,
    pub bare: Vec<Emptying>,
    pub no_op: Vec<Emptying>,
    pub webhook: Vec<Emptying>,
    /// From a commit to the sink, at rest.
    pub lag_ms: Vec<f64>,
}

impl Events {
    fn line(&self, name: &str, emptyings: &[Emptying]) -> String {
        let shown = |values: Vec<f64>, places: usize| {
            Spread::of(values).map_or_else(
                || "-".to_owned(),
                |Spread { min, median, max }| {
                    format!("{median:.places$} ({min:.places$} to {max:.places$})")
                },
            )
        };
        let rates = emptyings.iter().map(|one| f64::from(self.events) / one.seconds).collect();
        let cpu = emptyings.iter().filter_map(|one| one.postgres_cpu_us).collect();
        let foreign = emptyings.iter().filter_map(|one| one.foreign_cpus).fold(0.0, f64::max);
        format!(
            "{name:<34}{:>28} events/s   pg {} µs each   foreign at most {foreign:.2}",
            shown(rates, 0),
            shown(cpu, 0)
        )
    }
}

/// Rates, round by round.
fn ratio(of: &[Emptying], to: &[Emptying]) -> String {
    let rounds = of.iter().zip(to).map(|(of, to)| to.seconds / of.seconds);
    Spread::of(rounds).map_or_else(
        || "-".to_owned(),
        |Spread { min, median, max }| format!("{median:.2}  ({min:.2} to {max:.2})"),
    )
}

impl fmt::Display for Events {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.line("bare loop: delete, skip locked", &self.bare))?;
        writeln!(out, "{}", self.line("relay, a sink that does nothing", &self.no_op))?;
        writeln!(out, "{}", self.line("relay, webhook on loopback", &self.webhook))?;
        writeln!(
            out,
            "rate of the relay with no-op sink / of the bare loop        {}",
            ratio(&self.no_op, &self.bare)
        )?;
        writeln!(
            out,
            "rate of the relay with webhook / with no-op sink            {}",
            ratio(&self.webhook, &self.no_op)
        )?;
        if let Some(Spread { min, median, max }) = Spread::of(self.lag_ms.iter().copied()) {
            writeln!(
                out,
                "from a commit to the sink at rest: {median:.0} ms ({min:.0} to {max:.0}), {} events",
                self.lag_ms.len()
            )?;
        }
        Ok(())
    }
}
