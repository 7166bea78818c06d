//! The body of a chat, held against a second reading that goes member by member.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Judged;
use crate::domain::chat::{ChatRequest, DEFAULT_MODEL, InvalidChat};

/// A refusal like any other.
pub fn refusal() -> InvalidChat {
    InvalidChat("refused".into())
}

/// Judges what is read from an input.
pub fn judge(read: impl Fn(&str) -> Result<ChatRequest, InvalidChat>, input: &[u8]) -> Judged {
    let Ok(text) = std::str::from_utf8(input) else { return Ok("not UTF-8".into()) };
    let (said, meant) = (read(text), Meant::of(text));
    let (request, meant) = match (said, meant) {
        (Ok(request), Some(meant)) => (request, meant),
        (Err(error), None) if error.0.is_empty() => return Err("refused without a word".into()),
        (Err(error), None) => return Ok(shape(&error.0)),
        (Ok(request), None) => return Err(format!("taken as {request:?}, but it is not valid")),
        (Err(error), Some(meant)) => return Err(format!("{error}; but it means {meant:?}")),
    };
    let said = Meant {
        conversation_id: request.conversation_id.as_str().to_owned(),
        message: request.message,
        model: request.model,
        temperature: request.temperature,
        max_tokens: request.max_tokens.map(f64::from),
        stream: request.stream,
        metadata: request.metadata,
    };
    if said != meant {
        return Err(format!("read as {said:?}, but it means {meant:?}"));
    }
    Ok(format!(
        "{} {:?} {} {}",
        said.temperature.is_some(),
        said.max_tokens.map(f64::log2).map(f64::floor),
        said.stream,
        said.metadata.is_some(),
    ))
}

/// An error up to what it names, without its place.
fn shape(error: &str) -> String {
    let before = error.split(['`', '"']).next().unwrap_or_default();
    before.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// What a valid body means.
#[derive(Debug, PartialEq)]
struct Meant {
    conversation_id: String,
    message: String,
    model: String,
    temperature: Option<f64>,
    max_tokens: Option<f64>,
    stream: bool,
    metadata: Option<String>,
}

impl Meant {
    fn of(text: &str) -> Option<Self> {
        let body = Members::of(text.trim_matches([' ', '\t', '\n', '\r']))?;
        let names = ["conversation_id", "message", "model", "options", "stream", "metadata"];
        body.only(&names)?;
        let conversation_id: String = body.value("conversation_id")??;
        let message: String = body.value("message")??;
        let options = match body.raw("options") {
            None | Some("null") => Members(Vec::new()),
            Some(options) => Members::of(options)?,
        };
        options.only(&["temperature", "max_tokens"])?;
        let temperature: Option<f64> = options.value("temperature")?;
        let max_tokens: Option<f64> = options.value("max_tokens")?;
        let metadata = body.raw("metadata").filter(|text| *text != "null");
        let meant = Self {
            conversation_id,
            message,
            model: body.value("model")?.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            temperature,
            max_tokens,
            stream: body.value("stream")?.unwrap_or(false),
            metadata: metadata.map(str::to_owned),
        };
        meant.is_valid().then_some(meant)
    }

    fn is_valid(&self) -> bool {
        let characters = self.conversation_id.chars().count();
        let whole =
            |tokens: f64| tokens == tokens.trunc() && (1.0..4_294_967_296.0).contains(&tokens);
        (1..=255).contains(&characters)
            && !self.conversation_id.contains('\0')
            && !self.message.contains('\0')
            && !self.message.chars().all(char::is_whitespace)
            && self.temperature.is_none_or(|it| (0.0..=2.0).contains(&it))
            && self.max_tokens.is_none_or(whole)
            && self.metadata.as_deref().is_none_or(|text| Members::of(text).is_some() && fits(text))
    }
}

/// Whether JSON of the client's own can be stored: well formed, each member once, nothing in it that
/// `jsonb` refuses.
fn fits(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok() && fits_inside(text)
}

fn fits_inside(text: &str) -> bool {
    match text.as_bytes()[0] {
        b'{' => Members::of(text).is_some_and(|members| {
            let mut names = HashSet::new();
            members.0.iter().all(|(name, value)| {
                names.insert(name) && !name.contains('\0') && fits_inside(value.get())
            })
        }),
        b'[' => serde_json::from_str::<Vec<&RawValue>>(text)
            .is_ok_and(|items| items.iter().all(|item| fits_inside(item.get()))),
        b'"' => serde_json::from_str::<String>(text).is_ok_and(|text| !text.contains('\0')),
        b'-' | b'0'..=b'9' => {
            let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, ""));
            let digits = exponent.trim_start_matches(['+', '-']);
            mantissa.len() + (exponent.len() - digits.len()) <= 1_000 && digits.len() <= 3
        }
        _ => true,
    }
}

/// The members of an object, in their order, those given twice included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// None where a member has another name or is given twice.
    fn only(&self, names: &[&str]) -> Option<()> {
        let mut known = HashSet::new();
        let mut all = self.0.iter();
        all.all(|(name, _)| names.contains(&name.as_str()) && known.insert(name)).then_some(())
    }

    fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.get())
    }

    /// None where it is of another type; none within where it is absent or null.
    fn value<T: DeserializeOwned>(&self, name: &str) -> Option<Option<T>> {
        self.raw(name).map_or(Some(None), |text| serde_json::from_str(text).ok())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Collector;

        impl<'de> Visitor<'de> for Collector {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        from.deserialize_map(Collector).map(Members)
    }
}
