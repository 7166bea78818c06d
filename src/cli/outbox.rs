//! `oncekey outbox list` and `redrive`: what waits for delivery, and what was given up.

use std::process::ExitCode;

use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use uuid::Uuid;

use super::Failure;
use super::database::{Named, with_store};
use super::table::{self, Align};
use crate::config::Config;
use crate::domain::ids::{EventId, TenantId};
use crate::store::{EventRow, Redriven, Store};

#[derive(Args)]
pub struct Outbox {
    #[command(flatten)]
    pub database: Named,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the events that wait for delivery, the oldest first.
    List {
        /// Those that were given up instead: dead letters.
        #[arg(long)]
        dead: bool,
        /// Of one tenant only.
        #[arg(long)]
        tenant: Option<String>,
        /// Show so many at most.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Deliver dead letters after all, from the beginning; sinks that have one do not get it again.
    Redrive {
        /// Ids of dead letters.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<Uuid>,
        /// Whose they are, where two tenants have the same id.
        #[arg(long)]
        tenant: Option<String>,
    },
}

pub async fn run(command: Outbox, config: Config) -> Result<ExitCode, Failure> {
    with_store(&config, |store| async move {
        match command.action {
            Action::List { dead, tenant, limit } => {
                list(&store, dead, tenant.map(TenantId::new), i64::from(limit)).await
            }
            Action::Redrive { ids, tenant } => {
                redrive(&store, ids, tenant.map(TenantId::new)).await
            }
        }
    })
    .await
}

async fn list(
    store: &Store,
    dead: bool,
    tenant: Option<TenantId>,
    limit: i64,
) -> Result<ExitCode, Failure> {
    let rows = match dead {
        true => store.dead_events(tenant, limit).await,
        false => store.events_in_line(tenant, limit).await,
    };
    let rows: Vec<_> = rows.map_err(Failure::no)?.into_iter().map(|row| cells(row, dead)).collect();
    let heads = [
        ("id", Align::Left),
        ("tenant", Align::Left),
        ("type", Align::Left),
        ("aggregate", Align::Left),
        ("created", Align::Left),
        ("attempts", Align::Right),
        (if dead { "dead since" } else { "next attempt" }, Align::Left),
        (if dead { "refused by" } else { "" }, Align::Left),
        ("last error", Align::Left),
    ];
    table::print(&heads, &rows);
    Ok(ExitCode::SUCCESS)
}

fn cells(row: EventRow, dead: bool) -> Vec<String> {
    let time = |at: Option<DateTime<Utc>>| {
        at.map_or("-".to_owned(), |at| at.to_rfc3339_opts(SecondsFormat::Secs, true))
    };
    vec![
        row.id.to_string(),
        row.tenant_id,
        row.kind,
        format!("{} {}", row.aggregatetype, row.aggregateid),
        time(Some(row.created_at)),
        row.attempts.to_string(),
        time(if dead { row.dead_at } else { row.next_attempt_at }),
        row.refused_by.join(" "),
        row.last_error.unwrap_or_default(),
    ]
}

/// Each id for itself: what can be redriven is, and the rest is said.
async fn redrive(
    store: &Store,
    ids: Vec<Uuid>,
    tenant: Option<TenantId>,
) -> Result<ExitCode, Failure> {
    let mut left = Vec::new();
    for id in ids {
        match store.redrive_event(EventId(id), tenant.clone()).await.map_err(Failure::no)? {
            Redriven::Waits => println!("{id} waits for delivery"),
            Redriven::NotDead => left.push(format!("{id} is no dead letter")),
            Redriven::Ambiguous => {
                left.push(format!("{id} is a dead letter of several tenants: add --tenant"));
            }
        }
    }
    if left.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::No(left.join("; "))) }
}
