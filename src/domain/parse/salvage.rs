//! From what a model wrote to a value that keeps its profile's schema.
//!
//! Models give a list as a text that holds the list, put code fences around an answer, leave a comma
//! behind the last item. Such an answer is whole, and asking again is paid for and no better. What is
//! mended here is the form alone: by schema, so that a text that merely looks like JSON stays text where
//! a text belongs; never by inventing, dropping or closing anything, so that what was cut off stays
//! broken. Every repair is counted.

use std::borrow::Cow;

use serde::de::Error as _;
use serde_json::Value;

use super::fields;
use super::profile::Profile;
use crate::domain::json::Written;
use crate::domain::rules::{Violation, ViolationCode, violation};
use crate::domain::text::{storable, without_lone_surrogates};

/// How often a value may be wrapped into a text. More has not been seen.
const MAX_WRAPPINGS: usize = 2;
/// How deep fields are looked into; the parser itself takes 127 levels of one text.
const MAX_DEPTH: usize = 64;

/// A value that keeps the schema of its profile, without U+0000.
#[derive(Debug, Clone, PartialEq)]
pub struct Salvaged {
    pub value: Value,
    /// What had to be mended for it.
    pub repairs: u32,
}

/// Reads what a model wrote. Its stop reason comes first: an answer that ran into its limit is not to be
/// given here, since what is left of it can be a whole value by chance.
///
/// Mended are: code fences around the whole, a byte order mark, the whole or a list or object wrapped into
/// a text once or twice, commas behind a last item or member, escapes that are half of a surrogate pair
/// (they become U+FFFD), and the same value given several times. Two members of one name are an error:
/// one of them would be lost. Numbers are doubles or 64-bit integers, as in every JSON here.
///
/// # Errors
/// [`Violation`] with the code `json_syntax` or `json_schema`, for feedback and for the log.
pub fn salvage(profile: &Profile, raw: &str) -> Result<Salvaged, Violation> {
    let mut mender = Mender { root: profile.schema_value(), repairs: 0 };
    let mut value = mender.read(raw).map_err(|error| syntax("", &error))?;
    mender.unwrap(&mut value, profile.schema_value(), &mut String::new(), 0)?;
    profile.check(&value)?;
    Ok(Salvaged { value, repairs: mender.repairs })
}

fn syntax(place: &str, error: &serde_json::Error) -> Violation {
    let at = format!("line {} column {}", error.line(), error.column());
    violation(ViolationCode::JsonSyntax, at, "one JSON value", format!("{place}{error}"))
}

struct Mender<'a> {
    root: &'a Value,
    repairs: u32,
}

impl Mender<'_> {
    /// One JSON value in a text, whatever the form around it.
    fn read(&mut self, text: &str) -> Result<Value, serde_json::Error> {
        let text = storable(text);
        let blank = |char: char| char.is_whitespace() || char == '\u{feff}';
        let mut text = text.trim_matches(blank);
        if let Some(inside) = inside_fences(text) {
            text = inside.trim_matches(blank);
            self.repairs += 1;
        }
        let error = match self.one_value(text) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let whole = without_lone_surrogates(text);
        let (mended, commas) = without_last_commas(&whole);
        let halves = matches!(whole, Cow::Owned(_));
        if commas == 0 && !halves {
            return Err(error);
        }
        let value = self.one_value(&mended)?;
        self.repairs += commas + u32::from(halves);
        Ok(value)
    }

    /// The value of a text that holds one, once or several times: some models call the tool twice with the
    /// same input. Of two different ones neither is the answer.
    fn one_value(&mut self, text: &str) -> Result<Value, serde_json::Error> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Written>();
        let first = match values.next() {
            Some(Ok(Written(first))) => first,
            Some(Err(error)) => return Err(error),
            None => return serde_json::from_str(text), // nothing at all, in the parser's own words
        };
        let mut repeated = 0;
        for value in values {
            let Written(value) = value?;
            if value != first || !(value.is_object() || value.is_array()) {
                return Err(serde_json::Error::custom("there is more than one value"));
            }
            repeated = 1;
        }
        self.repairs += repeated;
        Ok(first)
    }

    /// Unwraps lists and objects that were given as texts, where the schema has no text.
    fn unwrap(
        &mut self,
        value: &mut Value,
        schema: &Value,
        path: &mut String,
        depth: usize,
    ) -> Result<(), Violation> {
        if depth > MAX_DEPTH {
            return Ok(());
        }
        let schema = fields::resolve(schema, self.root);
        if let Value::String(text) = value
            && fields::is_container(schema, self.root)
            && let Some(inside) = self.inside(text, path)?
        {
            *value = inside;
        }
        let length = path.len();
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let its = schema["properties"].get(name).or(schema.get("additionalProperties"));
                    if let Some(its) = its {
                        path.push('/');
                        path.push_str(name);
                        self.unwrap(member, its, path, depth + 1)?;
                        path.truncate(length);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(its) = schema.get("items") {
                    for (number, item) in items.iter_mut().enumerate() {
                        path.push_str(&format!("/{number}"));
                        self.unwrap(item, its, path, depth + 1)?;
                        path.truncate(length);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        Ok(())
    }

    /// The list or object in a text; `None` for a text that is not meant as one.
    fn inside(&mut self, text: &str, path: &str) -> Result<Option<Value>, Violation> {
        let broken =
            |error| syntax(&format!("in the text at {path:?}, where no text belongs: "), &error);
        let mut inside = Cow::Borrowed(text);
        for wrappings in 1..=MAX_WRAPPINGS {
            if !inside.trim_start().starts_with(['[', '{', '"', '`']) {
                return Ok(None);
            }
            match self.read(&inside).map_err(broken)? {
                Value::String(text) => inside = Cow::Owned(text),
                value @ (Value::Array(_) | Value::Object(_)) => {
                    self.repairs += u32::try_from(wrappings).unwrap_or(u32::MAX);
                    return Ok(Some(value));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// What stands between code fences that are around the whole.
fn inside_fences(text: &str) -> Option<&str> {
    let (info, inside) = text.strip_prefix("```")?.split_once('\n')?;
    let word = info.trim();
    let inside = inside.strip_suffix("```")?;
    word.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(inside)
}

/// The text without commas behind a last item or member, and how many there were. What stands inside
/// strings is left alone.
fn without_last_commas(text: &str) -> (Cow<'_, str>, u32) {
    let bytes = text.as_bytes();
    let mut commas: Vec<usize> = Vec::new();
    let mut pending: Option<usize> = None;
    let (mut in_string, mut escaped) = (false, false);
    // Of what means something and is outside strings: a comma with nothing before it is no last comma.
    let mut before = b'[';
    for (at, byte) in bytes.iter().copied().enumerate() {
        if in_string {
            (in_string, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b']' | b'}' => commas.extend(pending.take()),
            b',' if !matches!(before, b'[' | b'{' | b',' | b':') => pending = Some(at),
            _ => pending = None,
        }
        in_string = byte == b'"';
        before = byte;
    }
    if commas.is_empty() {
        return (Cow::Borrowed(text), 0);
    }
    let mut mended = String::with_capacity(text.len());
    let mut copied = 0;
    for at in &commas {
        mended.push_str(&text[copied..*at]);
        copied = at + 1;
    }
    mended.push_str(&text[copied..]);
    (Cow::Owned(mended), u32::try_from(commas.len()).unwrap_or(u32::MAX))
}

#[cfg(test)]
#[path = "salvage_tests.rs"]
mod tests;
