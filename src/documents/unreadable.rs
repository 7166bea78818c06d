//! Why an input is not read, in the words of the answer.

use serde::{Deserialize, Serialize};

/// Why nothing can be asked about an input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is of no type that is read here; always the same for the same bytes.
    #[error("this is {what}")]
    Unsupported {
        /// In words for whoever sent it.
        what: &'static str,
    },
    /// It is of a type that is read, and cannot be; always the same for the same bytes.
    #[error("{}", .0.explained())]
    Refused(UnreadableReason),
    /// Nothing is known about the input: reading it failed on our side, and may succeed next time.
    #[error("the input could not be looked at: {0}")]
    Ours(String),
}

/// The `reason` of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnreadableReason {
    PasswordRequired,
    Broken,
    Empty,
    NoPages,
    NoTextLayer,
    TooComplex,
}

impl UnreadableReason {
    /// The word of the answer.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PasswordRequired => "password_required",
            Self::Broken => "broken",
            Self::Empty => "empty",
            Self::NoPages => "no_pages",
            Self::NoTextLayer => "no_text_layer",
            Self::TooComplex => "too_complex",
        }
    }

    /// A sentence for whoever sent the file: what is wrong and what would help.
    pub fn explained(self) -> &'static str {
        match self {
            Self::PasswordRequired => {
                "the file is locked with a password: send a copy that opens without one"
            }
            Self::Broken => "the file is damaged or incomplete: export or save it again",
            Self::Empty => "there is nothing in the file",
            Self::NoPages => "the document has no pages",
            Self::NoTextLayer => {
                "there is no text in the file, only pictures, which this model does not read"
            }
            Self::TooComplex => {
                "the file is too large or too intricate to be read: send it in parts, or simpler"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_the_answer_is_the_word_on_the_wire() {
        use UnreadableReason::*;
        for reason in [PasswordRequired, Broken, Empty, NoPages, NoTextLayer, TooComplex] {
            let wire = serde_json::to_value(reason).unwrap();
            assert_eq!(wire, reason.as_str());
        }
    }
}
