//! An operation asked for until there is an answer, or none is to be had: the one place of the library
//! that waits and repeats. What it performs, [`decide`](super::decide()) has decided.

use std::future::Future;

use bytes::Bytes;
use reqwest::Response;
use serde::de::DeserializeOwned;

use super::answer::{RecordAnswer, Reply};
use super::decide::{Ending, Situation};
use super::error::{ClientError, Failed, Lost, TimedOut};
use super::inner::{Client, Inner};
use super::operation::{Endpoint, Operation, checked_key};
use super::policy::{Repeat, Why};
use super::problem::Problem;
use super::transport::{Broken, Form, Head, problem_of, whole};
use super::tries::Tries;

/// Why one sending brought no answer.
pub(super) enum Setback {
    Lost(String),
    TimedOut,
    /// A problem, as an answer or at the end of a stream.
    Refused(Box<Problem>),
    /// A success that cannot be read.
    Unreadable(Box<Problem>),
}

impl Client {
    /// Sends the operation until there is an answer or a repeat no longer helps.
    ///
    /// Dropping the future cancels nothing: the operation runs on, and the same operation sent again
    /// finds it.
    ///
    /// # Errors
    /// [`ClientError`], which tells whom it concerns.
    pub async fn send<E: Endpoint>(
        &self,
        operation: &Operation<E>,
    ) -> Result<Reply<E::Answer>, ClientError> {
        let inner = &*self.0;
        inner.begun(operation)?;
        let mut tries = inner.tries();
        let once = |attempt| inner.transport.post(operation, attempt, Form::Whole, &inner.clock);
        let outcome = inner.until_answered(operation.key(), &mut tries, once).await;
        let outcome =
            outcome.and_then(|(head, body)| reply(operation.key(), tries.attempts, &head, body));
        inner.ended(operation.key(), &outcome);
        outcome
    }

    /// What became of an operation, which need not be one of this process.
    ///
    /// ```no_run
    /// # async fn show(client: oncekey::client::Client) -> Result<(), oncekey::client::ClientError> {
    /// let record = client.record("0198f3a2-6d1c-7e30-9c55-2f4b8f0f6a11").await?;
    /// println!("{} after {} runs", record.state, record.attempts);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::YourInput`] with status 404 where the key is not known.
    pub async fn record(&self, key: &str) -> Result<RecordAnswer, ClientError> {
        let (inner, key) = (&*self.0, checked_key(key)?);
        let mut tries = inner.tries();
        let once = |_| inner.transport.record(&key);
        let (head, body) = inner.until_answered(&key, &mut tries, once).await?;
        Ok(reply(&key, tries.attempts, &head, body)?.answer)
    }

    /// Ends the run of an operation, at whatever node, and frees its conversation; whoever waits for it is
    /// refused with `cancelled`. Changes nothing where nothing runs. The record as it is then.
    ///
    /// # Errors
    /// As for [`Client::record`].
    pub async fn cancel(&self, key: &str) -> Result<RecordAnswer, ClientError> {
        let (inner, key) = (&*self.0, checked_key(key)?);
        let mut tries = inner.tries();
        let once = |_| inner.transport.cancel(&key);
        let (head, body) = inner.until_answered(&key, &mut tries, once).await?;
        Ok(reply(&key, tries.attempts, &head, body)?.answer)
    }
}

impl Inner {
    /// Sends once and again until there is a success; its head and body.
    async fn until_answered<F: Future<Output = Result<(Head, Response), Broken>>>(
        &self,
        key: &str,
        tries: &mut Tries,
        once: impl Fn(u32) -> F,
    ) -> Result<(Head, Bytes), ClientError> {
        loop {
            tries.attempts += 1;
            let exchange = async {
                let (head, response) = once(tries.attempts).await?;
                Ok((head, whole(response).await?))
            };
            let setback = match self.clock.until(tries.deadline, exchange).await {
                Err(_) => Setback::TimedOut,
                Ok(Err(Broken(cause))) => Setback::Lost(cause),
                Ok(Ok((head, body))) => match (head.status, body) {
                    (200..=299, Some(body)) => return Ok((head, body)),
                    (200..=299, None) => Setback::Unreadable(problem_of(&head, None, &self.clock)),
                    (_, body) => Setback::Refused(problem_of(&head, body.as_deref(), &self.clock)),
                },
            };
            self.wait_or_end(setback, key, tries).await?;
        }
    }

    /// Waits where the same request is to be sent again; the error where it is not.
    pub(super) async fn wait_or_end(
        &self,
        setback: Setback,
        key: &str,
        tries: &mut Tries,
    ) -> Result<(), ClientError> {
        let (situation, why) = match &setback {
            Setback::Lost(_) => (Situation::Lost, Why::Lost),
            Setback::TimedOut => (Situation::TimedOut, Why::Lost),
            Setback::Refused(problem) => {
                let (status, wait) = (problem.status, problem.retry_after);
                let retryable = problem.retryable;
                (Situation::Answered { status, wait, retryable }, Why::Status(status))
            }
            Setback::Unreadable(problem) => {
                let (key, attempts) = (key.to_owned(), tries.attempts);
                let problem = problem.clone();
                return Err(ClientError::OurSide(Failed { key, attempts, problem }));
            }
        };
        match tries.next(&self.policy, situation, &self.clock) {
            // A failure that calls itself a success is the server's.
            Ok(None) => Err(self.error(Ending::OurSide, setback, key, tries.attempts)),
            Ok(Some(after)) => {
                let attempt = tries.attempts + 1;
                self.tell(&Repeat { key: key.to_owned(), attempt, after, why });
                self.clock.sleep(after).await;
                Ok(())
            }
            Err(ending) => Err(self.error(ending, setback, key, tries.attempts)),
        }
    }

    fn error(&self, ending: Ending, setback: Setback, key: &str, attempts: u32) -> ClientError {
        let key = key.to_owned();
        let (problem, cause) = match setback {
            Setback::Refused(problem) | Setback::Unreadable(problem) => (Some(problem), None),
            Setback::Lost(cause) => (None, Some(cause)),
            Setback::TimedOut => (None, None),
        };
        match ending {
            Ending::ConnectionLost => ClientError::ConnectionLost(Lost {
                key,
                attempts,
                cause: cause.unwrap_or_default(),
            }),
            Ending::TimedOut => {
                let after = self.timeout;
                ClientError::TimedOut(TimedOut { key, attempts, after, last: problem })
            }
            Ending::OurSide => {
                let problem = problem.unwrap_or_default();
                ClientError::OurSide(Failed { key, attempts, problem })
            }
            Ending::YourInput => {
                let problem = problem.unwrap_or_default();
                ClientError::YourInput(Failed { key, attempts, problem })
            }
        }
    }
}

/// The answer that a body holds.
pub(super) fn reply<T: DeserializeOwned>(
    key: &str,
    attempts: u32,
    head: &Head,
    body: Bytes,
) -> Result<Reply<T>, ClientError> {
    let key = key.to_owned();
    match serde_json::from_slice(&body) {
        Ok(answer) => {
            let (replayed, request_id) = (head.replayed, head.request_id.clone());
            Ok(Reply { answer, body, key, replayed, request_id, attempts })
        }
        Err(_) => {
            let mut problem = Box::new(Problem::read(Some(head.status), b""));
            problem.request_id.clone_from(&head.request_id);
            Err(ClientError::OurSide(Failed { key, attempts, problem }))
        }
    }
}
