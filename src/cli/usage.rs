//! `oncekey usage`: what was used and what it cost, for finance. Printed tenant by tenant as it is summed, so
//! that a report of many tenants needs no more memory than one of few.

use std::io::{StdoutLock, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::Failure;
use super::database::{Named, with_store};
use super::table::{Align, Table};
use crate::config::Config;
use crate::domain::ids::TenantId;
use crate::domain::usage_report::{UsageQuery, UsageRow};

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
struct Row<'a> {
    tenant_id: &'a str,
    #[serde(flatten)]
    sums: &'a UsageRow,
}

pub async fn run(command: Usage, config: Config) -> Result<ExitCode, Failure> {
    let (from, to) = (Some(command.from.as_str()), Some(command.to.as_str()));
    let query = UsageQuery::parse(from, to, Some(&command.group_by))
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let tenant = command.tenant.map(TenantId::new);
    with_store(&config, |store| async move {
        let tenants = match tenant {
            Some(tenant) => vec![tenant],
            None => store.billed_tenants().await.map_err(Failure::no)?,
        };
        let mut report = Report::begin(command.format, &query)?;
        for tenant in tenants {
            let sums = store.usage(tenant.clone(), None, query).await.map_err(Failure::no)?;
            report.rows(tenant.as_str(), &sums)?;
        }
        report.end()?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

/// A report that is being printed.
enum Report {
    Table { table: Table, total: UsageRow },
    Csv(csv::Writer<std::io::Stdout>),
    Json { rows: usize },
}

impl Report {
    fn begin(format: Format, query: &UsageQuery) -> Result<Self, Failure> {
        let columns = || std::iter::once("tenant").chain(UsageRow::COLUMNS);
        Ok(match format {
            Format::Table => {
                let text = ["tenant", "day", "model"];
                let align = |head| if text.contains(&head) { Align::Left } else { Align::Right };
                let heads: Vec<_> = columns().map(|head| (head, align(head))).collect();
                Report::Table { table: Table::new(&heads), total: UsageRow::total([]) }
            }
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(std::io::stdout());
                let heads = std::iter::once("tenant_id").chain(UsageRow::COLUMNS);
                writer.write_record(heads).map_err(Failure::no)?;
                Report::Csv(writer)
            }
            Format::Json => {
                let head = format!(
                    "{{\n  \"from\": \"{}\",\n  \"to\": \"{}\",\n  \"rows\": [",
                    query.from, query.to
                );
                print(|out| out.write_all(head.as_bytes()))?;
                Report::Json { rows: 0 }
            }
        })
    }

    fn rows(&mut self, tenant: &str, sums: &[UsageRow]) -> Result<(), Failure> {
        for sums in sums {
            match self {
                Report::Table { table, total } => {
                    *total = UsageRow::total([&*total, sums]);
                    table.row(cells(tenant, sums));
                }
                Report::Csv(writer) => {
                    writer.write_record(cells(tenant, sums)).map_err(Failure::no)?;
                }
                Report::Json { rows } => {
                    let row = Row { tenant_id: tenant, sums };
                    let row = serde_json::to_string_pretty(&row).map_err(Failure::no)?;
                    let row = row.replace('\n', "\n    ");
                    let comma = if *rows == 0 { "" } else { "," };
                    print(|out| write!(out, "{comma}\n    {row}"))?;
                    *rows += 1;
                }
            }
        }
        Ok(())
    }

    fn end(self) -> Result<(), Failure> {
        match self {
            Report::Table { mut table, total } => {
                table.row(cells("total", &total));
                table.end();
                Ok(())
            }
            Report::Csv(mut writer) => writer.flush().map_err(Failure::no),
            Report::Json { rows: 0 } => print(|out| out.write_all(b"]\n}\n")),
            Report::Json { .. } => print(|out| out.write_all(b"\n  ]\n}\n")),
        }
    }
}

/// Whoever reads may go away; then this has nothing left to do.
fn print(write: impl FnOnce(&mut StdoutLock<'_>) -> std::io::Result<()>) -> Result<(), Failure> {
    write(&mut std::io::stdout().lock()).map_err(Failure::no)
}

fn cells(tenant: &str, sums: &UsageRow) -> Vec<String> {
    std::iter::once(tenant.to_owned()).chain(sums.cells()).collect()
}
