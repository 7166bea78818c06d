//! The text of a run on its way to whoever reads along.
//!
//! A run writes into a channel of its own; any number of readers follow it, each at its own place,
//! and none of them is waited for. Events are formatted once and shared: a reader holds a place, not
//! a copy. What ended stays for a while, within a bound, so that a connection that was lost can be
//! taken up where it broke.
//!
//! Time comes in as the time since a zero of the caller's choice.

mod channel;
mod crowd;
mod hub;
mod id;
mod replay;
mod shelf;
mod sse;

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;

pub use channel::{Begin, Channel, Ending, Reader};
pub use crowd::{Crowd, Seat};
pub use hub::{Hub, KEPT_FOR, Run, Writer};
pub use id::StreamId;
pub use replay::Replay;
pub use shelf::{Shelf, Told};
pub use sse::{COMMENT, Splitter, failed_without_id};
