//! JSON from outside: the objects of requests, what free-form JSON of a client's must satisfy before it
//! is stored as `jsonb`, and values that a model wrote.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::text::storable;

/// Reads a JSON object into a type; the error is for the client and names what is wrong. Asked for by its
/// brace, since a derived reader takes an array of the members' values for one as well.
pub(super) fn object<'a, T: Deserialize<'a>>(name: &str, text: &'a str) -> Result<T, String> {
    // JSON's own white space: a form feed, say, is none.
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if !text.starts_with('{') {
        return Err(format!("{name} must be a JSON object."));
    }
    serde_json::from_str(text).map_err(|error| format!("{name}: {error}."))
}

/// A request's `metadata` in its client's own text: an object, or none where it is null.
pub(super) fn metadata(raw: &str) -> Result<Option<String>, String> {
    if raw == "null" {
        return Ok(None);
    }
    if !raw.starts_with('{') {
        return Err("metadata must be an object.".to_owned());
    }
    check(raw).map_err(|problem| format!("metadata: {problem}"))?;
    Ok(Some(raw.to_owned()))
}

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

/// A value that a model wrote. A member given twice is an error, since one of the two would be lost;
/// U+0000, which no `jsonb` takes, becomes U+FFFD.
pub(super) struct Written(pub Value);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Written)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        // A JSON text has no number that is none.
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(storable(text).into_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Written(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let Written(value) = members.next_value()?;
            let name = storable(&name).into_owned();
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the member {name:?} stands there twice")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_wrote_is_read_whole_and_storable() {
        let text = r#"{"a": ["x\u0000y", -1, 2.5, true, null, "type \\u0000"], "b\u0000": {}}"#;
        let Written(value) = serde_json::from_str(text).unwrap();
        let expected = serde_json::json!({
            "a": ["x\u{fffd}y", -1, 2.5, true, null, "type \\u0000"], "b\u{fffd}": {},
        });
        assert_eq!(value, expected);
        for twice in [r#"{"a":1,"a":1}"#, r#"[{"x":{"b":1,"\u0062":2}}]"#] {
            let error = serde_json::from_str::<Written>(twice).err().unwrap();
            assert!(error.to_string().contains("twice"), "{error}");
        }
    }

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
