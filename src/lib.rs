//! One durable outcome per operation the client meant: an idempotent front for language models.
//!
//! The rooms, from the door inwards. Data flows one way: HTTP → operation → store and provider;
//! `tests/architecture.rs` holds who may import whom.

pub mod app;
pub mod background;
pub mod bench;
pub mod captures;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod documents;
pub mod domain;
pub mod faults;
pub mod http;
pub mod lifecycle;
pub mod operation;
pub mod peers;
pub mod postgres;
pub mod provider;
pub mod store;
pub mod streams;
pub mod telemetry;
