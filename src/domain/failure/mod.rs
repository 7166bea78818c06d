//! What went wrong, told once.
//!
//! The same refusal reaches us as a status, as an error inside a 200, as a sentence in some
//! gateway's HTML. Whoever meets it writes down [`FailureFacts`] and nothing else; [`classify`]
//! is the only place that turns facts into a [`FailureKind`], and the kind is what columns, logs
//! and metrics carry. So one cause has one name, wherever it was met.

mod classify;
mod facts;
mod kind;
mod wordings;

pub use classify::{Diagnosis, classify, diagnose};
pub use facts::{
    CallFailure, Cause, DeadlineKind, FailureFacts, ModerationStage, RetryAfterText,
    TransportFault, VendorError,
};
pub use kind::FailureKind;
