//! What can go wrong between the service and its database, told apart by what may be done about it.

use std::borrow::Cow;

/// SQLSTATE that `lease_lost_v1()` raises.
const LEASE_LOST: &str = "OK001";

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, or the connection broke: whether the statement took effect is
    /// not known.
    #[error("the database cannot be reached: {0}")]
    Unavailable(Cow<'static, str>),
    /// No connection could be had: the statement never began.
    #[error("no connection to the database: {0}")]
    NotSent(Cow<'static, str>),
    /// 40001 or 40P01: the whole transaction was undone and may be repeated.
    #[error("the transaction met another one: {0}")]
    Conflict(String),
    /// A record has no partition to live in.
    #[error("there is no partition for this day")]
    PartitionMissing,
    /// The record was still ours, its conversation was not; everything was undone.
    #[error("the conversation belongs to another operation")]
    LeaseLost,
    /// A row holds what this version does not know.
    #[error("{table}.{column} of {key} cannot be read: {problem}")]
    Corrupt { table: &'static str, column: &'static str, key: String, problem: String },
    /// A mistake of ours.
    #[error("the database refused a statement: {0}")]
    Bug(String),
}

impl StoreError {
    pub(super) fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        StoreError::Unavailable(text.into())
    }

    /// Undone as a whole; repeating is safe.
    pub fn is_conflict(&self) -> bool {
        matches!(self, StoreError::Conflict(_))
    }

    /// The outcome of the statement is not known, or it never began.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StoreError::Unavailable(_) | StoreError::NotSent(_))
    }

    /// The statement was sent, and its outcome is not known.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self, StoreError::Unavailable(_))
    }

    /// The same where the statement was about to be sent, and was not.
    pub(super) fn not_sent(self) -> Self {
        match self {
            StoreError::Unavailable(text) => StoreError::NotSent(text),
            other => other,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refusal) => {
                let code = refusal.code().unwrap_or_default();
                match code.as_ref() {
                    "40001" | "40P01" => StoreError::Conflict(refusal.message().to_owned()),
                    LEASE_LOST => StoreError::LeaseLost,
                    // A CHECK would be named; a row without a partition breaks none.
                    "23514" if refusal.constraint().is_none() => StoreError::PartitionMissing,
                    // Lock and statement time-outs, shut-down, start-up, too many connections, a
                    // full disk: all pass, and none is the client's doing.
                    "55P03" | "57014" | "25P03" | "53000" | "53100" | "53200" | "53300" => {
                        StoreError::unavailable(refusal.message().to_owned())
                    }
                    code if code.starts_with("57P") || code.starts_with("08") => {
                        StoreError::unavailable(refusal.message().to_owned())
                    }
                    // A login or a database that is refused: no statement began, and whoever runs
                    // the service can mend it.
                    code if code.starts_with("28") || code == "3D000" => {
                        StoreError::unavailable(refusal.message().to_owned())
                    }
                    // A standby: one that is not promoted yet, or a primary that has just become
                    // one. What is not logged cannot even be read there (0A000, which is also what
                    // a plan gets that a migration made void; another connection has none).
                    "25006" | "0A000" => StoreError::unavailable(refusal.message().to_owned()),
                    code => StoreError::Bug(format!("{} ({code})", refusal.message())),
                }
            }
            sqlx::Error::Io(error) => StoreError::unavailable(error.to_string()),
            sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => {
                StoreError::unavailable(error.to_string())
            }
            _ => StoreError::Bug(error.to_string()),
        }
    }
}
