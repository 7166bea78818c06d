//! What an arrival gets, before it is turned into HTTP.

use std::sync::Arc;

use crate::domain::ids::{Fence, RequestId};
use crate::domain::key::IdempotencyKey;
use crate::domain::problem::Problem;
use crate::domain::record::StoredAnswer;

/// The end of an arrival.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// A verdict that is stored, just now or before: the same bytes every time.
    Stored {
        answer: Arc<StoredAnswer>,
        /// Of the run that produced it.
        fence: Fence,
        /// The run that produced it, where that is not this arrival's.
        replay_of: Option<RequestId>,
    },
    /// Anything that is not stored.
    Refused(Problem),
}

/// An outcome with the key it happened under, where the service made that key.
#[derive(Debug, Clone)]
pub struct Reply {
    pub made_key: Option<IdempotencyKey>,
    pub outcome: Outcome,
}

impl Outcome {
    /// The status that it is answered with.
    pub fn status(&self) -> u16 {
        match self {
            Outcome::Stored { answer, .. } => answer.status,
            Outcome::Refused(problem) => problem.status(),
        }
    }

    /// The label `outcome` of `oncekey_requests_total`.
    pub fn label(&self) -> &'static str {
        match self {
            Outcome::Stored { replay_of: Some(_), .. } => "replayed",
            Outcome::Stored { answer, .. } if answer.status == 200 => "committed",
            Outcome::Stored { .. } => "failed",
            Outcome::Refused(problem) => problem.code.as_str(),
        }
    }
}
