//! `oncekey reconcile`: a provider's export beside our own calls and receipts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use chrono::NaiveTime;
use clap::{Args, ValueEnum};
use rust_decimal::Decimal;

use super::Failure;
use super::database::{Named, with_store};
use super::table::{self, Align};
use crate::config::Config;
use crate::domain::provider_bill::{Bill, BillReader};
use crate::domain::reconcile::{CallSums, Comparison, Line, OurCalls, Verdict, compare};
use crate::store::{ReceiptCheck, Span, Store};

#[derive(Args)]
pub struct Reconcile {
    #[command(flatten)]
    pub database: Named,
    /// The export, with a line of heads: Anthropic's usage or cost, OpenAI's usage, or our own form
    /// (day, model, input_tokens, output_tokens and, where there are any, cache_read_tokens,
    /// cache_write_tokens, cost_usd).
    #[arg(long, value_name = "FILE")]
    provider_csv: PathBuf,
    /// A provider of the configuration that the export is of; may be given again. By default all whose
    /// models it names.
    #[arg(long, value_name = "NAME")]
    provider: Vec<String>,
    /// What an export calls a model, where that is not the vendor's name: "Claude X=claude-x".
    #[arg(long, value_name = "THEIRS=UPSTREAM", value_parser = pair)]
    map: Vec<(String, String)>,
    /// The share that may differ, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    tolerance: Decimal,
    #[arg(long, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people, with what it comes to.
    Table,
    /// A line for each day and model.
    Csv,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (theirs, ours) = text.split_once('=').ok_or("it has no =")?;
    Ok((theirs.trim().to_owned(), ours.trim().to_owned()))
}

/// 0 where everything agrees, or differs by no more than calls of unknown usage explain; 1 where not.
pub async fn run(command: Reconcile, config: Config) -> Result<ExitCode, Failure> {
    if command.tolerance.is_sign_negative() || command.tolerance > Decimal::ONE_HUNDRED {
        return Err(Failure::Usage("--tolerance: a share from 0 to 100 percent".into()));
    }
    if let Some(name) = command.provider.iter().find(|name| !config.providers.contains_key(*name)) {
        let known = config.providers.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("--provider: there is no {name:?}: one of {known}")));
    }
    let (name, bill) = read(&command.provider_csv)?;
    let span = span(&bill)?;
    let (mut ours, receipts) = with_store(&config, |store| collect(store, span, &config)).await?;
    for calls in &mut ours {
        // From before there was a book of prices: what the configuration says now.
        if let Some(model) = config.models.get(&calls.upstream) {
            calls.upstream.clone_from(&model.upstream);
        }
    }
    let names: BTreeMap<_, _> = command.map.into_iter().collect();
    let comparison = compare(&bill, &ours, &names, &command.provider);
    let tolerance = command.tolerance / Decimal::ONE_HUNDRED;
    match command.format {
        Format::Table => print_table(name, &comparison, tolerance, &receipts),
        Format::Csv => print_csv(&comparison, tolerance).map_err(Failure::no)?,
    }
    let differing =
        comparison.values().filter(|line| line.verdict(tolerance) == Verdict::Differs).count();
    if differing == 0 && receipts.differing == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::No(format!(
        "it does not reconcile: {differing} of {} lines differ, and {} receipts are not what their calls say",
        comparison.len(),
        receipts.differing
    )))
}

fn read(file: &Path) -> Result<(&'static str, Bill), Failure> {
    let wrong = |what: &dyn std::fmt::Display| Failure::No(format!("{}: {what}", file.display()));
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).from_path(file).map_err(|error| wrong(&error))?;
    let heads = reader.headers().map_err(|error| wrong(&error))?.clone();
    let mut bill = BillReader::new(heads.iter()).map_err(|error| wrong(&error))?;
    for record in reader.records() {
        let record = record.map_err(|error| wrong(&error))?;
        let line = record.position().map_or(0, csv::Position::line);
        let cells: Vec<&str> = record.iter().collect();
        bill.line(line, &cells).map_err(|error| wrong(&error))?;
    }
    let name = bill.name();
    Ok((name, bill.bill().map_err(|error| wrong(&error))?))
}

/// The whole days of an export.
fn span(bill: &Bill) -> Result<Span, Failure> {
    let first = bill.keys().map(|(day, _)| *day).min();
    let last = bill.keys().map(|(day, _)| *day).max().and_then(|day| day.succ_opt());
    let at = |day: chrono::NaiveDate| day.and_time(NaiveTime::MIN).and_utc();
    let (from, to) = first.zip(last).ok_or_else(|| Failure::No("it names no day".into()))?;
    Ok(Span { from: at(from), to: at(to) })
}

