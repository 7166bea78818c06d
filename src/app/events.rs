//! The way of events out, from the configuration: the sinks and the relay that feeds them.

use std::sync::Arc;

use super::AppError;
use crate::background::sinks::{
    EventSink, Nats, NatsSettings, SigningSecrets, Stdout, Webhook, WebhookSettings,
};
use crate::background::{Relay, RelaySettings};
use crate::clock::Clock;
use crate::config::{Outbox, Sink, SinkPlace};
use crate::domain::outbox::LetterRules;
use crate::domain::secret::Secret;
use crate::faults::Faults;
use crate::lifecycle::Lifecycle;
use crate::store::Store;

/// The sinks of this node; none where it does not relay.
pub(super) fn sinks(outbox: &Outbox, clock: &Clock) -> Result<Vec<Arc<dyn EventSink>>, AppError> {
    if !outbox.relay {
        return Ok(Vec::new());
    }
    outbox.sinks.iter().map(|sink| built(sink, clock)).collect()
}

fn built(sink: &Sink, clock: &Clock) -> Result<Arc<dyn EventSink>, AppError> {
    let (name, clock) = (sink.name.clone(), clock.clone());
    let wrong = |problem: String| AppError::Sink { name: sink.name.clone(), problem };
    Ok(match &sink.place {
        SinkPlace::Webhook { url, secret, allow_private, timeout } => {
            let secrets = SigningSecrets::parse(secret.get()?.expose())
                .map_err(|error| wrong(format!("the variable {}: {error}", secret.variable())))?;
            let settings = WebhookSettings {
                name,
                url: url.clone(),
                secrets,
                allow_private: *allow_private,
                timeout: *timeout,
            };
            Arc::new(Webhook::new(settings, clock).map_err(wrong)?)
        }
        SinkPlace::Nats { url, secret, subject, timeout } => {
            let token = match secret {
                Some(secret) => Some(Secret::new(secret.get()?.expose())),
                None => None,
            };
            let (url, subject, timeout) = (url.clone(), subject.clone(), *timeout);
            Arc::new(Nats::new(NatsSettings { name, url, token, subject, timeout }, clock))
        }
        SinkPlace::Stdout => Arc::new(Stdout::new(name, clock)),
    })
}

/// The relay of this node, which does nothing without sinks.
pub(super) fn relay(
    outbox: &Outbox,
    sinks: Vec<Arc<dyn EventSink>>,
    store: &Store,
    clock: &Clock,
    lifecycle: &Lifecycle,
    faults: Faults,
) -> Relay {
    Relay {
        store: store.clone(),
        clock: clock.clone(),
        lifecycle: lifecycle.clone(),
        faults,
        settings: RelaySettings {
            poll: outbox.poll,
            batch: outbox.batch,
            letters: LetterRules {
                max_attempts: outbox.max_attempts,
                give_up_after: outbox.give_up_after,
            },
        },
        sinks,
    }
}
