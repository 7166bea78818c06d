//! One binary for what needs a database or a running server, a file per promise.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test ends where it cannot go on, owns its tasks and plays the client and the system"
)]

mod bench;
mod cancelling;
mod one_outcome;
mod postgres_private;
mod provider_connection;
mod provider_deadlines;
mod provider_wire;
mod support;
mod waiting;
