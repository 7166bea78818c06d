//! `oncekey bench`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use super::database::blocking;
use crate::bench::{self, BenchError, Part, Report, Settings, Target, serve_reference};
use crate::clock::Clock;
use crate::config::Config;
use crate::postgres::{Cluster, ClusterSettings, start_or_attach};

#[derive(Args)]
pub struct Bench {
    /// Measure on this server, in databases that are made and dropped there, instead of on a
    /// throw-away private one. A configured database is never used.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Seconds of load per scenario, number of clients and repetition [default: 1.2, quick: 0.3]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Repetitions of each [default: 3, quick: 1]
    #[arg(long, value_name = "N")]
    repetitions: Option<usize>,
    /// Records in the larger table of the claim comparison [default: 200000, quick: 20000]
    #[arg(long, value_name = "N")]
    rows: Option<u64>,
    /// Records of the day that is dropped, with `--only days` [default: 2000000, quick: 20000]
    #[arg(long, value_name = "N")]
    day_rows: Option<u64>,
    /// Clients that wait for one run [default: 10000, quick: 500]
    #[arg(long, value_name = "N")]
    waiters: Option<usize>,
    /// Streams at once, fifty deltas a second each [default: 1000, quick: 100]
    #[arg(long, value_name = "N")]
    streams: Option<usize>,
    /// Measure this alone.
    #[arg(long)]
    only: Option<Only>,
    /// Less of everything, in less than a minute.
    #[arg(long)]
    quick: bool,
    /// Write all samples to this file as well, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Serve the bare handlers that the service is compared with, on DATABASE_URL.
    #[arg(long, hide = true)]
    reference: bool,
}

/// A part of the whole.
#[derive(Clone, Copy, ValueEnum)]
enum Only {
    Streams,
    Parses,
    Events,
    /// Dropping a day, and a simulated fortnight: some ten minutes, and not part of the whole.
    Days,
}

/// The folder of the private server and the logs, in the data directory: on the disk that a private
/// server would be on, since what a commit costs is what that disk costs.
const FOLDER: &str = "bench";

/// Measures, and prints what came of it. The numbers decide nothing: 0 where all was measured.
pub async fn run(command: Bench, config: Config) -> Result<ExitCode, Failure> {
    let clock = Clock::system();
    if command.reference {
        return reference(clock).await;
    }
    let folder = config.database.data_dir.join(FOLDER);
    let settings = settings(&command, folder.clone())?;
    std::fs::create_dir_all(&folder)
        .map_err(|e| Failure::No(format!("{}: {e}", folder.display())))?;
    let cluster = match &command.database_url {
        Some(_) => None,
        None => Some(private(folder.clone()).await?),
    };
    let private_url = cluster.as_ref().map(Cluster::connection_url);
    let target = Target {
        throw_away: private_url.is_some(),
        url: command.database_url.or(private_url).unwrap_or_default(),
    };
    let measured = measured(&settings, &target, &clock).await;
    if let Some(cluster) = cluster {
        let home = cluster.data_dir().to_owned();
        blocking(move || cluster.stop()).await?.map_err(Failure::no)?;
        drop(std::fs::remove_dir_all(home));
    }
    // After a failure the logs stay, for whoever wants to know why.
    let report = measured?;
    drop(std::fs::remove_dir_all(&folder));
    if let Some(file) = &command.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failure::no)?;
        std::fs::write(file, text).map_err(|e| Failure::No(format!("{}: {e}", file.display())))?;
    }
    print!("{report}");
    Ok(ExitCode::SUCCESS)
}

fn settings(command: &Bench, folder: PathBuf) -> Result<Settings, Failure> {
    let (seconds, repetitions, rows, waiters, streams) =
        if command.quick { (0.3, 1, 20_000, 500, 100) } else { (1.2, 3, 200_000, 10_000, 1_000) };
    let length = Duration::try_from_secs_f64(command.seconds.unwrap_or(seconds));
    let length = length.map_err(|error| Failure::Usage(format!("--seconds: {error}")))?;
    let settings = Settings {
        length,
        repetitions: command.repetitions.unwrap_or(repetitions),
        rows: command.rows.unwrap_or(rows),
        day_rows: command.day_rows.unwrap_or(if command.quick { 20_000 } else { 2_000_000 }),
        waiters: command.waiters.unwrap_or(waiters),
        streams: command.streams.unwrap_or(streams),
        part: match command.only {
            None => Part::All,
            Some(Only::Streams) => Part::Streams,
            Some(Only::Parses) => Part::Parses,
            Some(Only::Events) => Part::Events,
            Some(Only::Days) => Part::Days,
        },
        program: std::env::current_exe().map_err(Failure::no)?,
        folder,
    };
    let counts = [settings.repetitions, settings.streams];
    if settings.length.is_zero() || settings.rows.min(settings.day_rows) == 0 || counts.contains(&0)
    {
        let flags = "--seconds, --repetitions, --rows, --day-rows and --streams";
        return Err(Failure::Usage(format!("{flags} must not be 0")));
    }
    Ok(settings)
}

/// A server of this run's own. What an earlier run that was killed left in its place is removed.
async fn private(folder: PathBuf) -> Result<Cluster, Failure> {
    let start = move || {
        let settings = ClusterSettings::new(folder);
        let cluster = start_or_attach(&settings)?;
        if cluster.fresh() || !cluster.owned() {
            return Ok(cluster);
        }
        let home = cluster.data_dir().to_owned();
        cluster.stop()?;
        drop(std::fs::remove_dir_all(home));
        start_or_attach(&settings)
    };
    let cluster = blocking(start).await?.map_err(Failure::no)?;
    if cluster.owned() {
        Ok(cluster)
    } else {
        Err(Failure::No("another bench runs in this data directory; wait for its end".into()))
    }
}

/// Measures until it is done or somebody asks for its end.
async fn measured(settings: &Settings, target: &Target, clock: &Clock) -> Result<Report, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::no)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::no)?;
    let tell = |what: &str| eprintln!("{what} …");
    tokio::select! {
        report = bench::run(settings, target, clock, &tell) => report.map_err(|error| {
            Failure::No(format!("{error}; logs: {}", settings.folder.display()))
        }),
        _ = interrupt.recv() => Err(Failure::No("interrupted".into())),
        _ = terminate.recv() => Err(Failure::No("interrupted".into())),
    }
}

async fn reference(clock: Clock) -> Result<ExitCode, Failure> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| Failure::Usage("--reference serves on the DATABASE_URL".into()))?;
    let announce = |address| println!("the reference listens on http://{address}");
    serve_reference(&url, clock, announce).await.map_err(|error: BenchError| Failure::no(error))?;
    Ok(ExitCode::SUCCESS)
}
