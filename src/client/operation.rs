//! One thing that a user did: its key, and the bytes that mean it.

use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::answer::{ChatAnswer, ParseAnswer};
use super::error::ClientError;
use crate::domain::key::IdempotencyKey;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Chat {}
    impl Sealed for super::Parse {}
}

/// Where an operation goes, and what comes back.
pub trait Endpoint: sealed::Sealed {
    /// The last part of its path, and its name in a kept operation.
    const NAME: &'static str;
    type Answer: DeserializeOwned;
}

/// `POST /v1/chat`
#[derive(Debug, Clone, Copy)]
pub struct Chat;

/// `POST /v1/parse`
#[derive(Debug, Clone, Copy)]
pub struct Parse;

impl Endpoint for Chat {
    const NAME: &'static str = "chat";
    type Answer = ChatAnswer;
}

impl Endpoint for Parse {
    const NAME: &'static str = "parse";
    type Answer = ParseAnswer;
}

/// The bytes of a request without its metadata, which alone differs from one sending to the next and is
/// no part of the request's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    /// A JSON object.
    Json(String),
    /// A file as it is, and the query that holds its options.
    File { query: String, bytes: Bytes },
}

/// A key and the body that it stands for, for ever the same. Made by
/// [`Client::begin`](super::Client::begin) when the user acts, not when a request is sent; serialised, it
/// can be taken up again by another process.
pub struct Operation<E> {
    key: String,
    body: Body,
    /// The caller's own, sent along each time.
    metadata: Map<String, Value>,
    /// Taken up from what another process kept.
    resumed: bool,
    endpoint: PhantomData<fn() -> E>,
}

/// One sending.
pub(super) struct Sending {
    pub content_type: &'static str,
    /// `None`: no query.
    pub query: Option<String>,
    pub body: Bytes,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept<'a> {
    endpoint: std::borrow::Cow<'a, str>,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_base64: Option<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

impl<E: Endpoint> Operation<E> {
    pub(super) fn new(key: String, body: Body, metadata: Map<String, Value>) -> Self {
        Self { key, body, metadata, resumed: false, endpoint: PhantomData }
    }

    /// What a [`Journal`](super::Journal) kept, or serde wrote.
    ///
    /// # Errors
    /// [`ClientError::NotSent`] where it is no kept operation of this endpoint.
    pub fn from_kept(bytes: &[u8]) -> Result<Self, ClientError> {
        serde_json::from_slice(bytes).map_err(|error| ClientError::NotSent(error.to_string()))
    }

    /// The idempotency key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether another process began it.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// What goes up with it, about.
    pub(super) fn upload_bytes(&self) -> u64 {
        match &self.body {
            Body::Json(object) => object.len() as u64,
            Body::File { bytes, .. } => bytes.len() as u64,
        }
    }

    /// The request as it goes out for the `attempt`th time, from 1.
    pub(super) fn sending(&self, attempt: u32, sent_at: DateTime<Utc>) -> Sending {
        let mut metadata = self.metadata.clone();
        metadata.insert("attempt".to_owned(), attempt.into());
        let sent_at = sent_at.to_rfc3339_opts(SecondsFormat::Millis, true);
        metadata.insert("sent_at".to_owned(), sent_at.into());
        if self.resumed {
            metadata.insert("resumed".to_owned(), true.into());
        }
        let metadata = Value::Object(metadata).to_string();
        match &self.body {
            Body::Json(object) => {
                // An object that is never empty, see where bodies are made and read.
                let open = object.trim_end().strip_suffix('}').unwrap_or(object);
                let body = Bytes::from(format!("{open},\"metadata\":{metadata}}}"));
                Sending { content_type: "application/json", query: None, body }
            }
            Body::File { query, bytes } => {
                let mut query = url::form_urlencoded::Serializer::new(query.clone());
                query.append_pair("metadata", &metadata);
                Sending {
                    content_type: "application/octet-stream",
                    query: Some(query.finish()),
                    body: bytes.clone(),
                }
            }
        }
    }
}

/// A key in the form in which it is sent.
///
/// # Errors
/// [`ClientError::NotSent`] for text that the server would not take for a key.
pub(super) fn checked_key(text: &str) -> Result<String, ClientError> {
    IdempotencyKey::parse(text.as_bytes())
        .map(|key| key.shown())
        .map_err(|error| ClientError::NotSent(error.to_string()))
}

impl<E> Clone for Operation<E> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            body: self.body.clone(),
            metadata: self.metadata.clone(),
            resumed: self.resumed,
            endpoint: PhantomData,
        }
    }
}

/// Without the body, which is the user's.
impl<E: Endpoint> fmt::Debug for Operation<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Operation")
            .field("endpoint", &E::NAME)
            .field("key", &self.key)
            .field("resumed", &self.resumed)
            .finish_non_exhaustive()
    }
}

impl<E: Endpoint> Serialize for Operation<E> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (json, query, file_base64) = match &self.body {
            Body::Json(object) => (Some(object.clone()), None, None),
            Body::File { query, bytes } => {
                (None, Some(query.clone()), Some(STANDARD.encode(bytes)))
            }
        };
        let (key, metadata) = (self.key.clone(), self.metadata.clone());
        let endpoint = E::NAME.into();
        Kept { endpoint, key, json, query, file_base64, metadata }.serialize(to)
    }
}

impl<'de, E: Endpoint> Deserialize<'de> for Operation<E> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let kept = Kept::deserialize(from)?;
        if kept.endpoint != E::NAME {
            let text = format!("the operation is one of {}, not of {}", kept.endpoint, E::NAME);
            return Err(D::Error::custom(text));
        }
        let body = match (kept.json, kept.query, kept.file_base64) {
            (Some(object), None, None) if is_object(&object) => Body::Json(object),
            (None, Some(query), Some(file)) => {
                let bytes = STANDARD.decode(file).map_err(D::Error::custom)?;
                Body::File { query, bytes: bytes.into() }
            }
            _ => return Err(D::Error::custom("the operation has no body")),
        };
        let key = checked_key(&kept.key).map_err(D::Error::custom)?;
        let metadata = kept.metadata;
        Ok(Self { key, body, metadata, resumed: true, endpoint: PhantomData })
    }
}

/// Whether metadata can stand behind its last member.
fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok_and(|object| !object.is_empty())
}

#[cfg(test)]
#[path = "operation_tests.rs"]
mod tests;
