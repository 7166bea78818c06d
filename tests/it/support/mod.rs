//! What several promises are tested with.

pub mod provider;