async fn collect(
    store: Store,
    span: Span,
    config: &Config,
) -> Result<(Vec<OurCalls>, ReceiptCheck), Failure> {
    let (mut ours, mut receipts) = (Vec::new(), ReceiptCheck::default());
    for tenant in store.calling_tenants().await.map_err(Failure::no)? {
        let calls = store.calls_by_day(tenant, span, config.retry.give_up_after);
        ours.extend(calls.await.map_err(Failure::no)?);
    }
    for tenant in store.billed_tenants().await.map_err(Failure::no)? {
        let one = store.check_receipts(tenant, span).await.map_err(Failure::no)?;
        receipts.receipts += one.receipts;
        receipts.without_calls += one.without_calls;
        receipts.differing += one.differing;
        receipts.unknown += one.unknown;
    }
    Ok((ours, receipts))
}

const COLUMNS: [&str; 14] = [
    "day",
    "model",
    "provider_tokens",
    "committed_tokens",
    "wasted_tokens",
    "difference_tokens",
    "provider_usd",
    "committed_usd",
    "wasted_usd",
    "difference_usd",
    "calls",
    "unknown_calls",
    "wasted_by_kind",
    "verdict",
];

/// A line as text; what is not told is empty.
fn cells(day: &chrono::NaiveDate, model: &str, line: &Line, tolerance: Decimal) -> Vec<String> {
    let mut wasted = CallSums::default();
    for sums in line.wasted.values() {
        wasted.tokens = wasted.tokens.plus(sums.tokens);
        wasted.cost += sums.cost;
    }
    let text = |number: Option<i128>| number.map(|it| it.to_string()).unwrap_or_default();
    let usd = |amount: Option<Decimal>| amount.map(|it| it.to_string()).unwrap_or_default();
    let theirs = line.theirs.unwrap_or_default();
    let by_kind: Vec<_> =
        line.wasted.iter().map(|(why, sums)| format!("{why} {}", sums.calls)).collect();
    let verdict = match line.verdict(tolerance) {
        Verdict::Agrees => "agrees".to_owned(),
        Verdict::Unknown => "unknown".to_owned(),
        Verdict::Differs => format!("DIFFERS{}", by_which(line)),
    };
    vec![
        day.to_string(),
        model.to_owned(),
        text(theirs.tokens.map(|tokens| tokens.total())),
        text(Some(line.committed.tokens.total())),
        text(Some(wasted.tokens.total())),
        text(line.tokens_beyond().map(|tokens| tokens.total())),
        usd(theirs.cost),
        usd(Some(line.committed.cost)),
        usd(Some(wasted.cost)),
        usd(line.cost_beyond()),
        line.ours().calls.to_string(),
        line.ours().unknown.to_string(),
        by_kind.join("; "),
        verdict,
    ]
}

/// In which kinds of tokens, or why there is nothing to compare.
fn by_which(line: &Line) -> String {
    match (line.theirs, line.tokens_beyond()) {
        (None, _) => " (not in the export)".to_owned(),
        (Some(_), _) if line.ours().calls == 0 => " (no call of ours)".to_owned(),
        (_, Some(beyond)) => {
            let kinds = beyond.kinds().into_iter().filter(|(_, tokens)| *tokens != 0);
            let kinds: Vec<_> = kinds.map(|(kind, tokens)| format!("{kind} {tokens:+}")).collect();
            if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) }
        }
        (_, None) => String::new(),
    }
}

fn print_table(name: &str, comparison: &Comparison, tolerance: Decimal, receipts: &ReceiptCheck) {
    let rows: Vec<_> =
        comparison.iter().map(|((day, model), line)| cells(day, model, line, tolerance)).collect();
    let left = ["day", "model", "wasted_by_kind", "verdict"];
    let align = |head: &str| if left.contains(&head) { Align::Left } else { Align::Right };
    table::print(&COLUMNS.map(|head| (head, align(head))), &rows);
    let (mut committed, mut wasted) = (CallSums::default(), BTreeMap::<&str, CallSums>::new());
    let mut unknown = 0;
    let add = |to: &mut CallSums, sums: &CallSums| {
        to.calls += sums.calls;
        to.cost += sums.cost;
    };
    for line in comparison.values() {
        add(&mut committed, &line.committed);
        for (why, sums) in &line.wasted {
            add(wasted.entry(why).or_default(), sums);
        }
        unknown += line.ours().unknown;
    }
    println!();
    println!("export: {name}");
    println!("committed: {} USD in {} calls", committed.cost, committed.calls);
    for (why, sums) in wasted {
        println!("wasted, {why}: {} USD in {} calls", sums.cost, sums.calls);
    }
    println!("unknown: {unknown} calls did not tell their usage");
    println!(
        "receipts: {} of these days, {} with unknown usage, {} whose calls are gone, {} that are not what their calls say",
        receipts.receipts, receipts.unknown, receipts.without_calls, receipts.differing
    );
}

fn print_csv(comparison: &Comparison, tolerance: Decimal) -> Result<(), csv::Error> {
    let mut writer = csv::Writer::from_writer(std::io::stdout());
    writer.write_record(COLUMNS)?;
    for ((day, model), line) in comparison {
        writer.write_record(cells(day, model, line, tolerance))?;
    }
    Ok(writer.flush()?)
}
