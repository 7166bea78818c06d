//! What comes back.

use bytes::Bytes;
use serde::Deserialize;

use crate::domain::usage::Usage;

/// An answer, and how it came.
#[derive(Debug, Clone)]
pub struct Reply<T> {
    pub answer: T,
    /// The body as it came: byte for byte the same at every replay.
    pub body: Bytes,
    pub key: String,
    /// Whether it was there already when it was asked for.
    pub replayed: bool,
    /// Of this arrival at the server (`X-Request-Id`); that of the run stands in the answer.
    pub request_id: Option<String>,
    /// How often the request was sent for it.
    pub attempts: u32,
}

/// The answer to a chat.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ChatAnswer {
    /// Of the run that produced it.
    pub request_id: String,
    pub conversation_id: String,
    pub turn_id: String,
    pub message: ChatMessage,
    pub model: String,
    /// `end`, or `max_tokens` where the answer was cut.
    pub stop_reason: String,
    pub usage: Usage,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
}

/// The answer to a parse.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ParseAnswer {
    /// Of the run that produced it.
    pub request_id: String,
    /// In the form of the profile; of `script`: `title`, `characters`, `dialogue`.
    pub result: serde_json::Value,
    /// What is missing, where that was allowed.
    pub gaps: Vec<Gap>,
    pub usage: Usage,
}

/// A piece of the text that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Gap {
    /// From 0.
    pub chunk: usize,
    /// In characters of the text that was read.
    pub from: usize,
    pub to: usize,
    pub reason: String,
}

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordAnswer {
    /// Of a parse, this is also the name of its stored input.
    pub operation_id: String,
    pub request_id: String,
    /// `in_progress`, `committed` or `failed`.
    pub state: String,
    pub endpoint: String,
    pub attempts: u32,
}
