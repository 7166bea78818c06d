//! What both vendors' readers share: where the text goes, and what an end means.

use serde_json::Value;

use crate::domain::failure::{Cause, ModerationStage, VendorError};
use crate::domain::prompt::StopReason;
use crate::domain::usage::Usage;

/// What an event meant for the deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// A keep-alive, or nothing we know.
    Nothing,
    /// The answer has begun, without content.
    Began,
    Content,
    /// The vendor's end mark: nothing follows.
    End,
}

/// Why a complete answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    End,
    MaxTokens,
    /// A filter, or the model itself, refused.
    Refused,
    /// The provider behind a gateway broke.
    Broken,
}

/// One vendor's way of telling an answer, event by event or at once.
pub(super) trait Reading: Send {
    /// Takes the data of one event.
    fn event(&mut self, event: &Value, answer: &mut AnswerText<'_>) -> Result<Progress, Cause>;

    /// Data that is an end mark in itself, and no JSON.
    fn done_word(&self) -> Option<&'static str> {
        None
    }

    /// Takes a whole answer, from a server that does not stream.
    fn whole(&mut self, body: &Value, answer: &mut AnswerText<'_>) -> Result<(), Cause>;

    /// The tokens told so far.
    fn usage(&self) -> Usage;

    /// Why the answer ended, once the vendor's end mark has come.
    fn stop(&self) -> Option<Stop>;
}

/// The answer's text as it grows, in linear time and within its limit.
pub(super) struct AnswerText<'a> {
    text: String,
    limit_bytes: usize,
    on_delta: &'a mut (dyn FnMut(&str) + Send),
}

impl<'a> AnswerText<'a> {
    pub(super) fn new(
        limit_bytes: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> AnswerText<'a> {
        AnswerText { text: String::new(), limit_bytes, on_delta }
    }

    /// Adds a piece and hands it on.
    ///
    /// # Errors
    /// [`Cause::AnswerTooLong`]; the piece that does not fit is neither kept nor handed on.
    pub(super) fn push(&mut self, piece: &str) -> Result<(), Cause> {
        if piece.is_empty() {
            return Ok(());
        }
        if self.text.len() + piece.len() > self.limit_bytes {
            return Err(Cause::AnswerTooLong { limit_bytes: self.limit_bytes });
        }
        self.text.push_str(piece);
        (self.on_delta)(piece);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text and its stop reason, where the end was a good one.
    ///
    /// # Errors
    /// The cause that stands for this end.
    pub(super) fn finish(&mut self, stop: Option<Stop>) -> Result<(String, StopReason), Cause> {
        let blank = self.text.trim().is_empty();
        let stop = match stop {
            None => return Err(Cause::Cut),
            Some(Stop::Broken) => return Err(Cause::InBand { error: broken() }),
            // Refused with no text: no tier would take it. With some: the text is not the answer.
            Some(Stop::Refused) if blank => return Err(Cause::Moderated(ModerationStage::Input)),
            Some(Stop::Refused) => return Err(Cause::Moderated(ModerationStage::Output)),
            Some(Stop::MaxTokens) if blank => return Err(Cause::OutputLimit),
            Some(Stop::End) if blank => return Err(Cause::NothingUsable),
            Some(Stop::MaxTokens) => StopReason::MaxTokens,
            Some(Stop::End) => StopReason::End,
        };
        Ok((std::mem::take(&mut self.text), stop))
    }
}

fn broken() -> VendorError {
    VendorError { kind: Some("server_error".to_owned()), ..VendorError::default() }
}

/// Replaces what was known by what is told, if anything is: figures in a stream are running
/// totals, and the last of each field is the one that counts.
pub(super) fn last_told(known: &mut Option<i64>, told: &Value) {
    if let Some(count) = told.as_i64().filter(|count| *count >= 0) {
        *known = Some(count);
    }
}
