//! One binary for what needs a database or a running server, a file per promise.

mod one_outcome;
mod postgres_private;
mod provider_connection;
mod provider_deadlines;
mod provider_wire;
mod support;
