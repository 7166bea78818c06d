//! What goes on beside the operations: the sweep and the keeper of partitions.

mod keeper;
mod sweep;

pub use keeper::Keeper;
pub use sweep::Sweep;
