//! The record of an operation, as one look at the database finds it.

use chrono::{DateTime, NaiveDate, Utc};

use super::hash::RequestHash;
use super::ids::{ConversationId, Fence, OperationId, RequestId, Subject, TenantId};
use super::liveness::LivenessFacts;

/// Where a record lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordKey {
    pub tenant: TenantId,
    pub key: uuid::Uuid,
    pub day: NaiveDate,
}

/// The two values that every guarded write compares. The number alone is not enough: a claim that a
/// crash of the database forgot is made again with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    pub fence: Fence,
    pub request_id: RequestId,
}

/// How far an operation is, with what belongs to each state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    InProgress,
    /// `None`: erased.
    Committed(Option<StoredAnswer>),
    /// `None`: erased.
    FailedFinal(Option<StoredAnswer>),
    FailedPassing,
}

/// What is replayed, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// A record with all that a decision or a report needs.
#[derive(Debug, Clone)]
pub struct Record {
    pub at: RecordKey,
    pub guard: Guard,
    pub operation_id: OperationId,
    pub endpoint: String,
    pub key_source: String,
    pub subject: Option<Subject>,
    pub conversation_id: Option<ConversationId>,
    pub request_hash: RequestHash,
    pub state: State,
    pub attempts: u32,
    pub quota_hits: u32,
    pub failure_kind: Option<String>,
    pub first_claimed_at: DateTime<Utc>,
    pub claimed_at: DateTime<Utc>,
    pub completed_at: Option<DateTime<Utc>>,
    pub erased: bool,
    pub liveness: LivenessFacts,
}

impl State {
    /// The word in `request_records.state`.
    pub fn as_str(&self) -> &'static str {
        match self {
            State::InProgress => "in_progress",
            State::Committed(_) => "committed",
            State::FailedFinal(_) | State::FailedPassing => "failed",
        }
    }
}
