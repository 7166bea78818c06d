//! What free-form JSON of a client's must satisfy before it is stored as `jsonb`.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Checks a JSON text without building it: no member given twice, no U+0000, no lone surrogate,
/// nesting of at most 127 levels (the parser's own limit), no number beyond what `numeric` holds.
/// The error is for the client.
pub fn check(text: &str) -> Result<(), String> {
    serde_json::from_str::<Checked>(text).map_err(|error| error.to_string())?;
    if numbers_fit(text) { Ok(()) } else { Err("a number is too long".to_owned()) }
}

/// Whether every number of a valid JSON text is short enough for PostgreSQL's `numeric`, which takes
/// 16,383 places behind the point: a mantissa of 1,000 characters and an exponent of three digits
/// stay far below.
fn numbers_fit(text: &str) -> bool {
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(inside) = bytes.next() {
                    match inside {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b'-' | b'0'..=b'9' => {
                let (mut mantissa, mut exponent, mut in_exponent) = (1, 0, false);
                while let Some(part) = bytes
                    .next_if(|next| matches!(next, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
                {
                    match part {
                        b'e' | b'E' => in_exponent = true,
                        b'0'..=b'9' if in_exponent => exponent += 1,
                        _ => mantissa += 1,
                    }
                }
                if mantissa > 1_000 || exponent > 3 {
                    return false;
                }
            }
            _ => {}
        }
    }
    true
}

struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Checker)
    }
}

struct Checker;

impl<'de> Visitor<'de> for Checker {
    type Value = Checked;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Checked, E> {
        if text.contains('\0') {
            return Err(E::custom("a string holds the character U+0000"));
        }
        Ok(Checked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        while items.next_element::<Checked>()?.is_some() {}
        Ok(Checked)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Checked, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if name.contains('\0') {
                return Err(A::Error::custom("a member name holds the character U+0000"));
            }
            members.next_value::<Checked>()?;
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
        }
        Ok(Checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad() {
        for good in ["{}", r#"{"n":123456789012345678901234567890,"a":[1,2.5,null,true,"x"]}"#] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        for (bad, part) in [
            (r#"{"a":{"b":1,"b":2}}"#, "`b`"),
            (r#"{"a":"\u0000"}"#, "U+0000"),
            (r#"{"\u0000":1}"#, "U+0000"),
            (r#"{"a":"\ud83e"}"#, "hex escape"),
            (deep.as_str(), "recursion limit"),
            (r#"{"a\\\"":1e-20000}"#, "number"),
            ("{\"a\":1", "EOF"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.contains(part), "{bad} said {error:?}");
        }
    }
}
