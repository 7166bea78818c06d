//! What goes on beside the operations: the sweep, the keeper of partitions, the way of events out, and what
//! takes away data whose time is over or that somebody asks to be erased.

mod erasure;
mod event_sweep;
mod keeper;
mod relay;
mod retention;
mod retirement;
pub mod sinks;
mod sweep;

pub use erasure::{Erased, Eraser, Erasure};
pub use event_sweep::EventSweep;
pub use keeper::Keeper;
pub use relay::{Relay, RelaySettings};
pub use retention::{Retention, RetentionError, RetentionPass, RetentionRules, TakenAway};
pub use retirement::{Cleared, Retired, clear_keys, drop_old, named};
pub use sweep::Sweep;
