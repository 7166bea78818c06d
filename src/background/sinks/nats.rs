//! Events to a NATS JetStream stream. The event's id is the message's, so that the stream itself drops
//! what it is sent twice within its window; an event counts as delivered when the stream has stored it.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, HeaderMap};
use tokio::sync::OnceCell;

use super::{EventSink, cut};
use crate::clock::{BoxFuture, Clock};
use crate::domain::outbox::{Delivery, Event, cloud_event};
use crate::domain::secret::Secret;

const CONTENT: &str = "application/cloudevents+json; charset=utf-8";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two tries of the client to reach its server, from the second on.
const RECONNECT: Duration = Duration::from_millis(500);
/// JetStream's number for a message that is larger than its stream takes: the event's fault.
const MESSAGE_TOO_LARGE: u64 = 10054;
/// Stands for the event's type in a subject.
const TYPE: &str = "{type}";

/// What the sink is built from.
#[derive(Debug)]
pub struct NatsSettings {
    pub name: String,
    /// `nats://` or `tls://`.
    pub url: String,
    pub token: Option<Secret>,
    /// `{type}` in it is the event's type.
    pub subject: String,
    /// Of a whole delivery.
    pub timeout: Duration,
}

/// A JetStream server.
pub struct Nats {
    settings: NatsSettings,
    clock: Clock,
    /// Made at the first event; it reconnects by itself.
    context: OnceCell<Context>,
}

impl Nats {
    pub fn new(settings: NatsSettings, clock: Clock) -> Self {
        Self { settings, clock, context: OnceCell::new() }
    }

    async fn context(&self) -> Result<&Context, String> {
        let connect = || async {
            // Already installed, by an earlier client or by the program: just as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let mut options = ConnectOptions::new()
                .name("oncekey")
                .connection_timeout(CONNECT_TIMEOUT)
                .reconnect_delay_callback(
                    |tries| {
                        if tries <= 1 { Duration::ZERO } else { RECONNECT }
                    },
                );
            if let Some(token) = &self.settings.token {
                options = options.token(token.expose().to_owned());
            }
            let client: Client = options
                .connect(self.settings.url.as_str())
                .await
                .map_err(|error| format!("no connection: {error}"))?;
            let mut context = jetstream::new(client);
            context.set_timeout(self.settings.timeout);
            Ok(context)
        };
        self.context.get_or_try_init(connect).await
    }

    async fn publish(&self, event: &Event) -> Delivery {
        let body = match cloud_event(event) {
            Ok(body) => body,
            Err(error) => return Delivery::Refused { why: format!("no envelope: {error}") },
        };
        let context = match self.context().await {
            Ok(context) => context,
            Err(why) => return Delivery::Failed { why: cut(&why) },
        };
        if context.client().connection_state() != State::Connected {
            // Else it would be kept in the client's memory, and sent after we had given it up.
            return Delivery::Failed { why: "the connection is lost".to_owned() };
        }
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", event.id.to_string());
        headers.insert("Content-Type", CONTENT);
        let subject = self.settings.subject.replace(TYPE, &event.kind);
        let sending = context.publish_with_headers(subject.clone(), headers, body.into());
        let stored = match sending.await {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(_) => Delivery::Accepted,
            Err(error) => judged(&error, &subject),
        }
    }
}

fn judged(error: &PublishError, subject: &str) -> Delivery {
    let why = cut(&match std::error::Error::source(error) {
        Some(source) => format!("{}: {source}", error.kind()),
        None => error.to_string(),
    });
    match error.kind() {
        PublishErrorKind::StreamNotFound => Delivery::Failed {
            why: format!("no stream takes the subject {subject}: make one with `nats stream add`"),
        },
        PublishErrorKind::MaxPayloadExceeded => Delivery::Refused { why },
        _ if too_large(error) => Delivery::Refused { why },
        _ => Delivery::Failed { why },
    }
}

fn too_large(error: &PublishError) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
        .is_some_and(|error| error.error_code().0 == MESSAGE_TOO_LARGE)
}

impl EventSink for Nats {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn deliver<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Delivery> {
        let limit = self.settings.timeout + CONNECT_TIMEOUT;
        Box::pin(async move {
            self.clock.timeout(limit, self.publish(event)).await.unwrap_or_else(|elapsed| {
                Delivery::Failed { why: format!("no acknowledgement: {elapsed}") }
            })
        })
    }
}
