//! What finance asks for: sums of receipts over a range of time, and how they are written.
//!
//! A sum is over what is known. Where nothing is known it is empty, never 0, and how many operations
//! have an unknown usage stands beside it.

use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveTime, SecondsFormat, Utc};
use rust_decimal::Decimal;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AnyOfBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type,
};
use utoipa::{PartialSchema, ToSchema};

/// An end of a range, as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The start of a day, UTC.
    Day(NaiveDate),
    Time(DateTime<Utc>),
}

/// Which receipts are summed, and what makes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageQuery {
    pub from: Bound,
    /// Not included.
    pub to: Bound,
    pub by_day: bool,
    pub by_model: bool,
}

/// Why there is no such report, for whoever asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageQueryError {
    #[error("{0} is missing: a day like 2026-08-19, or a time like 2026-08-19T12:00:00Z")]
    Missing(&'static str),
    #[error(
        "{name}: {text:?} is neither a day like 2026-08-19 nor a time like 2026-08-19T12:00:00Z (in a query a + is written %2B)"
    )]
    NotATime { name: &'static str, text: String },
    #[error("from must be before to, which is not included")]
    Empty,
    #[error("group_by takes day, model, both with a comma between, or nothing for one total")]
    Grouping,
}

impl UsageQuery {
    /// Reads what was asked for. No `group_by` at all means by day and model.
    pub fn parse(
        from: Option<&str>,
        to: Option<&str>,
        group_by: Option<&str>,
    ) -> Result<Self, UsageQueryError> {
        let (from, to) = (bound("from", from)?, bound("to", to)?);
        if from.start() >= to.start() {
            return Err(UsageQueryError::Empty);
        }
        let (mut by_day, mut by_model) = (false, false);
        for word in words(group_by.unwrap_or("day,model")) {
            let group = match word {
                "day" => &mut by_day,
                "model" => &mut by_model,
                _ => return Err(UsageQueryError::Grouping),
            };
            if std::mem::replace(group, true) {
                return Err(UsageQueryError::Grouping);
            }
        }
        Ok(Self { from, to, by_day, by_model })
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    let nothing = list.trim().is_empty();
    list.split(',').map(str::trim).filter(move |_| !nothing)
}

fn bound(name: &'static str, text: Option<&str>) -> Result<Bound, UsageQueryError> {
    let text = text.map(str::trim).filter(|text| !text.is_empty());
    let text = text.ok_or(UsageQueryError::Missing(name))?;
    // Ten characters: chrono reads years of more digits, which no calendar of the database has.
    if text.len() == 10
        && let Ok(day) = text.parse()
    {
        return Ok(Bound::Day(day));
    }
    DateTime::parse_from_rfc3339(text)
        .map(|time| Bound::Time(time.to_utc()))
        .map_err(|_| UsageQueryError::NotATime { name, text: text.to_owned() })
}

impl Bound {
    /// The moment that it stands for.
    pub fn start(self) -> DateTime<Utc> {
        match self {
            Bound::Day(day) => day.and_time(NaiveTime::MIN).and_utc(),
            Bound::Time(time) => time,
        }
    }
}

impl PartialSchema for Bound {
    fn schema() -> RefOr<Schema> {
        let text = |format| {
            let format = Some(SchemaFormat::KnownFormat(format));
            ObjectBuilder::new().schema_type(Type::String).format(format)
        };
        let (day, time) = (text(KnownFormat::Date), text(KnownFormat::DateTime));
        AnyOfBuilder::new().item(day).item(time).into()
    }
}

impl ToSchema for Bound {}

impl fmt::Display for Bound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Day(day) => day.fmt(out),
            Bound::Time(time) => out.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A row of sums. Decimals, since no sum of 64-bit numbers may overflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsageRow {
    /// `None` where days are not told apart; so the next.
    #[schema(required)]
    pub day: Option<NaiveDate>,
    #[schema(required)]
    pub model: Option<String>,
    pub operations: i64,
    #[serde(serialize_with = "number")]
    #[schema(required, value_type = Option<f64>)]
    pub input_tokens: Option<Decimal>,
    #[serde(serialize_with = "number")]
    #[schema(required, value_type = Option<f64>)]
    pub cache_read_tokens: Option<Decimal>,
    #[serde(serialize_with = "number")]
    #[schema(required, value_type = Option<f64>)]
    pub cache_write_tokens: Option<Decimal>,
    #[serde(serialize_with = "number")]
    #[schema(required, value_type = Option<f64>)]
    pub output_tokens: Option<Decimal>,
    /// US dollars, nine places.
    #[serde(serialize_with = "number")]
    #[schema(required, value_type = Option<f64>)]
    pub cost_usd: Option<Decimal>,
    /// Operations of this row whose usage, and so whose cost, is not known.
    pub unknown_usage: i64,
}

/// A JSON number with all its places.
fn number<S: Serializer>(value: &Option<Decimal>, to: S) -> Result<S::Ok, S::Error> {
    let Some(value) = value else { return to.serialize_none() };
    let text = RawValue::from_string(value.to_string()).map_err(serde::ser::Error::custom)?;
    text.serialize(to)
}

impl UsageRow {
    /// The heads of [`UsageRow::cells`].
    pub const COLUMNS: [&str; 9] = [
        "day",
        "model",
        "operations",
        "input_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "output_tokens",
        "cost_usd",
        "unknown_usage",
    ];

