//! The facts of a failed call: what was seen, with no opinion about it.

use std::time::Duration;

use crate::domain::rules::Violation;
use crate::domain::usage::Usage;

/// What the headers said about when to come back, as raw text: reading it needs the time, which
/// the one who decides has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetryAfterText {
    /// `retry-after-ms`.
    pub millis: Option<String>,
    /// `retry-after`: seconds or an HTTP date.
    pub plain: Option<String>,
}

impl RetryAfterText {
    /// Whether any such header came, readable or not.
    pub fn is_present(&self) -> bool {
        self.millis.is_some() || self.plain.is_some()
    }
}

/// A vendor's error object, in whatever shape it came. Every text is bounded by its reader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VendorError {
    /// `type`, or Google's `status` word.
    pub kind: Option<String>,
    /// `code`; a number as its digits.
    pub code: Option<String>,
    pub message: Option<String>,
    /// The parameter the vendor blames.
    pub param: Option<String>,
    /// Text around the error: a body that is no JSON, or what a gateway passes on from the
    /// provider behind it.
    pub detail: Option<String>,
}

impl VendorError {
    /// Whether it was JSON, of a known shape or not, whole or too long to be read whole: the answer
    /// of whoever read the request, rather than a page of some box in between.
    pub fn is_json(&self) -> bool {
        let known = self.kind.is_some() || self.code.is_some() || self.message.is_some();
        known || self.detail.as_ref().is_some_and(|detail| detail.starts_with(['{', '[']))
    }
}

/// How the connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportFault {
    /// No connection: name, refusal, TLS, connect timeout.
    Connect,
    /// Connected, and broken before the head of the response.
    Request,
    /// Broken within the body.
    Body,
}

/// Which deadline of a call passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineKind {
    /// Nothing of the response came.
    FirstByte,
    /// No content for too long; keep-alives do not count.
    Idle,
    /// The whole call.
    Absolute,
}

impl DeadlineKind {
    /// The word for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeadlineKind::FirstByte => "first_byte",
            DeadlineKind::Idle => "idle",
            DeadlineKind::Absolute => "absolute",
        }
    }
}

/// Where a filter stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModerationStage {
    /// No text came: what was asked is refused, by any tier.
    Input,
    /// Text came, or the output is blamed: another tier may get through.
    Output,
}

/// What ended the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// A status that is no success, which is in [`FailureFacts::status`].
    Refused {
        html: bool,
        error: VendorError,
    },
    /// An error inside a success, in its body or in its stream.
    InBand {
        error: VendorError,
    },
    Transport(TransportFault),
    Deadline {
        kind: DeadlineKind,
        limit: Duration,
    },
    /// A stream that ended without its end mark.
    Cut,
    /// A success whose body or event cannot be read; the text is a bounded piece of it.
    Unreadable {
        snippet: String,
    },
    /// A success that ended well with no text in it.
    NothingUsable,
    /// A whole answer that says that there is no content in what was asked about.
    NothingFound,
    /// The output limit was reached before any text, or where a whole output is needed.
    OutputLimit,
    /// The stop reason is a filter's or a refusal.
    Moderated(ModerationStage),
    /// An answer beyond what is held: an error, never a cut.
    AnswerTooLong {
        limit_bytes: usize,
    },
    /// A whole answer that breaks a rule of ours.
    RuleBroken(Violation),
}

/// Everything a classification needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureFacts {
    pub cause: Cause,
    /// The HTTP status, where a response came.
    pub status: Option<u16>,
    pub retry_after: RetryAfterText,
    /// Whether text of the answer had come before.
    pub text_flowed: bool,
}

impl FailureFacts {
    /// Facts with no response behind them.
    pub fn new(cause: Cause) -> FailureFacts {
        FailureFacts {
            cause,
            status: None,
            retry_after: RetryAfterText::default(),
            text_flowed: false,
        }
    }

    /// One line for the log: what was seen, bounded, and nothing of the prompt but what the
    /// vendor itself repeats.
    pub fn summary(&self) -> String {
        let status = self.status.map(|status| format!("status {status}, ")).unwrap_or_default();
        let what = match &self.cause {
            Cause::Refused { html: true, .. } => "an HTML page".to_owned(),
            Cause::Refused { html: false, error } => describe(error),
            Cause::InBand { error } => format!("inside a success: {}", describe(error)),
            Cause::Transport(TransportFault::Connect) => "no connection".to_owned(),
            Cause::Transport(TransportFault::Request) => {
                "connection broke before the response".to_owned()
            }
            Cause::Transport(TransportFault::Body) => "connection broke within the body".to_owned(),
            Cause::Deadline { kind, limit } => {
                format!("{} deadline of {} ms passed", kind.as_str(), limit.as_millis())
            }
            Cause::Cut => "stream ended without its end mark".to_owned(),
            Cause::Unreadable { snippet } => format!("unreadable: {snippet:?}"),
            Cause::NothingUsable => "a success with no text".to_owned(),
            Cause::NothingFound => "a whole answer with no content".to_owned(),
            Cause::OutputLimit => "output limit reached".to_owned(),
            Cause::Moderated(ModerationStage::Input) => "refused before any text".to_owned(),
            Cause::Moderated(ModerationStage::Output) => "refused after some text".to_owned(),
            Cause::AnswerTooLong { limit_bytes } => {
                format!("answer is longer than the limit of {limit_bytes} bytes")
            }
            Cause::RuleBroken(violation) => format!("rule broken, {violation}"),
        };
        format!("{status}{what}")
    }
}

fn describe(error: &VendorError) -> String {
    let parts = [&error.kind, &error.code, &error.message];
    let told: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
    if told.is_empty() { "no error told".to_owned() } else { told.join(": ") }
}

/// A provider call that failed, with the tokens that were told before it did: they are paid for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    pub facts: FailureFacts,
    pub usage: Usage,
}
