//! `oncekey erase`: an end user's conversations, answers and uploads; receipts stay.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::Failure;
use super::database::{Named, with_store};
use crate::background::{Erased, Eraser, Erasure};
use crate::captures::Captures;
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::ids::{Subject, TenantId};
use crate::store::{Erasing, RunningOperation, Store};

/// How long it waits for a node that is at the old partitions.
const PATIENCE: Duration = Duration::from_secs(180);
/// Running operations that are named.
const NAMED: usize = 3;

#[derive(Args)]
pub struct Erase {
    #[command(flatten)]
    pub database: Named,
    /// Who is billed.
    #[arg(long)]
    tenant: String,
    /// The end user, as in `X-End-User`.
    #[arg(long)]
    subject: String,
}

pub async fn run(command: Erase, config: Config) -> Result<ExitCode, Failure> {
    for (name, text) in [("--tenant", &command.tenant), ("--subject", &command.subject)] {
        if text.is_empty() {
            return Err(Failure::Usage(format!("{name} must not be empty")));
        }
    }
    let whose =
        Erasing { tenant: TenantId::new(command.tenant), subject: Subject::new(command.subject) };
    let captures = Captures::open(&config.captures.location).map_err(Failure::no)?;
    with_store(&config, |store| async move {
        let erasure = erase(&store, &captures, &whose).await?;
        match erasure {
            Erasure::Complete(erased) => {
                report(&erased);
                Ok(ExitCode::SUCCESS)
            }
            Erasure::Refused(running) => Err(Failure::No(format!(
                "nothing was erased: {}; wait for the end or cancel, then run this again",
                named(&running)
            ))),
            Erasure::Incomplete(erased, running) => {
                report(&erased);
                Err(Failure::No(format!(
                    "{}, begun meanwhile; run this again after the end",
                    named(&running)
                )))
            }
        }
    })
    .await
}

async fn erase(store: &Store, captures: &Captures, whose: &Erasing) -> Result<Erasure, Failure> {
    let clock = Clock::system();
    let mut session = store.partition_session().await.map_err(Failure::no)?;
    let deadline = clock.now() + PATIENCE;
    while !session.alone().await.map_err(Failure::no)? {
        if clock.now() >= deadline {
            let busy = "a node or another command is clearing away; run this again later";
            return Err(Failure::No(busy.into()));
        }
    }
    let eraser = Eraser { store, captures, clock: &clock };
    let erasure = eraser.erase(&mut session, whose).await.map_err(|error| {
        Failure::No(format!("{error}; run this again: what is erased already stays so"))
    })?;
    session.close().await.map_err(Failure::no)?;
    Ok(erasure)
}

fn report(erased: &Erased) {
    let Erased {
        conversations,
        turns,
        answers,
        parse_results,
        captures,
        capture_bytes,
        chunks,
        refused_inputs,
        receipts,
    } = erased;
    println!("conversations   {conversations}");
    println!("turns           {turns}");
    println!("stored answers  {answers}");
    println!("parse results   {parse_results}");
    println!("captures        {captures} ({capture_bytes} bytes)");
    println!("kept chunks     {chunks}");
    println!("refused inputs  {refused_inputs}");
    println!("{receipts} receipts stay, without text");
}

fn named(running: &[RunningOperation]) -> String {
    let one = |it: &RunningOperation| {
        format!("{} {} since {}", it.endpoint, it.key, it.since.format("%H:%M:%SZ"))
    };
    let names = running.iter().take(NAMED).map(one).collect::<Vec<_>>().join(", ");
    let more = if running.len() > NAMED { ", …" } else { "" };
    let verb = if running.len() == 1 { "operation runs" } else { "operations run" };
    format!("{} {verb} ({names}{more})", running.len())
}
