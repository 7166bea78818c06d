//! How the values that TOML has no type for are written: lengths of time, sizes, prices.

use std::time::Duration;

use rust_decimal::Decimal;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Value;

/// A length of time as text: `"10s"`, `"1h 30m"`.
pub(super) mod period {
    use super::*;

    pub fn serialize<S: Serializer>(period: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*period))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        match Value::deserialize(from)? {
            Value::String(text) => parse_period(&text).map_err(D::Error::custom),
            other => Err(D::Error::custom(not_a_period(&other))),
        }
    }
}

/// The same where leaving it out means a default that depends on other settings.
pub(super) mod optional_period {
    use super::*;

    pub fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => period::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        period::deserialize(from).map(Some)
    }
}

/// A length of time where `""` means for ever.
pub(super) mod forever {
    use super::*;

    pub fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => period::serialize(value, to),
            None => to.serialize_str(""),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        match Value::deserialize(from)? {
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) => parse_period(&text).map(Some).map_err(D::Error::custom),
            other => Err(D::Error::custom(not_a_period(&other))),
        }
    }
}

/// A number of bytes: `"10MiB"`, `"500kB"`, or a plain number.
pub(super) mod size {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&bytesize::ByteSize::b(*bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let value = Value::deserialize(from)?;
        let bytes = match &value {
            Value::String(text) => text.parse::<bytesize::ByteSize>().ok().map(|size| size.0),
            Value::Integer(bytes) => u64::try_from(*bytes).ok(),
            _ => None,
        };
        bytes
            .ok_or_else(|| D::Error::custom(format!("{value} is no size: write it like \"10MiB\"")))
    }
}

/// US dollars per million tokens, exactly as written.
///
/// TOML reads `0.1` as a binary fraction; its shortest text is what stands in the file again, for
/// up to 15 digits. Whoever needs more writes the number as text.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Price(pub Decimal);

impl Serialize for Price {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let text = match &value {
            Value::String(text) => text.clone(),
            Value::Float(number) => number.to_string(),
            Value::Integer(number) => number.to_string(),
            _ => String::new(),
        };
        match Decimal::from_str_exact(&text) {
            Ok(price) if !price.is_sign_negative() || price.is_zero() => Ok(Price(price)),
            _ => Err(D::Error::custom(format!(
                "{value} is no price: write US dollars per million tokens like 1.25"
            ))),
        }
    }
}

fn parse_period(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| not_a_period(&Value::String(text.to_owned())))
}

fn not_a_period(value: &Value) -> String {
    format!("{value} is no length of time: write it like \"10s\", \"5m\" or \"24h\"")
}
