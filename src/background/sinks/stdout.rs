//! Events as lines of JSON on standard output, for trying. The log goes to standard error, so the two
//! do not mix; what `serve` says at its start is no JSON.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use super::EventSink;
use crate::clock::{BoxFuture, Clock};
use crate::domain::outbox::{Delivery, Event, cloud_event};

/// A reader that takes nothing for so long is one that is down.
const LIMIT: Duration = Duration::from_secs(5);

/// Standard output.
pub struct Stdout {
    name: String,
    clock: Clock,
    out: Mutex<tokio::io::Stdout>,
}

impl Stdout {
    pub fn new(name: String, clock: Clock) -> Self {
        Self { name, clock, out: Mutex::new(tokio::io::stdout()) }
    }

    async fn print(&self, event: &Event) -> Delivery {
        let line = match cloud_event(event) {
            Ok(line) => line + "\n",
            Err(error) => return Delivery::Refused { why: format!("no envelope: {error}") },
        };
        let writing = async {
            let mut out = self.out.lock().await;
            out.write_all(line.as_bytes()).await?;
            out.flush().await
        };
        match self.clock.timeout(LIMIT, writing).await {
            Ok(Ok(())) => Delivery::Accepted,
            Ok(Err(error)) => Delivery::Failed { why: error.to_string() },
            Err(elapsed) => Delivery::Failed { why: elapsed.to_string() },
        }
    }
}

impl EventSink for Stdout {
    fn name(&self) -> &str {
        &self.name
    }

    fn deliver<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Delivery> {
        Box::pin(self.print(event))
    }
}
