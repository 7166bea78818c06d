//! Values and decisions. No IO, no async, no clock: what happens next is decided here from facts
//! that somebody else read, and performed by somebody else.

pub mod api_key;
pub mod arrival;
pub mod chat;
pub mod failure;
pub mod hash;
pub mod ids;
pub mod json;
pub mod key;
pub mod liveness;
pub mod outbox;
pub mod pace;
pub mod parse;
pub mod partition;
pub mod peer;
pub mod problem;
pub mod prompt;
pub mod provider_bill;
pub mod public_address;
pub mod reconcile;
pub mod record;
pub mod request;
pub mod retry;
pub mod rules;
pub mod secret;
pub mod text;
pub mod throttle;
pub mod trace_parent;
pub mod usage;
pub mod usage_report;
pub mod verdict;
