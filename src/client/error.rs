//! Why there is no answer, told apart by whom it concerns.

use std::time::Duration;

use super::problem::Problem;

/// Why there is no answer. The same operation may be sent again after [`ClientError::ConnectionLost`],
/// [`ClientError::TimedOut`] and [`ClientError::OurSide`]; after [`ClientError::YourInput`] it gets the
/// same refusal (but for 429, where a person may try later).
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing was sent.
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// The way to the server broke, also when it was tried again.
    #[error(transparent)]
    ConnectionLost(Lost),
    /// The client's own time-out passed; the operation may still run.
    #[error(transparent)]
    TimedOut(TimedOut),
    /// The service failed: 5xx, or an answer that is none.
    #[error("the service failed: {0}")]
    OurSide(Failed),
    /// The request was refused: 4xx.
    #[error("{0}")]
    YourInput(Failed),
}

/// A connection that broke; the operation may have run, or may still.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the connection was lost ({cause}; sent {attempts} times)")]
pub struct Lost {
    pub key: String,
    pub attempts: u32,
    /// The transport's words.
    pub cause: String,
}

/// The client's patience ended.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no answer within {} s", after.as_secs())]
pub struct TimedOut {
    pub key: String,
    pub attempts: u32,
    pub after: Duration,
    /// What the server said last, where it said something: that the operation runs, say.
    pub last: Option<Box<Problem>>,
}

/// An answer that is no success.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{problem}")]
pub struct Failed {
    pub key: String,
    pub attempts: u32,
    pub problem: Box<Problem>,
}

impl ClientError {
    /// Whether the same key may bring an answer later.
    pub fn may_be_asked_again(&self) -> bool {
        match self {
            ClientError::ConnectionLost(_) | ClientError::TimedOut(_) | ClientError::OurSide(_) => {
                true
            }
            ClientError::YourInput(failed) => failed.problem.status == 429,
            ClientError::NotSent(_) => false,
        }
    }

    /// The problem that the server told, where it told one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            ClientError::OurSide(failed) | ClientError::YourInput(failed) => Some(&failed.problem),
            ClientError::TimedOut(timed_out) => timed_out.last.as_deref(),
            ClientError::ConnectionLost(_) | ClientError::NotSent(_) => None,
        }
    }
}
