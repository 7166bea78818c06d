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
///
/// Where a tool is asked for the answer is its input, and what a model says beside it is kept apart, for
/// the case that it calls none. All inputs of an answer are joined: of two calls neither is the answer
/// alone, and to take the first would lose what is in the second without a word.
pub(super) struct AnswerText<'a> {
    text: String,
    beside: String,
    limit_bytes: usize,
    on_delta: &'a mut (dyn FnMut(&str) + Send),
}

impl<'a> AnswerText<'a> {
    pub(super) fn new(
        limit_bytes: usize,
        on_delta: &'a mut (dyn FnMut(&str) + Send),
    ) -> AnswerText<'a> {
        AnswerText { text: String::new(), beside: String::new(), limit_bytes, on_delta }
    }

    /// Adds a piece and hands it on.
    ///
    /// # Errors
    /// [`Cause::AnswerTooLong`]; the piece that does not fit is neither kept nor handed on.
    pub(super) fn push(&mut self, piece: &str) -> Result<(), Cause> {
        if piece.is_empty() {
            return Ok(());
        }
        self.fits(&self.text, piece)?;
        self.beside = String::new();
        self.text.push_str(piece);
        (self.on_delta)(piece);
        Ok(())
    }

    /// Keeps what is said beside a tool's input, until there is some.
    ///
    /// # Errors
    /// [`Cause::AnswerTooLong`].
    pub(super) fn push_beside(&mut self, piece: &str) -> Result<(), Cause> {
        if self.text.is_empty() {
            self.fits(&self.beside, piece)?;
            self.beside.push_str(piece);
        }
        Ok(())
    }

    fn fits(&self, held: &str, piece: &str) -> Result<(), Cause> {
        if held.len() + piece.len() > self.limit_bytes {
            return Err(Cause::AnswerTooLong { limit_bytes: self.limit_bytes });
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.beside.is_empty()
    }

    /// The text and its stop reason, where the end was a good one.
    ///
    /// # Errors
    /// The cause that stands for this end.
    pub(super) fn finish(&mut self, stop: Option<Stop>) -> Result<(String, StopReason), Cause> {
        let Some(stop) = stop else { return Err(Cause::Cut) };
        let beside = std::mem::take(&mut self.beside);
        self.push(&beside)?;
        let blank = self.text.trim().is_empty();
        let stop = match stop {
            Stop::Broken => return Err(Cause::InBand { error: broken() }),
            // Refused with no text: no tier would take it. With some: the text is not the answer.
            Stop::Refused if blank => return Err(Cause::Moderated(ModerationStage::Input)),
            Stop::Refused => return Err(Cause::Moderated(ModerationStage::Output)),
            Stop::MaxTokens if blank => return Err(Cause::OutputLimit),
            Stop::End if blank => return Err(Cause::NothingUsable),
            Stop::MaxTokens => StopReason::MaxTokens,
            Stop::End => StopReason::End,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_beside_a_tool_is_the_answer_where_there_is_no_input() {
        let mut told = String::new();
        let mut on_delta = |piece: &str| told.push_str(piece);
        let mut answer = AnswerText::new(10, &mut on_delta);
        answer.push_beside("I have").unwrap();
        answer.push_beside(" no").unwrap();
        assert!(answer.push_beside("thing").is_err(), "within the same limit");
        assert!(!answer.is_empty());
        assert_eq!(answer.finish(Some(Stop::End)).unwrap().0, "I have no");
        assert_eq!(told, "I have no");

        let mut nothing = |_: &str| {};
        let mut answer = AnswerText::new(10, &mut nothing);
        answer.push_beside("Here it is").unwrap();
        answer.push("{}").unwrap();
        answer.push_beside("and no longer counts").unwrap();
        assert_eq!(answer.finish(Some(Stop::End)).unwrap().0, "{}");
    }

    /// Each growth of the text copies it once. With a copy for each piece this would be 400,000 of them.
    #[test]
    fn millions_of_bytes_are_copied_a_few_times() {
        for pieces in [40_000, 400_000] {
            let mut nothing = |_: &str| {};
            let mut answer = AnswerText::new(usize::MAX, &mut nothing);
            let (mut copies, mut copied) = (0, 0);
            for _ in 0..pieces {
                let capacity = answer.text.capacity();
                answer.push("\"a line\":12").unwrap();
                if answer.text.capacity() != capacity {
                    (copies, copied) = (copies + 1, copied + capacity);
                }
            }
            assert!(copies < 30, "{copies}");
            assert!(copied < 2 * answer.text.len(), "{copied}");
        }
    }
}
