//! What a model is asked and what it answers, in one form for every vendor.

use std::sync::Arc;

use super::usage::Usage;

/// Who speaks in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
}

impl Role {
    /// The word in `turns.role` and in every vendor's wire form.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: Arc<str>,
}

/// One provider call, as the vendors' modules turn it into their own wire form. Held as plain
/// values, so that a repeat sends what the first call sent.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRequest {
    /// The vendor's name of the model.
    pub upstream: String,
    /// The system prompt; empty for none.
    pub system: Arc<str>,
    /// At least one; the first is the user's, roles alternate.
    pub messages: Arc<[Message]>,
    pub max_tokens: u32,
    /// `None`: the field is not sent.
    pub temperature: Option<f64>,
}

/// Why the model stopped, where that is a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    End,
    MaxTokens,
}

impl StopReason {
    /// The word in the answer's `stop_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::End => "end",
            StopReason::MaxTokens => "max_tokens",
        }
    }
}

/// A whole answer of a model, ended by the vendor's own end mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub stop: StopReason,
    pub usage: Usage,
}
