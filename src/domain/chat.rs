//! A chat request: its wire form, what makes it valid, and what it means.

use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::hash::{MeaningHasher, RequestHash};
use super::ids::{ConversationId, Subject};
use super::json;

/// The name in records, receipts and metrics.
pub const ENDPOINT: &str = "chat";
/// The model that a request without one means.
pub const DEFAULT_MODEL: &str = "default";
const MAX_CONVERSATION_CHARS: usize = 255;

/// One message in a conversation. Unknown members and members given twice are errors that name them.
#[derive(serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatRequest)]
pub struct ChatBody<'a> {
    /// Made by the client; the first message begins the conversation.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00]+$", example = "c-17")]
    conversation_id: String,
    /// What the user says; not only white space, and without U+0000.
    #[schema(min_length = 1, pattern = r"^[^\x00]*[^\s\x00][^\x00]*$", example = "Is it boiling?")]
    message: String,
    /// A model of this service's configuration.
    #[schema(default = "default")]
    model: Option<String>,
    #[serde(borrow)]
    #[schema(value_type = Option<OptionsBody>)]
    options: Option<&'a RawValue>,
    /// Server-sent events instead of one answer; so does `Accept: text/event-stream`.
    #[schema(default = false)]
    stream: Option<bool>,
    /// Anything of the client's own (attempt, send time); stored with the turn and no part of what the
    /// request means.
    #[serde(borrow)]
    #[schema(value_type = Option<Object>, example = json!({"attempt": 1}))]
    metadata: Option<&'a RawValue>,
}

/// What may be said about the answer.
#[derive(serde::Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatOptions)]
pub struct OptionsBody {
    #[schema(minimum = 0.0, maximum = 2.0)]
    temperature: Option<f64>,
    /// At most what the model is configured for.
    #[schema(value_type = Option<u32>, minimum = 1)]
    max_tokens: Option<Whole>,
}

/// A whole number in any spelling: `64`, `64.0` and `6.4e1` mean the same.
#[derive(Clone, Copy)]
struct Whole(u32);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(from)?;
        if number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number) {
            let found = Unexpected::Float(number);
            return Err(D::Error::invalid_value(found, &"a whole number from 0 to 4294967295"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole and within the bounds, as was just asked"
        )]
        Ok(Self(number as u32))
    }
}

/// A valid request.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    pub conversation_id: ConversationId,
    pub message: String,
    pub model: String,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u32>,
    pub stream: bool,
    /// A JSON object in the client's own text; stored with the turn, no part of the meaning.
    pub metadata: Option<String>,
}

/// What is wrong with a body; the text goes to the client.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidChat(pub String);

fn invalid(text: impl Into<String>) -> InvalidChat {
    InvalidChat(text.into())
}

impl ChatRequest {
    /// Reads a body; the error names what is wrong and where.
    pub fn read(text: &str) -> Result<Self, InvalidChat> {
        let body = json::object::<ChatBody<'_>>("The body", text).map_err(InvalidChat)?;
        Self::from_body(body)
    }

    fn from_body(body: ChatBody<'_>) -> Result<Self, InvalidChat> {
        let options = match body.options.map(RawValue::get) {
            None | Some("null") => OptionsBody::default(),
            Some(text) => json::object("options", text).map_err(InvalidChat)?,
        };
        let characters = body.conversation_id.chars().count();
        if characters == 0 || characters > MAX_CONVERSATION_CHARS {
            return Err(invalid("conversation_id must have 1 to 255 characters."));
        }
        for (name, text) in [("conversation_id", &body.conversation_id), ("message", &body.message)]
        {
            if text.contains('\0') {
                return Err(invalid(format!("{name} holds the character U+0000.")));
            }
        }
        if body.message.trim().is_empty() {
            return Err(invalid("message must not be empty."));
        }
        if let Some(temperature) = options.temperature
            && !(0.0..=2.0).contains(&temperature)
        {
            return Err(invalid("options.temperature must lie between 0 and 2."));
        }
        let max_tokens = options.max_tokens.map(|Whole(tokens)| tokens);
        if max_tokens == Some(0) {
            return Err(invalid("options.max_tokens must be at least 1."));
        }
        let metadata = body.metadata.map(|raw| json::metadata(raw.get())).transpose();
        let metadata = metadata.map_err(InvalidChat)?;
        Ok(Self {
            conversation_id: ConversationId::new(body.conversation_id),
            message: body.message,
            model: body.model.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            temperature: options.temperature,
            max_tokens,
            stream: body.stream.unwrap_or(false),
            metadata: metadata.flatten(),
        })
    }

