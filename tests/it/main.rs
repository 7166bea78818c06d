//! One binary for what needs a database or a running server, a file per promise.

mod postgres_private;
