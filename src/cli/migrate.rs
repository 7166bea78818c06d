//! `oncekey migrate`.

use std::process::ExitCode;

use super::Failure;
use super::database::with_store;
use crate::config::Config;

/// The migrations alone.
pub async fn run(config: Config) -> Result<ExitCode, Failure> {
    let role =
        with_store(&config, |store| async move { store.finance_role().await.map_err(Failure::no) })
            .await?;
    println!("The schema is up to date.");
    if !role {
        println!(
            "The role oncekey_finance cannot read the schema finance: this one may make no roles. An administrator says: \
             create role oncekey_finance nologin; grant usage on schema finance to oncekey_finance; \
             grant select on all tables in schema finance to oncekey_finance;"
        );
    }
    Ok(ExitCode::SUCCESS)
}
