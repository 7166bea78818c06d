//! What a client is made of, and how an operation begins and ends with it.

use std::sync::Arc;
use std::time::Duration;

use super::error::ClientError;
use super::journal::{Journal, kept};
use super::operation::{Endpoint, Operation, checked_key};
use super::policy::{Repeat, RetryPolicy};
use super::request::Request;
use super::transport::Transport;
use super::tries::Tries;
use crate::clock::Clock;

/// Who wants to know of repeats.
pub(super) type OnRepeat = Arc<dyn Fn(&Repeat) + Send + Sync>;

/// Calls one server with one API key; clones are one and the same.
#[derive(Clone)]
pub struct Client(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub transport: Transport,
    pub policy: RetryPolicy,
    pub timeout: Duration,
    pub silence: Duration,
    pub journal: Option<Arc<dyn Journal>>,
    pub on_repeat: Option<OnRepeat>,
    pub clock: Clock,
}

impl Client {
    /// One thing that a user did, under a new key (UUIDv7). Nothing is sent yet: call it when the user
    /// acts, and keep what it returns until there is an answer.
    pub fn begin<R: Request>(&self, request: R) -> Operation<R::Endpoint> {
        let parts = request.into_parts();
        Operation::new(self.0.clock.new_id().to_string(), parts.body, parts.metadata)
    }

    /// The same under a key that is known: that of a job in a queue, or of an earlier try.
    ///
    /// # Errors
    /// [`ClientError::NotSent`] for a text that is no key.
    pub fn begin_with_key<R: Request>(
        &self,
        key: &str,
        request: R,
    ) -> Result<Operation<R::Endpoint>, ClientError> {
        let parts = request.into_parts();
        Ok(Operation::new(checked_key(key)?, parts.body, parts.metadata))
    }
}

impl Inner {
    /// Keeps an operation that is about to be sent for the first time.
    pub fn begun<E: Endpoint>(&self, operation: &Operation<E>) -> Result<(), ClientError> {
        let Some(journal) = self.journal.as_ref().filter(|_| !operation.resumed()) else {
            return Ok(());
        };
        kept(operation)
            .and_then(|bytes| journal.begun(operation.key(), &bytes))
            .map_err(|error| ClientError::NotSent(format!("it could not be kept: {error}")))
    }

    /// Forgets an operation of which nothing more is to be had.
    pub fn ended<T>(&self, key: &str, outcome: &Result<T, ClientError>) {
        let over = outcome.as_ref().map_or_else(|error| !error.may_be_asked_again(), |_| true);
        if let Some(journal) = self.journal.as_ref().filter(|_| over) {
            journal.ended(key);
        }
    }

    /// The count for one more operation.
    pub fn tries(&self) -> Tries {
        Tries::new(self.clock.now() + self.timeout)
    }

    pub fn tell(&self, repeat: &Repeat) {
        if let Some(told) = &self.on_repeat {
            told(repeat);
        }
    }
}
