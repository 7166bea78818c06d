//! What can be made to go wrong on purpose, so that every way back can be tried on the real binary
//! and not only described.
//!
//! A process takes its faults from variables `ONCEKEY_FAULT_<NAME>`, and only with
//! `ONCEKEY_FAULTS=on`; [`TABLE`] lists them all, and the help of `oncekey serve` is made of it. Tests
//! inside the process hook the [`Point`]s instead. Nothing here waits or breaks anything but by a hang
//! or a panic: a room asks [`Faults::take`] at the place where it can be hurt, and does the harm itself.
//! Where no fault is asked for, asking costs one look at an empty option.

mod injection;
mod plan;
mod point;
mod table;

pub use injection::Faults;
pub use plan::Plan;
pub use point::Point;
pub use table::{Fault, Row, TABLE, help};
