//! What an arrival asks for, whatever the endpoint.

use std::sync::Arc;

use super::chat::{self, ChatRequest};
use super::hash::RequestHash;
use super::ids::{ConversationId, Subject};
use super::parse::{self, ParseRequest};

/// A valid request to run something; clones are one and the same.
#[derive(Debug, Clone)]
pub enum RunRequest {
    Chat(Arc<ChatRequest>),
    Parse(Arc<ParseRequest>),
}

impl RunRequest {
    /// The word in records, receipts and metrics.
    pub fn endpoint(&self) -> &'static str {
        match self {
            RunRequest::Chat(_) => chat::ENDPOINT,
            RunRequest::Parse(_) => parse::ENDPOINT,
        }
    }

    /// The model's name, as clients use it.
    pub fn model(&self) -> &str {
        match self {
            RunRequest::Chat(chat) => &chat.model,
            RunRequest::Parse(parse) => &parse.model,
        }
    }

    /// The conversation that it runs in; a parse runs in none.
    pub fn conversation(&self) -> Option<&ConversationId> {
        match self {
            RunRequest::Chat(chat) => Some(&chat.conversation_id),
            RunRequest::Parse(_) => None,
        }
    }

    /// Which sending of its client's this is, where its metadata tells (`attempt`, from 1).
    pub fn told_attempt(&self) -> Option<u64> {
        #[derive(serde::Deserialize)]
        struct Told {
            attempt: Option<u64>,
        }
        let metadata = match self {
            RunRequest::Chat(chat) => &chat.metadata,
            RunRequest::Parse(parse) => &parse.metadata,
        };
        // Anything else under that name is the client's own affair.
        serde_json::from_str::<Told>(metadata.as_deref()?).ok()?.attempt
    }

    /// The hash of what it means.
    pub fn meaning(&self, subject: Option<&Subject>) -> RequestHash {
        match self {
            RunRequest::Chat(chat) => chat.meaning(subject),
            RunRequest::Parse(parse) => parse.meaning(subject),
        }
    }
}
