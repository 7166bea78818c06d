//! `oncekey partitions list`, `ensure` and `drop`: the daily partitions, for the DBA.

use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};

use super::Failure;
use super::database::{Named, with_store};
use super::table::{self, Align};
use crate::background::{Cleared, Retired, clear_keys, drop_old, named};
use crate::clock::Clock;
use crate::config::{Config, Idempotency};
use crate::domain::partition::DropRule;
use crate::store::{PartitionStock, Standing, Store, partition_name};

/// How long `drop` waits for a partition that somebody reads.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Args)]
pub struct Partitions {
    #[command(flatten)]
    pub database: Named,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the partitions with what they hold, and whether each may be dropped.
    List,
    /// Make the partitions of today and of the days ahead where they are missing.
    Ensure,
    /// Drop the partitions in which nothing is promised any more.
    Drop {
        /// Only days that have been over for this long; by default idempotency.retention. Answers
        /// inside the retention stay in any case.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        older_than: Option<Duration>,
        /// Print the SQL instead of running it.
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn run(command: Partitions, config: Config) -> Result<ExitCode, Failure> {
    let Idempotency { retention, derive_window, .. } = config.idempotency;
    with_store(&config, |store| async move {
        match command.action {
            Action::List => list(&store, &DropRule::of(retention)).await,
            Action::Ensure => ensure(&store).await,
            Action::Drop { older_than, dry_run } => {
                let rule = DropRule { retention, older_than: older_than.unwrap_or(retention) };
                if dry_run {
                    return print_sql(&store, &rule).await;
                }
                drop_and_clear(&store, &rule, retention.saturating_add(derive_window)).await
            }
        }
    })
    .await
}

async fn ensure(store: &Store) -> Result<ExitCode, Failure> {
    let made = store.ensure_partitions().await.map_err(Failure::no)?;
    for day in &made {
        println!("made {}", partition_name(*day));
    }
    let runway = store.runway().await.map_err(Failure::no)?;
    println!("{} made; {} days ahead of today", made.len(), runway.days_ahead);
    Ok(ExitCode::SUCCESS)
}

async fn stock(store: &Store) -> Result<(Vec<PartitionStock>, DateTime<Utc>), Failure> {
    let mut session = store.partition_session().await.map_err(Failure::no)?;
    let stock = session.stock().await.map_err(Failure::no)?;
    session.close().await.map_err(Failure::no)?;
    Ok(stock)
}

/// Why a partition stays. `None`: it may go.
fn stays(stock: &PartitionStock, rule: &DropRule, now: DateTime<Utc>) -> Option<String> {
    if stock.partition.retired && stock.partition.standing != Standing::Attached {
        return None;
    }
    rule.judge(stock.partition.day(), &stock.contents, now).map(|why| why.to_string())
}

async fn list(store: &Store, rule: &DropRule) -> Result<ExitCode, Failure> {
    let (mut stock, now) = stock(store).await?;
    stock.sort_by(|a, b| a.partition.table.cmp(&b.partition.table));
    let time = |at: Option<DateTime<Utc>>| match at {
        Some(at) => at.to_rfc3339_opts(SecondsFormat::Secs, true),
        None => "-".to_owned(),
    };
    let rows: Vec<_> = stock
        .iter()
        .map(|one| {
            let standing = match one.partition.standing {
                Standing::Attached => "",
                Standing::Detaching => "half detached; ",
                Standing::Detached => "detached; ",
            };
            let verdict = match stays(one, rule, now) {
                Some(why) => format!("{standing}no: {why}"),
                None => format!("{standing}yes"),
            };
            vec![
                one.partition.table.clone(),
                ByteSize(u64::try_from(one.bytes).unwrap_or(0)).to_string(),
                one.rows.to_string(),
                one.contents.live_claims.to_string(),
                time(one.oldest_completion),
                time(one.contents.newest_completion),
                verdict,
            ]
        })
        .collect();
    let heads = [
        ("partition", Align::Left),
        ("size", Align::Right),
        ("rows", Align::Right),
        ("running", Align::Right),
        ("oldest completion", Align::Left),
        ("newest completion", Align::Left),
        ("may be dropped", Align::Left),
    ];
    table::print(&heads, &rows);
    Ok(ExitCode::SUCCESS)
}

/// SQL alone, with the reasons as comments, so that it can be read and piped.
async fn print_sql(store: &Store, rule: &DropRule) -> Result<ExitCode, Failure> {
    let (stock, now) = stock(store).await?;
    for one in &stock {
        match stays(one, rule, now) {
            Some(why) => println!("-- {} stays: {why}", one.partition.table),
            None => {
                one.partition.dropping_sql().iter().for_each(|statement| println!("{statement};"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn drop_and_clear(
    store: &Store,
    rule: &DropRule,
    derived_age: Duration,
) -> Result<ExitCode, Failure> {
    let mut session = store.partition_session().await.map_err(Failure::no)?;
    let clock = Clock::system();
    let deadline = clock.now() + PATIENCE;
    while !session.alone().await.map_err(Failure::no)? {
        if clock.now() >= deadline {
            let busy = "a node or another command is at the old partitions; run this again later";
            return Err(Failure::No(busy.into()));
        }
    }
    let (mut dropped, mut waits) = (0, None);
    let tell = |retired: Retired| match retired {
        Retired::Dropped { table } => {
            dropped += 1;
            println!("dropped {table}");
        }
        Retired::Detached { table, why } => {
            println!("finished detaching {table}, kept as a table: {why}");
        }
        Retired::Stays { table, why } => println!("kept {table}: {why}"),
        Retired::Waits { table, readers } => {
            println!("{table} waits for transactions that began before: {}", named(&readers));
        }
        Retired::LeftWaiting { table, readers } => {
            waits = Some(format!(
                "{table} still waits for transactions that began before: {}; end them, or run this again later",
                named(&readers)
            ));
        }
    };
    drop_old(&mut session, rule, PATIENCE, &clock, tell).await.map_err(|error| {
        Failure::No(format!("{error}; run this again: what is half done is finished first"))
    })?;
    let Cleared { keys, derived_keys } =
        clear_keys(&mut session, derived_age).await.map_err(Failure::no)?;
    session.close().await.map_err(Failure::no)?;
    println!("{dropped} dropped; {keys} keys and {derived_keys} derived keys cleared away");
    waits.map_or(Ok(ExitCode::SUCCESS), |waits| Err(Failure::No(waits)))
}
