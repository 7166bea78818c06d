//! Parsing: from a text to a structured result, in pieces.
//!
//! A text is cut into chunks ([`chunk`]), each is asked about in one call ([`Profile::message`]), what a
//! model writes is read and held against the profile's schema ([`salvage`]), and the chunks' values are
//! merged in order ([`merge`]). What a parse produces, and what "nothing found" means for it, is a
//! [`Profile`]'s; scripts are built in. All of it is pure and linear in the text.

mod chunks;
mod fields;
mod merge;
mod message;
mod profile;
mod request;
mod salvage;
pub mod speech;

pub use chunks::{Chunk, chunk, halves};
pub use merge::{Merged, merge};
pub use message::{Sent, sent};
pub use profile::{MergeRule, Profile, ProfileFault, ProfileSettings, SCRIPT};
pub use request::{
    ENDPOINT, Input, InvalidParse, JsonBody, JsonRequest, Options, ParseRequest, StoredRequest,
};
pub use salvage::{Salvaged, salvage};
