//! The part of `src/domain` that is fuzzed, without the rest of the service and its crates.

#[path = "../../src/domain/chat.rs"]
pub mod chat;
#[path = "../../src/domain/hash.rs"]
pub mod hash;
#[path = "../../src/domain/ids.rs"]
pub mod ids;
#[path = "../../src/domain/json.rs"]
pub mod json;
#[path = "../../src/domain/key.rs"]
pub mod key;
#[path = "../../src/domain/text.rs"]
pub mod text;
