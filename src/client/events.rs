//! A response's bytes as server-sent events, and how long they may be silent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use reqwest::Response;
use sse_stream::SseByteStream;

use super::transport::{Broken, LONGEST_ANSWER, broken};
use crate::clock::Clock;

/// One event.
pub(super) struct Event {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Ended(String);

/// The events of a stream. Half an event at its end is none.
pub(super) struct Events {
    decoder: SseByteStream<BoxStream<'static, Result<Bytes, Ended>>>,
    /// Bytes taken since the last event.
    held: Arc<AtomicUsize>,
}

impl Events {
    /// Broken where nothing, not even a comment, comes for `silence`.
    pub fn new(response: Response, silence: Duration, clock: Clock) -> Self {
        let held = Arc::new(AtomicUsize::new(0));
        let counter = held.clone();
        let bytes = stream::unfold(Some(response), move |response| {
            let (clock, counter) = (clock.clone(), counter.clone());
            async move {
                let mut response = response?;
                let ended = match clock.timeout(silence, response.chunk()).await {
                    Ok(Ok(Some(chunk))) => {
                        let held = counter.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
                        if held <= LONGEST_ANSWER {
                            return Some((Ok(chunk), Some(response)));
                        }
                        "an event is longer than any of the server's".to_owned()
                    }
                    Ok(Ok(None)) => return None,
                    Ok(Err(error)) => broken(error).0,
                    Err(_) => format!("nothing came for {} s", silence.as_secs_f32()),
                };
                Some((Err(Ended(ended)), None))
            }
        });
        Self { decoder: SseByteStream::new(bytes.boxed()), held }
    }

    /// The next event; that it broke, once; then `None`.
    pub async fn next(&mut self) -> Option<Result<Event, Broken>> {
        loop {
            match Pin::new(&mut self.decoder).next().await? {
                Ok(event) => {
                    self.held.store(0, Ordering::Relaxed);
                    // Without data it is none, by the standard.
                    let Some(data) = event.data else { continue };
                    let name = event.event.unwrap_or_else(|| "message".to_owned());
                    return Some(Ok(Event { id: event.id, name, data }));
                }
                Err(error) => return Some(Err(Broken(error.to_string()))),
            }
        }
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
