//! What a model is asked and what it answers, in one form for every vendor.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

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

/// What a call carries beside its text and that some models refuse. The names are the vendors'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parameter {
    Temperature,
    MaxCompletionTokens,
    MaxTokens,
    StreamOptions,
}

impl Parameter {
    /// Every one, and of two names of which one begins with the other the longer first.
    pub const ALL: [Parameter; 4] = [
        Parameter::Temperature,
        Parameter::MaxCompletionTokens,
        Parameter::MaxTokens,
        Parameter::StreamOptions,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Parameter::Temperature => "temperature",
            Parameter::MaxCompletionTokens => "max_completion_tokens",
            Parameter::MaxTokens => "max_tokens",
            Parameter::StreamOptions => "stream_options",
        }
    }
}

/// A set of parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Parameters(u8);

impl Parameters {
    pub const NONE: Parameters = Parameters(0);

    pub const fn contains(self, parameter: Parameter) -> bool {
        self.0 & (1 << parameter as u8) != 0
    }

    /// As a number that can be kept in an atomic.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// What [`Parameters::bits`] gave.
    pub const fn from_bits(bits: u8) -> Parameters {
        Parameters(bits)
    }

    #[must_use]
    pub const fn with(self, parameter: Parameter) -> Parameters {
        Parameters(self.0 | 1 << parameter as u8)
    }
}

/// The one tool that a call lets its model use, and makes it use: its input is the answer.
#[derive(Debug, Clone)]
pub struct Tool {
    pub name: String,
    pub description: String,
    /// A JSON Schema in its writer's own text: models fill in fields in the order that they read.
    pub schema: Box<RawValue>,
}

impl PartialEq for Tool {
    fn eq(&self, other: &Self) -> bool {
        let Tool { name, description, schema } = other;
        self.name == *name && self.description == *description && self.schema.get() == schema.get()
    }
}

/// A picture that is sent with a message.
#[derive(Clone, PartialEq, Eq)]
pub struct PromptImage {
    /// Such as `image/png`.
    pub media_type: String,
    /// The file as it is.
    pub bytes: Bytes,
}

impl fmt::Debug for PromptImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PromptImage({}, {} bytes)", self.media_type, self.bytes.len())
    }
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
    /// Sent with the last message, before its text. None for a chat.
    pub images: Arc<[PromptImage]>,
    /// Pinned: [`Answer::text`] is its input then. None for a chat.
    pub tool: Option<Arc<Tool>>,
    pub max_tokens: u32,
    /// `None`: the field is not sent.
    pub temperature: Option<f64>,
    /// What this model refused before and is not sent again.
    pub left_out: Parameters,
}

impl CallRequest {
    /// Whether it is sent with this parameter, where its vendor has one of that name.
    pub fn carries(&self, parameter: Parameter) -> bool {
        let told = parameter != Parameter::Temperature || self.temperature.is_some();
        told && !self.left_out.contains(parameter)
    }
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
    /// With a tool in the request, the JSON text of its input as the model wrote it; what the model
    /// said instead, where it called none.
    pub text: String,
    pub stop: StopReason,
    pub usage: Usage,
}
