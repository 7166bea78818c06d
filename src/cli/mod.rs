//! The commands, one file each. Exit status: 0 done, 1 it ran and says no, 2 wrong usage. An error is
//! one line on standard error that says what to do.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "commands talk to a terminal")]

mod asking;
mod audit;
mod bench;
mod chat;
mod database;
mod erase;
mod key;
mod migrate;
mod outbox;
mod parse;
mod partitions;
mod progress;
mod read_document;
mod reconcile;
mod script;
mod serve;
mod table;
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::config::{Config, Environment, Overrides};

#[derive(Parser)]
#[command(name = "oncekey", version, about = "One durable outcome per operation the client meant.")]
struct Arguments {
    /// The configuration, a TOML file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Migrate, then serve; with no database named, on a private PostgreSQL.
    Serve(serve::Serve),
    /// Bring the database's schema up to date.
    Migrate(database::Named),
    /// Make, list and revoke API keys.
    Key(key::Key),
    /// Look after the daily partitions.
    Partitions(partitions::Partitions),
    /// Look at events that wait, and deliver dead letters after all.
    Outbox(outbox::Outbox),
    /// What was used and what it cost, for finance.
    Usage(usage::Usage),
    /// Compare calls and receipts with a provider's export; exit status 1 where they do not agree.
    Reconcile(reconcile::Reconcile),
    /// Erase an end user: conversations, answers and uploads; receipts stay.
    Erase(erase::Erase),
    /// Check the invariants, a line each; exit status 1 where one is broken.
    Audit(audit::Audit),
    /// Say something to a server, once or line by line, as a client that repeats what helps.
    Chat(chat::Chat),
    /// Have a server parse a file, with its progress.
    Parse(parse::Parse),
    /// Load against the hot path, as a ratio to the database's own floor in the same run.
    Bench(bench::Bench),
    /// Read one upload for the server that started this.
    #[command(hide = true)]
    ReadDocument,
}

/// How a command ended, if not well.
#[derive(Debug)]
enum Failure {
    /// Wrong usage or configuration: exit status 2.
    Usage(String),
    /// It ran and says no: exit status 1.
    No(String),
}

impl Failure {
    fn no(error: impl std::fmt::Display) -> Self {
        Self::No(error.to_string())
    }
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return misunderstood(&error),
    };
    if matches!(arguments.command, Command::ReadDocument) {
        return read_document::run();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("oncekey: no threads: {error}");
            return ExitCode::from(1);
        }
    };
    let (text, code) = match runtime.block_on(run(arguments)) {
        Ok(code) => return code,
        Err(Failure::Usage(text)) => (text, 2),
        Err(Failure::No(text)) => (text, 1),
    };
    eprintln!("oncekey: {}", one_line(&text));
    ExitCode::from(code)
}

/// Help and version where they were asked for; else what is wrong and how it is written right.
fn misunderstood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        print!("{error}");
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let (what, after) = text.split_once("Usage:").unwrap_or((&text, ""));
    let what = match error.kind() {
        // Said with the whole help in front of the usage.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing",
        _ => what.strip_prefix("error:").unwrap_or(what),
    };
    let what = what.split("For more information").next().unwrap_or(what);
    let usage = after.lines().next().map(|usage| format!("; usage: {}", usage.trim()));
    eprintln!("oncekey: {}{}; more with --help", one_line(what), usage.unwrap_or_default());
    ExitCode::from(2)
}

/// Whatever an error has to say, on the one line that it gets.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let environment = Environment::of_process();
    let load = |listen: Option<String>, database_url: Option<String>| {
        let overrides = Overrides { listen, database_url };
        Config::load(arguments.config.as_deref(), &environment, &overrides)
            .map_err(|error| Failure::Usage(error.to_string()))
    };
    match arguments.command {
        Command::Serve(command) => {
            let config = load(command.listen.clone(), command.database.database_url.clone())?;
            serve::run(config).await
        }
        Command::Migrate(named) => migrate::run(load(None, named.database_url)?).await,
        Command::Key(command) => {
            let config = load(None, command.database.database_url.clone())?;
            key::run(command, config).await
        }
        Command::Partitions(command) => {
            let config = load(None, command.database.database_url.clone())?;
            partitions::run(command, config).await
        }
        Command::Outbox(command) => {
            let config = load(None, command.database.database_url.clone())?;
            outbox::run(command, config).await
        }
        Command::Usage(command) => {
            let config = load(None, command.database.database_url.clone())?;
            usage::run(command, config).await
        }
        Command::Reconcile(command) => {
            let config = load(None, command.database.database_url.clone())?;
            reconcile::run(command, config).await
        }
        Command::Erase(command) => {
            let config = load(None, command.database.database_url.clone())?;
            erase::run(command, config).await
        }
        Command::Audit(command) => {
            let config = load(None, command.database.database_url.clone())?;
            audit::run(command, config).await
        }
        Command::Chat(command) => chat::run(command).await,
        Command::Parse(command) => parse::run(command).await,
        Command::Bench(command) => {
            let config = load(None, None)?;
            bench::run(command, config).await
        }
        // Needs no runtime: done before there is one.
        Command::ReadDocument => Ok(read_document::run()),
    }
}
