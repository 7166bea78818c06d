//! Values and decisions. No IO, no async, no clock: what happens next is decided here from facts
//! that somebody else read, and performed by somebody else.

pub mod failure;
pub mod prompt;
pub mod retry;
pub mod secret;
pub mod usage;
