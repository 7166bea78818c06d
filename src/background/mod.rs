//! What goes on beside the operations: the sweep and the keeper of partitions.

mod keeper;
mod retirement;
mod sweep;

pub use keeper::Keeper;
pub use retirement::{Cleared, Retired, clear_keys, drop_old, named};
pub use sweep::Sweep;
