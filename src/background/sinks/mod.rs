//! Where events go. A sink delivers one event at a time and says what came of it; when to try again,
//! and whose fault it was, is decided by the relay.

mod nats;
mod resolver;
mod signature;
mod stdout;
mod webhook;

pub use nats::{Nats, NatsSettings};
pub use signature::{SigningSecrets, WrongSecret};
pub use stdout::Stdout;
pub use webhook::{Webhook, WebhookSettings};

use crate::clock::BoxFuture;
use crate::domain::outbox::{Delivery, Event};

/// A place that events are delivered to.
pub trait EventSink: Send + Sync {
    /// Its name, under which acknowledgements are kept.
    fn name(&self) -> &str;

    /// Delivers an event, in a bounded time. `Accepted` only where the other end has it.
    fn deliver<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Delivery>;
}

/// Text of the other end, for a log line and `last_error`: on one line, without control characters,
/// and short.
fn cut(text: &str) -> String {
    const LONGEST: usize = 300;
    let clean: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(LONGEST)
        .collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}
