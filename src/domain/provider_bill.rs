//! What a provider says it was used for: its export, read line by line into days and models.
//!
//! Which export it is shows in its columns: the usage and the cost export of Anthropic's console, the usage
//! export of OpenAI's platform, or a form of our own that anything can be brought into. Nothing is guessed: a
//! line that cannot be read is an error that names it, since a line left out would look like money saved.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, NaiveDate};
use rust_decimal::Decimal;

/// Tokens, summed; wide enough for any sum of 64-bit numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenSums {
    /// Without cached ones.
    pub input: i128,
    pub cache_read: i128,
    pub cache_write: i128,
    pub output: i128,
}

impl TokenSums {
    /// Of all kinds.
    pub fn total(&self) -> i128 {
        self.input + self.cache_read + self.cache_write + self.output
    }

    #[must_use]
    pub fn plus(self, more: TokenSums) -> TokenSums {
        TokenSums {
            input: self.input + more.input,
            cache_read: self.cache_read + more.cache_read,
            cache_write: self.cache_write + more.cache_write,
            output: self.output + more.output,
        }
    }

    #[must_use]
    pub fn minus(self, less: TokenSums) -> TokenSums {
        TokenSums {
            input: self.input - less.input,
            cache_read: self.cache_read - less.cache_read,
            cache_write: self.cache_write - less.cache_write,
            output: self.output - less.output,
        }
    }

    /// Each kind by its name.
    pub fn kinds(&self) -> [(&'static str, i128); 4] {
        [
            ("input", self.input),
            ("cache read", self.cache_read),
            ("cache write", self.cache_write),
            ("output", self.output),
        ]
    }
}

/// What the provider counted for a model on a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Billed {
    /// `None`: the export tells no tokens.
    pub tokens: Option<TokenSums>,
    /// `None`: the export tells no cost. US dollars.
    pub cost: Option<Decimal>,
    /// Lines that were summed; each cost may be rounded to a cent.
    pub lines: u32,
}

/// An export: what was counted by day and the provider's name of a model.
pub type Bill = BTreeMap<(NaiveDate, String), Billed>;

/// Why an export cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BillError {
    #[error("its columns are those of no export that is known here: {0}; see docs/finance.md")]
    Columns(String),
    #[error("two of its columns are called {0}: which of them counts cannot be told")]
    Twice(String),
    #[error(
        "line {line} has {cells} cells under {heads} heads: a comma or a quote in it stands where none belongs"
    )]
    Cells { line: u64, cells: usize, heads: usize },
    #[error("line {line}: {column} is {text:?}, which is not {wanted}")]
    Value { line: u64, column: String, text: String, wanted: &'static str },
    #[error("line {line} names no model: export it grouped by day and model")]
    NoModel { line: u64 },
    #[error(
        "line {line}: {cached} of the input were cached, and that is more than the {input} there were"
    )]
    Cached { line: u64, cached: i128, input: i128 },
    #[error("it has no lines")]
    Empty,
}

/// The columns of one kind of export. A list is summed; those that are missing count as nothing.
struct Layout {
    name: &'static str,
    day: &'static str,
    model: &'static str,
    input: &'static [&'static str],
    /// Whether `input` includes what was read from the cache.
    input_has_cached: bool,
    cache_read: &'static [&'static str],
    cache_write: &'static [&'static str],
    output: &'static [&'static str],
    cost: &'static [&'static str],
    needs: &'static [&'static str],
}

impl Layout {
    /// Whether a column is read, and not passed over.
    fn reads(&self, column: &str) -> bool {
        let lists = [self.input, self.cache_read, self.cache_write, self.output, self.cost];
        [self.day, self.model].contains(&column) || lists.iter().any(|list| list.contains(&column))
    }
}

