//! `oncekey partitions ensure`.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Failure;
use super::database::{Named, with_store};
use crate::config::Config;
use crate::store::partition_name;

#[derive(Args)]
pub struct Partitions {
    #[command(flatten)]
    pub database: Named,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make the partitions of today and of the days ahead where they are missing.
    Ensure,
}

pub async fn run(command: Partitions, config: Config) -> Result<ExitCode, Failure> {
    with_store(&config, |store| async move {
        match command.action {
            Action::Ensure => {
                let made = store.ensure_partitions().await.map_err(Failure::no)?;
                for day in &made {
                    println!("made {}", partition_name(*day));
                }
                let runway = store.runway().await.map_err(Failure::no)?;
                println!("{} made; {} days ahead of today", made.len(), runway.days_ahead);
                Ok(ExitCode::SUCCESS)
            }
        }
    })
    .await
}
