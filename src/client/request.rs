//! What a caller asks for, before it has a key.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::operation::{Body, Chat, Endpoint, Parse};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ChatRequest {}
    impl Sealed for super::ParseRequest {}
}

/// What an operation can be begun with.
pub trait Request: sealed::Sealed {
    type Endpoint: Endpoint;

    #[doc(hidden)]
    fn into_parts(self) -> Parts;
}

/// Body and metadata of a request.
#[doc(hidden)]
pub struct Parts {
    pub(super) body: Body,
    pub(super) metadata: Map<String, Value>,
}

/// A message of a user's in a conversation.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    body: Map<String, Value>,
    options: Map<String, Value>,
    metadata: Map<String, Value>,
}

impl ChatRequest {
    /// `conversation`: 1 to 255 characters of the caller's own choice.
    pub fn new(conversation: &str, message: &str) -> Self {
        let mut body = Map::new();
        body.insert("conversation_id".to_owned(), conversation.into());
        body.insert("message".to_owned(), message.into());
        Self { body, options: Map::new(), metadata: Map::new() }
    }

    /// One of the server's models; `default` where none is said.
    #[must_use]
    pub fn model(mut self, model: &str) -> Self {
        self.body.insert("model".to_owned(), model.into());
        self
    }

    /// 0 to 2.
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.options.insert("temperature".to_owned(), temperature.into());
        self
    }

    /// The longest answer, in tokens.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.options.insert("max_tokens".to_owned(), tokens.into());
        self
    }

    /// Stored with the turn, no part of the request's meaning. The client adds `attempt`, `sent_at` and,
    /// for an operation that another process began, `resumed`.
    #[must_use]
    pub fn metadata(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.to_owned(), value.into());
        self
    }
}

impl Request for ChatRequest {
    type Endpoint = Chat;

    fn into_parts(mut self) -> Parts {
        if !self.options.is_empty() {
            self.body.insert("options".to_owned(), Value::Object(self.options));
        }
        let body = Body::Json(Value::Object(self.body).to_string());
        Parts { body, metadata: self.metadata }
    }
}

#[derive(Debug, Clone)]
enum Input {
    Text(String),
    File(Bytes),
    Capture(String),
}

/// Something to be parsed.
#[derive(Debug, Clone)]
pub struct ParseRequest {
    input: Input,
    /// In the order in which they were set.
    options: Vec<(&'static str, Value)>,
    metadata: Map<String, Value>,
}

impl ParseRequest {
    fn of(input: Input) -> Self {
        Self { input, options: Vec::new(), metadata: Map::new() }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::of(Input::Text(text.into()))
    }

    /// A file (PDF, PNG, JPEG, WebP, plain text); its bytes decide what it is.
    pub fn file(bytes: impl Into<Bytes>) -> Self {
        Self::of(Input::File(bytes.into()))
    }

    /// An input that an earlier parse stored, by that parse's `operation_id`.
    pub fn capture(id: &str) -> Self {
        Self::of(Input::Capture(id.to_owned()))
    }

    /// What is to be produced; `script` where none is said.
    #[must_use]
    pub fn profile(self, profile: &str) -> Self {
        self.option("profile", profile.into())
    }

    /// Whether a result with gaps is better than none.
    #[must_use]
    pub fn allow_gaps(self, allow: bool) -> Self {
        self.option("allow_gaps", allow.into())
    }

    /// One of the server's models; `default` where none is said.
    #[must_use]
    pub fn model(self, model: &str) -> Self {
        self.option("model", model.into())
    }

    /// As for a chat.
    #[must_use]
    pub fn metadata(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.to_owned(), value.into());
        self
    }

    fn option(mut self, name: &'static str, value: Value) -> Self {
        self.options.retain(|(known, _)| *known != name);
        self.options.push((name, value));
        self
    }
}

impl Request for ParseRequest {
    type Endpoint = Parse;

    fn into_parts(self) -> Parts {
        let metadata = self.metadata;
        let (name, value) = match self.input {
            Input::File(bytes) => {
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                for (name, value) in self.options {
                    match value {
                        Value::String(text) => query.append_pair(name, &text),
                        other => query.append_pair(name, &other.to_string()),
                    };
                }
                let body = Body::File { query: query.finish(), bytes };
                return Parts { body, metadata };
            }
            Input::Text(text) => ("text", text),
            Input::Capture(id) => ("capture_id", id),
        };
        let mut body = json!({ name: value });
        for (name, value) in self.options {
            body[name] = value;
        }
        Parts { body: Body::Json(body.to_string()), metadata }
    }
}