const LAYOUTS: &[Layout] = &[
    Layout {
        name: "Anthropic usage",
        day: "usage_date_utc",
        model: "model_version",
        input: &["usage_input_tokens_no_cache"],
        input_has_cached: false,
        cache_read: &["usage_input_tokens_cache_read"],
        cache_write: &[
            "usage_input_tokens_cache_write",
            "usage_input_tokens_cache_write_5m",
            "usage_input_tokens_cache_write_1h",
        ],
        output: &["usage_output_tokens"],
        cost: &[],
        needs: &["usage_input_tokens_no_cache", "usage_output_tokens"],
    },
    Layout {
        name: "Anthropic cost",
        day: "usage_date_utc",
        model: "model",
        input: &[],
        input_has_cached: false,
        cache_read: &[],
        cache_write: &[],
        output: &[],
        cost: &["cost_usd"],
        needs: &["cost_usd"],
    },
    openai("start_time_iso"),
    openai("start_time"),
    Layout {
        name: "oncekey",
        day: "day",
        model: "model",
        input: &["input_tokens"],
        input_has_cached: false,
        cache_read: &["cache_read_tokens"],
        cache_write: &["cache_write_tokens"],
        output: &["output_tokens"],
        cost: &["cost_usd"],
        needs: &["input_tokens", "output_tokens"],
    },
    Layout {
        name: "oncekey cost",
        day: "day",
        model: "model",
        input: &[],
        input_has_cached: false,
        cache_read: &[],
        cache_write: &[],
        output: &[],
        cost: &["cost_usd"],
        needs: &["cost_usd"],
    },
];

const fn openai(day: &'static str) -> Layout {
    Layout {
        name: "OpenAI usage",
        day,
        model: "model",
        input: &["input_tokens"],
        input_has_cached: true,
        cache_read: &["input_cached_tokens"],
        cache_write: &[],
        output: &["output_tokens"],
        cost: &[],
        needs: &["input_tokens", "output_tokens"],
    }
}

/// Reads the lines of one export.
pub struct BillReader {
    layout: &'static Layout,
    columns: Vec<String>,
    bill: Bill,
}

impl fmt::Debug for BillReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BillReader").field("layout", &self.layout.name).finish_non_exhaustive()
    }
}

