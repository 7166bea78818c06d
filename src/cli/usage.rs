//! `oncekey usage`: what was used and what it cost, for finance.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::Failure;
use super::database::{Named, with_store};
use super::table::{self, Align};
use crate::config::Config;
use crate::domain::ids::TenantId;
use crate::domain::usage_report::{Bound, UsageQuery, UsageRow};

#[derive(Args)]
pub struct Usage {
    #[command(flatten)]
    pub database: Named,
    /// A day (its start, UTC) or an RFC 3339 time.
    #[arg(long, value_name = "D")]
    from: String,
    /// The same; not included.
    #[arg(long, value_name = "D")]
    to: String,
    /// One tenant instead of all.
    #[arg(long)]
    tenant: Option<String>,
    /// What makes a row beside the tenant: day, model, both, or nothing.
    #[arg(long, value_name = "LIST", default_value = "day,model")]
    group_by: String,
    #[arg(long, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people, with a line of totals.
    Table,
    Csv,
    /// As `GET /v1/usage` answers, with the tenant in each row.
    Json,
}

#[derive(Serialize)]
struct Row {
    tenant_id: String,
    #[serde(flatten)]
    sums: UsageRow,
}

#[derive(Serialize)]
struct Report<'a> {
    from: Bound,
    to: Bound,
    rows: &'a [Row],
}

pub async fn run(command: Usage, config: Config) -> Result<ExitCode, Failure> {
    let (from, to) = (Some(command.from.as_str()), Some(command.to.as_str()));
    let query = UsageQuery::parse(from, to, Some(&command.group_by))
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let tenant = command.tenant.map(TenantId::new);
    let rows = with_store(&config, |store| async move {
        let tenants = match tenant {
            Some(tenant) => vec![tenant],
            None => store.billed_tenants().await.map_err(Failure::no)?,
        };
        let mut rows = Vec::new();
        for tenant in tenants {
            let sums = store.usage(tenant.clone(), None, query).await.map_err(Failure::no)?;
            let tenant_id = tenant.as_str();
            rows.extend(sums.into_iter().map(|sums| Row { tenant_id: tenant_id.to_owned(), sums }));
        }
        Ok(rows)
    })
    .await?;
    match command.format {
        Format::Table => print_table(&rows),
        Format::Csv => print_csv(&rows).map_err(Failure::no)?,
        Format::Json => {
            let report = Report { from: query.from, to: query.to, rows: &rows };
            println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::no)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(tenant: &str, sums: &UsageRow) -> Vec<String> {
    std::iter::once(tenant.to_owned()).chain(sums.cells()).collect()
}

fn print_table(rows: &[Row]) {
    let total = cells("total", &UsageRow::total(rows.iter().map(|row| &row.sums)));
    let lines: Vec<_> = rows.iter().map(|row| cells(&row.tenant_id, &row.sums)).collect();
    let text = ["tenant", "day", "model"];
    let heads: Vec<_> = std::iter::once("tenant")
        .chain(UsageRow::COLUMNS)
        .map(|head| (head, if text.contains(&head) { Align::Left } else { Align::Right }))
        .collect();
    table::print(&heads, &[lines, vec![total]].concat());
}

fn print_csv(rows: &[Row]) -> Result<(), csv::Error> {
    let mut writer = csv::Writer::from_writer(std::io::stdout());
    writer.write_record(std::iter::once("tenant_id").chain(UsageRow::COLUMNS))?;
    for row in rows {
        writer.write_record(cells(&row.tenant_id, &row.sums))?;
    }
    Ok(writer.flush()?)
}
