//! What goes on beside the operations: the sweep, the keeper of partitions, and the way of events out.

mod event_sweep;
mod keeper;
mod relay;
mod retirement;
pub mod sinks;
mod sweep;

pub use event_sweep::EventSweep;
pub use keeper::Keeper;
pub use relay::{Relay, RelaySettings};
pub use retirement::{Cleared, Retired, clear_keys, drop_old, named};
pub use sweep::Sweep;
