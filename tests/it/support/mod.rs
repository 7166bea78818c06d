//! What several promises are tested with.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests stand outside the product: they keep real time, spawn and call"
)]

pub mod behind_proxy;
pub mod client;
pub mod clock;
pub mod collector;
pub mod contract;
pub mod database;
pub mod direct;
pub mod events;
pub mod groups;
pub mod hook;
pub mod languages;
pub mod library;
pub mod nats;
pub mod node;
pub mod old_days;
pub mod outbox;
pub mod pair;
pub mod parse;
pub mod pdf;
pub mod pgbouncer;
pub mod process;
pub mod provider;
pub mod proxy;
pub mod reader;
pub mod standby;
pub mod trap;

use std::future::Future;
use std::time::Duration;

pub use client::{Answer, Client};
pub use database::TestDatabase;
pub use events::Events;
pub use pair::Pair;

/// How long a wait for something that must happen may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a look at something outside the process (a table, a port) finds what must come.
pub async fn eventually<F, R>(what: &str, look: F)
where
    F: Fn() -> R,
    R: Future<Output = bool>,
{
    let wait = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "waited in vain until {what}");
}