impl BillReader {
    /// By the heads of the columns.
    ///
    /// # Errors
    /// [`BillError::Columns`], [`BillError::Twice`].
    pub fn new<'a>(heads: impl IntoIterator<Item = &'a str>) -> Result<Self, BillError> {
        let clean = |head: &str| head.trim_start_matches('\u{feff}').trim().to_ascii_lowercase();
        let columns: Vec<String> = heads.into_iter().map(clean).collect();
        let has = |name: &&str| columns.iter().any(|column| column == name);
        let fits = |layout: &&Layout| {
            has(&layout.day) && has(&layout.model) && layout.needs.iter().all(has)
        };
        let layout = LAYOUTS.iter().find(fits);
        let layout = layout.ok_or_else(|| BillError::Columns(columns.join(", ")))?;
        let again = |(place, column): &(usize, &String)| columns[..*place].contains(column);
        let read = |(_, column): &(usize, &String)| layout.reads(column);
        if let Some((_, column)) = columns.iter().enumerate().filter(read).find(again) {
            return Err(BillError::Twice(column.clone()));
        }
        Ok(Self { layout, columns, bill: Bill::new() })
    }

    /// Whose export it is, for people.
    pub fn name(&self) -> &'static str {
        self.layout.name
    }

    /// Adds a line. Cells beyond the heads may be there where they are empty.
    ///
    /// # Errors
    /// All but [`BillError::Columns`], [`BillError::Twice`] and [`BillError::Empty`].
    pub fn line(&mut self, line: u64, cells: &[&str]) -> Result<(), BillError> {
        let heads = self.columns.len();
        let beyond = cells.iter().skip(heads).any(|cell| !cell.trim().is_empty());
        if cells.len() < heads || beyond {
            return Err(BillError::Cells { line, cells: cells.len(), heads });
        }
        let at = |name: &str| {
            let place = self.columns.iter().position(|column| column == name);
            place.and_then(|place| cells.get(place)).map_or("", |cell| cell.trim())
        };
        let tokens = |columns: &[&str]| -> Result<i128, BillError> {
            let cells = columns.iter().map(|column| (column, at(column)));
            cells.filter(|(_, text)| !text.is_empty()).try_fold(0, |sum, (column, text)| {
                let number = text.parse::<u64>().map_err(|_| BillError::Value {
                    line,
                    column: (*column).to_owned(),
                    text: text.to_owned(),
                    wanted: "a number of tokens",
                })?;
                Ok(sum + i128::from(number))
            })
        };
        let layout = self.layout;
        let (input, cache_read) = (tokens(layout.input)?, tokens(layout.cache_read)?);
        let counted = TokenSums {
            input: if layout.input_has_cached { input - cache_read } else { input },
            cache_read,
            cache_write: tokens(layout.cache_write)?,
            output: tokens(layout.output)?,
        };
        if counted.input < 0 {
            return Err(BillError::Cached { line, cached: cache_read, input });
        }
        let mut cost = None;
        for column in layout.cost {
            let text = at(column);
            if text.is_empty() {
                continue;
            }
            let amount = Decimal::from_str_exact(text).map_err(|_| BillError::Value {
                line,
                column: (*column).to_owned(),
                text: text.to_owned(),
                wanted: "an amount in US dollars",
            })?;
            cost = Some(amount);
        }
        let model = at(layout.model);
        if model.is_empty() {
            // A day on which nothing was used.
            let nothing = counted.total() == 0 && cost.as_ref().is_none_or(Decimal::is_zero);
            return if nothing { Ok(()) } else { Err(BillError::NoModel { line }) };
        }
        let day = day(at(layout.day)).ok_or_else(|| BillError::Value {
            line,
            column: layout.day.to_owned(),
            text: at(layout.day).to_owned(),
            wanted: "a day",
        })?;
        let tells_tokens = !layout.input.is_empty();
        let billed = self.bill.entry((day, model.to_owned())).or_default();
        if tells_tokens {
            billed.tokens = Some(billed.tokens.unwrap_or_default().plus(counted));
        }
        if let Some(cost) = cost {
            billed.cost = Some(billed.cost.unwrap_or_default().saturating_add(cost));
        }
        billed.lines = billed.lines.saturating_add(1);
        Ok(())
    }

    /// All of it.
    ///
    /// # Errors
    /// [`BillError::Empty`].
    pub fn bill(self) -> Result<Bill, BillError> {
        if self.bill.is_empty() { Err(BillError::Empty) } else { Ok(self.bill) }
    }
}

/// A day, the day of a time in UTC, or that of a number of seconds since 1970.
fn day(text: &str) -> Option<NaiveDate> {
    if text.len() == 10
        && let Ok(day) = text.parse()
    {
        return Some(day);
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.to_utc().date_naive());
    }
    let seconds = text.parse().ok()?;
    DateTime::from_timestamp(seconds, 0).map(|time| time.date_naive())
}

/// Whether an export means this model: vendors answer to an alias (`claude-haiku-4-5`) and bill the dated
/// name behind it (`claude-haiku-4-5-20251001`, `gpt-4o-2024-08-06`).
pub fn is_model(billed: &str, upstream: &str) -> bool {
    let Some(rest) = billed.strip_prefix(upstream) else { return false };
    let dated = rest.strip_prefix('-').is_some_and(|date| {
        let shape: String =
            date.chars().map(|it| if it.is_ascii_digit() { '0' } else { it }).collect();
        shape == "00000000" || shape == "0000-00-00"
    });
    rest.is_empty() || dated
}

#[cfg(test)]
#[path = "provider_bill_tests.rs"]
mod tests;
