//! `oncekey serve`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;
use super::database::{Database, Named, blocking, fault_plan, no_database};
use super::key::new_key;
use crate::app::{App, AppError, Setup};
use crate::clock::Clock;
use crate::config::Config;
use crate::documents::Documents;
use crate::domain::api_key::ApiRole;
use crate::faults::{self, Fault, Faults};
use crate::lifecycle::Lifecycle;
use crate::store::Store;
use crate::telemetry;

/// Between two sums of what histograms were told.
const SUM_UP_EVERY: Duration = Duration::from_secs(5);
/// The tenant of a first start.
const FIRST_TENANT: &str = "dev";

#[derive(Args)]
#[command(after_long_help = faults::help())]
pub struct Serve {
    /// Where to listen, instead of the configured address.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub database: Named,
}

/// Serves until SIGTERM or SIGINT. 0: drained wholly; 1: runs had to be cut.
pub async fn run(config: Config) -> Result<ExitCode, Failure> {
    let variables = || {
        std::env::vars_os()
            .filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)))
    };
    let traces = telemetry::log(variables()).map_err(|error| Failure::Usage(error.to_string()))?;
    let metrics = telemetry::metrics().map_err(Failure::no)?;
    let faults = Faults::asked(fault_plan()?);
    for warning in &config.warnings {
        tracing::warn!(event = "configuration", "{warning}");
    }
    // Listened for before the start, so that a signal during it is not lost.
    let mut stop = StopSignals::new().map_err(Failure::no)?;
    let database = Database::open(&config).await?;
    if let Some(dir) = database.private_dir() {
        tracing::info!(event = "private_postgres", dir, "private PostgreSQL");
    }
    let clock = Clock::system();
    let setup = Setup {
        config,
        database_url: database.url.clone(),
        clock: clock.clone(),
        clock_offset: faults.take_duration(Fault::ClockOffset).unwrap_or_default(),
        faults,
        alone: database.started_here(),
        render_metrics: {
            let metrics = metrics.clone();
            Arc::new(move || metrics.render())
        },
        program: Documents::this_program().map_err(Failure::no)?,
    };
    let config = setup.config.clone();
    let outcome = async {
        let started = tokio::select! {
            started = App::start(setup) => started,
            // Nothing is served yet that could be drained.
            () = stop.next() => return Ok(true),
        };
        let app = started.map_err(|error| match error {
            AppError::Store(error) => no_database(&config, error),
            error => Failure::no(error),
        })?;
        database.tend(app.lifecycle(), &clock);
        announce(&app, &clock).await?;
        sum_up_metrics(metrics, app.lifecycle().clone(), clock);
        stop.next().await;
        Ok(app.shut_down(stop.next()).await)
    }
    .await;
    database.close().await?;
    if let Some(traces) = traces {
        blocking(move || traces.end()).await?;
    }
    Ok(if outcome? { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What histograms were told is summed up also where nobody asks for the metrics.
fn sum_up_metrics(metrics: telemetry::Metrics, lifecycle: Lifecycle, clock: Clock) {
    lifecycle.clone().spawn(async move {
        loop {
            tokio::select! {
                () = lifecycle.over() => return,
                () = clock.sleep(SUM_UP_EVERY) => metrics.sum_up(),
            }
        }
    });
}

/// Says where it listens and, on a first start, how to try it.
async fn announce(app: &App, clock: &Clock) -> Result<(), Failure> {
    let address = app.address();
    tracing::info!(event = "listening", %address, "serving");
    say(&format!("oncekey listens on http://{address}"));
    match first_key(app.store(), clock).await? {
        Some(key) => {
            say(&format!(
                "\nFirst start: tenant \"{FIRST_TENANT}\" was made with this API key, shown only now:"
            ));
            say(&format!("  {key}"));
            say(
                "Try it; sent twice with the same Idempotency-Key, it is answered twice and runs once:",
            );
            say(&format!(
                "  curl -i http://{address}/v1/chat -H 'Authorization: Bearer {key}' \
                 -H 'Content-Type: application/json' -H 'Idempotency-Key: {}' \
                 -d '{{\"conversation_id\":\"hello\",\"message\":\"What is an idempotency key?\"}}'",
                clock.new_id()
            ));
        }
        None => say(&format!("API keys: oncekey key create --tenant {FIRST_TENANT} --role client")),
    }
    Ok(())
}

/// Prints a line. A server serves also where nobody reads what it prints.
fn say(line: &str) {
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        tracing::warn!(event = "unread", %error, "standard output is closed");
    }
}

async fn first_key(store: &Store, clock: &Clock) -> Result<Option<String>, Failure> {
    let (key, row) = new_key(clock, FIRST_TENANT, ApiRole::Client, None);
    let made = store.insert_first_api_key(row).await.map_err(Failure::no)?;
    Ok(made.then(|| key.reveal().to_owned()))
}

/// SIGTERM and SIGINT: the first drains, the second hurries.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
