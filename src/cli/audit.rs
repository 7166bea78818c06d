//! `oncekey audit`.

use std::process::ExitCode;

use clap::Args;

use super::Failure;
use super::database::{Named, with_store};
use crate::config::Config;
use crate::domain::ids::TenantId;
use crate::store::{INVARIANTS, Kept};

#[derive(Args)]
pub struct Audit {
    #[command(flatten)]
    pub database: Named,
    /// Look at one tenant only.
    #[arg(long)]
    tenant: Option<String>,
}

/// A line per invariant, and under a broken one what breaks it.
pub async fn run(command: Audit, config: Config) -> Result<ExitCode, Failure> {
    let tenant = command.tenant.map(TenantId::new);
    let kept = Kept {
        published_events: config.retention.published_events,
        turns: config.retention.turns,
        provider_calls: config.retention.provider_calls,
    };
    with_store(&config, |store| async move {
        let mut broken = 0;
        for invariant in INVARIANTS {
            let findings = store.broken_of_kept(invariant, tenant.clone(), kept).await;
            let findings = findings.map_err(Failure::no)?;
            let verdict = if findings.is_empty() { "ok    " } else { "BROKEN" };
            println!("{verdict} {}: {}", invariant.name, invariant.promise);
            for finding in &findings {
                println!("         {}: {}", finding.tenant, finding.what);
            }
            broken += usize::from(!findings.is_empty());
        }
        Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    })
    .await
}