    /// The hash of the meaning. Only what the client can say stands in it: a default that comes from
    /// the configuration would turn an honest retry after a deployment into another request.
    pub fn meaning(&self, subject: Option<&Subject>) -> RequestHash {
        let mut hasher = MeaningHasher::new(ENDPOINT);
        hasher
            .text_if("subject", subject.map(Subject::as_str))
            .text("conversation_id", self.conversation_id.as_str())
            .text("message", &self.message)
            .text("model", &self.model)
            .number_if("temperature", self.temperature)
            .number_if("max_tokens", self.max_tokens.map(f64::from));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ChatRequest, String> {
        ChatRequest::read(text).map_err(|error| error.to_string())
    }

    fn meaning(text: &str) -> RequestHash {
        read(text).unwrap().meaning(None)
    }

    #[test]
    fn one_meaning_has_one_hash() {
        let first = meaning(
            r#"{"conversation_id":"c1","message":"hello","options":{"temperature":1,"max_tokens":64}}"#,
        );
        for same in [
            r#"{ "options" : { "max_tokens": 64, "temperature": 1.0 }, "message" : "hello", "conversation_id": "c1" }"#,
            r#"{"conversation_id":"c1","message":"\u0068ello","options":{"temperature":1e0,"max_tokens":64}}"#,
            r#"{"conversation_id":"c1","message":"hello","model":"default","stream":true,"options":{"temperature":1,"max_tokens":64},"metadata":{"attempt":2}}"#,
        ] {
            assert_eq!(meaning(same), first, "{same}");
        }
        // Both are the double next to 0.3, however many digits are written.
        let digits = |temperature: &str| {
            let options = format!(r#""options":{{"temperature":{temperature}}}"#);
            meaning(&format!(r#"{{"conversation_id":"c1","message":"hello",{options}}}"#))
        };
        assert_eq!(digits("0.30000000000000004"), digits("0.300000000000000040000e0"));
        assert_eq!(digits("0.000042"), digits("42000000000000000000E-24"));
        for other in [
            r#"{"conversation_id":"c1","message":"hello!","options":{"temperature":1,"max_tokens":64}}"#,
            r#"{"conversation_id":"c2","message":"hello","options":{"temperature":1,"max_tokens":64}}"#,
            r#"{"conversation_id":"c1","message":"hello","options":{"temperature":1}}"#,
            r#"{"conversation_id":"c1","message":"hello","options":{"temperature":0.9,"max_tokens":64}}"#,
            r#"{"conversation_id":"c1","message":"hello","model":"other","options":{"temperature":1,"max_tokens":64}}"#,
        ] {
            assert_ne!(meaning(other), first, "{other}");
        }
        let request = read(r#"{"conversation_id":"c1","message":"hello"}"#).unwrap();
        assert_ne!(request.meaning(Some(&Subject::new("ann"))), request.meaning(None));
    }

    #[test]
    fn text_is_not_normalised() {
        let composed = meaning("{\"conversation_id\":\"c1\",\"message\":\"caf\u{e9}\"}");
        let decomposed = meaning("{\"conversation_id\":\"c1\",\"message\":\"cafe\u{301}\"}");
        assert_ne!(composed, decomposed);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, part) in [
            (r#"{"conversation_id":"c1","message":"a","message":"b"}"#, "message"),
            (r#"{"conversation_id":"c1","message":"a","mesage":"b"}"#, "mesage"),
            (r#"{"conversation_id":"c1"}"#, "message"),
            (r#"["c1","a"]"#, "object"),
            (r#"{"conversation_id":"c1","message":"a","options":[1,64]}"#, "options"),
            (r#"{"conversation_id":"c1","message":"a"} x"#, "trailing"),
            ("\u{c}{\"conversation_id\":\"c1\",\"message\":\"a\"}", "object"),
            ("{\"conversation_id\":\"c1\",\"message\":\"a\"}\u{c}", "trailing"),
            (r#"{"conversation_id":1,"message":"a"}"#, "string"),
            (r#"{"conversation_id":"","message":"a"}"#, "conversation_id"),
            (r#"{"conversation_id":"c1","message":" \n"}"#, "message"),
            (r#"{"conversation_id":"c1","message":"a\u0000b"}"#, "U+0000"),
            (r#"{"conversation_id":"c1","message":"Tea \ud83e"}"#, "hex escape"),
            (
                r#"{"conversation_id":"c1","message":"a","options":{"temperature":2.5}}"#,
                "temperature",
            ),
            (r#"{"conversation_id":"c1","message":"a","options":{"max_tokens":0}}"#, "max_tokens"),
            (r#"{"conversation_id":"c1","message":"a","metadata":[1]}"#, "metadata"),
            (r#"{"conversation_id":"c1","message":"a","metadata":{"x":1,"x":2}}"#, "x"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(part), "{body} said {error:?}");
        }
    }
}