    /// The row as text; what is not known is empty.
    pub fn cells(&self) -> [String; 9] {
        let number = |value: Option<Decimal>| value.map(|it| it.to_string()).unwrap_or_default();
        [
            self.day.map(|day| day.to_string()).unwrap_or_default(),
            self.model.clone().unwrap_or_default(),
            self.operations.to_string(),
            number(self.input_tokens),
            number(self.cache_read_tokens),
            number(self.cache_write_tokens),
            number(self.output_tokens),
            number(self.cost_usd),
            self.unknown_usage.to_string(),
        ]
    }

    /// The sum of rows; empty where nothing is known in any of them, or beyond what a decimal holds.
    pub fn total<'a>(rows: impl IntoIterator<Item = &'a UsageRow>) -> UsageRow {
        let mut total = UsageRow {
            day: None,
            model: None,
            operations: 0,
            input_tokens: None,
            cache_read_tokens: None,
            cache_write_tokens: None,
            output_tokens: None,
            cost_usd: None,
            unknown_usage: 0,
        };
        let sum = |so_far: Option<Decimal>, more: Option<Decimal>| match (so_far, more) {
            (Some(so_far), Some(more)) => so_far.checked_add(more),
            (one, None) | (None, one) => one,
        };
        for row in rows {
            total.operations = total.operations.saturating_add(row.operations);
            total.unknown_usage = total.unknown_usage.saturating_add(row.unknown_usage);
            total.input_tokens = sum(total.input_tokens, row.input_tokens);
            total.cache_read_tokens = sum(total.cache_read_tokens, row.cache_read_tokens);
            total.cache_write_tokens = sum(total.cache_write_tokens, row.cache_write_tokens);
            total.output_tokens = sum(total.output_tokens, row.output_tokens);
            total.cost_usd = sum(total.cost_usd, row.cost_usd);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(from: &str, to: &str, group_by: Option<&str>) -> Result<UsageQuery, UsageQueryError> {
        UsageQuery::parse(Some(from), Some(to), group_by)
    }

    #[test]
    fn ranges_are_days_or_times_in_utc() {
        for (from, to, expected) in [
            ("2026-08-01", "2026-09-01", Ok(("2026-08-01", "2026-09-01"))),
            ("2026-08-01T00:00:00Z", "2026-08-02", Ok(("2026-08-01T00:00:00Z", "2026-08-02"))),
            (
                "2026-08-01T02:00:00+02:00",
                "2026-08-01T00:00:00.5Z",
                Ok(("2026-08-01T00:00:00Z", "2026-08-01T00:00:00.500Z")),
            ),
            ("2028-02-29", "2028-03-01", Ok(("2028-02-29", "2028-03-01"))),
            ("2026-08-01", "2026-08-01", Err("before to")),
            ("2026-08-02", "2026-08-01", Err("before to")),
            ("2026-08-01", "2026-08-01T00:00:00Z", Err("before to")),
            ("2026-02-29", "2026-03-01", Err("from: \"2026-02-29\" is neither")),
            ("2026-08-01", "2026-08-32", Err("to: \"2026-08-32\" is neither")),
            ("2026-8-1", "2026-09-01", Err("is neither")),
            ("+22026-08-01", "2026-09-01", Err("is neither")),
            ("2026-08-01T00:00:00", "2026-09-01", Err("is neither")),
            ("2026-08-01T00:00:00 02:00", "2026-09-01", Err("a + is written %2B")),
            ("yesterday", "2026-09-01", Err("is neither")),
            ("", "2026-09-01", Err("from is missing")),
        ] {
            match (parse(from, to, None), expected) {
                (Ok(query), Ok(shown)) => {
                    assert_eq!((&*query.from.to_string(), &*query.to.to_string()), shown);
                }
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{from} {to}: {error}");
                }
                (found, _) => panic!("{from} {to}: {found:?}"),
            }
        }
        let missing = UsageQuery::parse(Some("2026-08-01"), None, None);
        assert_eq!(missing, Err(UsageQueryError::Missing("to")));
    }

    #[test]
    fn rows_are_made_by_day_and_model_in_either_order_or_by_nothing() {
        for (asked, expected) in [
            (None, Some((true, true))),
            (Some("day,model"), Some((true, true))),
            (Some("model, day"), Some((true, true))),
            (Some("day"), Some((true, false))),
            (Some("model"), Some((false, true))),
            (Some(""), Some((false, false))),
            (Some(" "), Some((false, false))),
            (Some("day,day"), None),
            (Some("day,"), None),
            (Some("tenant"), None),
            (Some("Day"), None),
        ] {
            let query = parse("2026-08-01", "2026-09-01", asked);
            let found = query.ok().map(|query| (query.by_day, query.by_model));
            assert_eq!(found, expected, "{asked:?}");
        }
    }

    #[test]
    fn numbers_keep_their_places_and_what_is_unknown_stays_so() {
        let unknown = UsageRow {
            model: Some("default".into()),
            operations: 1,
            unknown_usage: 1,
            ..UsageRow::total([])
        };
        let known = UsageRow {
            day: Some("2028-02-29".parse().unwrap()),
            input_tokens: Some(Decimal::from(27)),
            output_tokens: Some(Decimal::from(i64::MAX) + Decimal::from(1)),
            cost_usd: Some(Decimal::new(162_000, 9)),
            unknown_usage: 0,
            ..unknown.clone()
        };
        assert_eq!(
            serde_json::to_string(&known).unwrap(),
            r#"{"day":"2028-02-29","model":"default","operations":1,"input_tokens":27,"cache_read_tokens":null,"cache_write_tokens":null,"output_tokens":9223372036854775808,"cost_usd":0.000162000,"unknown_usage":0}"#
        );
        let cells = ["", "default", "1", "", "", "", "", "", "1"];
        assert_eq!(unknown.cells(), cells);
        let total = UsageRow::total([&known, &unknown, &known]);
        assert_eq!((total.operations, total.unknown_usage), (3, 1));
        assert_eq!(total.cells()[3..8], ["54", "", "", "18446744073709551616", "0.000324000"]);
        assert_eq!(UsageRow::COLUMNS.len(), total.cells().len());
    }
}
