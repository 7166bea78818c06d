//! The client's half of the contract, for programs that call the service.
//!
//! The server makes one outcome of one key. Whether the client keeps to one key for one thing that its
//! user did, and knows when a repeat helps, is decided here: a key is minted once, before anything is
//! sent, together with the bytes of the body; both are sent again, unchanged, where a repeat helps, and
//! nothing is where it does not. [`decide()`] says which is which, without a clock or a connection, and
//! `clients/vectors.json` holds it and the clients in other languages to the same answers.
//!
//! ```no_run
//! use oncekey::client::{ChatRequest, Client};
//!
//! # async fn ask() -> Result<(), oncekey::client::ClientError> {
//! let client = Client::builder("http://127.0.0.1:8080", "ok_…").build()?;
//! // One key for one press of "send", however often it goes over the wire.
//! let operation = client.begin(ChatRequest::new("kitchen", "Is it boiling?"));
//! let reply = client.send(&operation).await?;
//! println!("{}", reply.answer.message.content);
//! # Ok(())
//! # }
//! ```
//!
//! As a stream, which comes back behind what it has when the connection breaks:
//!
//! ```no_run
//! use oncekey::client::{ChatRequest, Client, StreamEvent};
//!
//! # async fn ask(client: Client) -> Result<(), oncekey::client::ClientError> {
//! let operation = client.begin(ChatRequest::new("kitchen", "And now?").model("default"));
//! let mut shown = String::new();
//! let mut stream = client.stream(&operation);
//! while let Some(event) = stream.next().await? {
//!     match event {
//!         StreamEvent::Delta(text) => shown.push_str(&text),
//!         // Another run took over: what was shown is not the answer.
//!         StreamEvent::Restarted => shown.clear(),
//!         StreamEvent::Completed(reply) => println!("{}", reply.answer.message.content),
//!         StreamEvent::Started { .. } | StreamEvent::Progress { .. } => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What went wrong, told apart, since a person needs another sentence for each:
//!
//! ```no_run
//! use oncekey::client::{Client, ClientError, ParseRequest};
//!
//! # async fn import(client: Client, file: Vec<u8>) {
//! let operation = client.begin(ParseRequest::file(file).allow_gaps(true));
//! match client.send(&operation).await {
//!     Ok(reply) => println!("{}", reply.answer.result),
//!     Err(ClientError::ConnectionLost(_) | ClientError::TimedOut(_)) => {
//!         println!("No connection. Your file is not lost: send it again with the same key.");
//!     }
//!     Err(ClientError::OurSide(failed)) => println!("Our fault: {}", failed.problem),
//!     Err(ClientError::YourInput(failed)) => println!("{}", failed.problem.detail),
//!     Err(ClientError::NotSent(reason)) => println!("{reason}"),
//! }
//! # }
//! ```
//!
//! An app that may be killed keeps its operations with a [`Journal`] and goes on with what it left.

mod answer;
mod builder;
mod decide;
mod error;
mod events;
mod inner;
mod journal;
mod operation;
mod policy;
mod problem;
mod request;
mod send;
mod stream;
mod transport;
mod tries;
#[cfg(test)]
mod vectors;

pub use answer::{ChatAnswer, ChatMessage, Gap, ParseAnswer, RecordAnswer, Reply};
pub use builder::{ClientBuilder, DEFAULT_SILENCE, DEFAULT_TIMEOUT};
pub use decide::{Decision, Ending, Situation, SoFar, decide, told_wait};
pub use error::{ClientError, Failed, Lost, TimedOut};
pub use inner::Client;
pub use journal::{Journal, JournalError};
pub use operation::{Chat, Endpoint, Operation, Parse};
pub use policy::{Repeat, RetryPolicy, Why};
pub use problem::Problem;
pub use request::{ChatRequest, ParseRequest, Request};
pub use stream::{EventStream, StreamEvent};
