//! An operation as a stream of events that a broken connection does not end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::answer::Reply;
use super::error::ClientError;
use super::events::Events;
use super::inner::{Client, Inner};
use super::operation::{Endpoint, Operation, checked_key};
use super::problem::Problem;
use super::send::{Setback, reply};
use super::transport::{Broken, Form, Head, problem_of, whole};
use super::tries::Tries;

/// A body comes up at least as fast as this, in bytes a second; the head of the stream is waited for
/// accordingly.
const SLOWEST_UPLOAD: u64 = 16 * 1024;

/// What an operation says while it runs.
#[derive(Debug, Clone)]
pub enum StreamEvent<T> {
    /// A run began, or one that was there was joined.
    Started { request_id: String },
    /// The next piece of the answer's text.
    Delta(String),
    /// How far a parse is, in chunks.
    Progress { done: u64, chunks: u64 },
    /// Everything so far is void: the text begins anew, of another run or from its start.
    Restarted,
    /// The answer; the last event.
    Completed(Box<Reply<T>>),
}

/// The events of one operation, over however many connections. Each text comes once: after a connection
/// was lost the stream goes on behind the last event, or says [`StreamEvent::Restarted`].
pub struct EventStream<E: Endpoint> {
    inner: Arc<Inner>,
    key: String,
    /// `None`: its body is another's, and the run is only attached to.
    operation: Option<Operation<E>>,
    tries: Tries,
    /// The operation was kept, and is under way.
    begun: bool,
    reading: Option<(Head, Events)>,
    last_id: Option<String>,
    /// The run whose events were told.
    run: Option<String>,
    /// Whether it told something that another run would make void.
    told: bool,
    /// The server knows the operation of this sending: an event of it came.
    joined: bool,
    /// There is a run to go back to, without the body.
    attach: bool,
    /// What the last run ended with that was told of.
    failed: Option<Box<Problem>>,
    ready: VecDeque<StreamEvent<E::Answer>>,
    over: bool,
}

#[derive(Deserialize)]
struct Started {
    request_id: String,
}

#[derive(Deserialize)]
struct Delta {
    text: String,
}

#[derive(Deserialize)]
struct Progress {
    chunks_done: u64,
    chunks: u64,
}

impl Client {
    /// The operation as a stream of events; sent when the first is asked for.
    pub fn stream<E: Endpoint>(&self, operation: &Operation<E>) -> EventStream<E> {
        EventStream::new(self.0.clone(), operation.key().to_owned(), Some(operation.clone()))
    }

    /// The events of what runs, or ran, under a key, by whoever does not have its body. Makes nothing run:
    /// a run that failed stays so until its sender asks again.
    ///
    /// # Errors
    /// [`ClientError::NotSent`] for a text that is no key.
    pub fn attach<E: Endpoint>(&self, key: &str) -> Result<EventStream<E>, ClientError> {
        Ok(EventStream::new(self.0.clone(), checked_key(key)?, None))
    }
}

impl<E: Endpoint> EventStream<E> {
    pub(super) fn new(inner: Arc<Inner>, key: String, operation: Option<Operation<E>>) -> Self {
        Self {
            tries: inner.tries(),
            inner,
            key,
            attach: operation.is_none(),
            operation,
            begun: false,
            reading: None,
            last_id: None,
            run: None,
            told: false,
            joined: false,
            failed: None,
            ready: VecDeque::new(),
            over: false,
        }
    }

    /// The next event; `None` behind the last. Dropping the stream cancels nothing.
    ///
    /// # Errors
    /// [`ClientError`], once: there is no answer, and a repeat no longer helps.
    pub async fn next(&mut self) -> Result<Option<StreamEvent<E::Answer>>, ClientError> {
        if let Some(event) = self.ready.pop_front() {
            return Ok(Some(event));
        }
        if self.over {
            return Ok(None);
        }
        let outcome = self.go_on().await;
        match &outcome {
            Ok(StreamEvent::Completed(_)) if self.operation.is_some() => {
                self.inner.ended(&self.key, &Ok(()));
            }
            Ok(StreamEvent::Completed(_)) | Err(ClientError::NotSent(_)) => {}
            Ok(_) => return outcome.map(Some),
            Err(_) if self.operation.is_some() => self.inner.ended(&self.key, &outcome),
            Err(_) => {}
        }
        (self.over, self.reading) = (true, None);
        outcome.map(Some)
    }

    async fn go_on(&mut self) -> Result<StreamEvent<E::Answer>, ClientError> {
        let first = !std::mem::replace(&mut self.begun, true);
        if let Some(operation) = self.operation.as_ref().filter(|_| first) {
            self.inner.begun(operation)?;
        }
        let inner = self.inner.clone();
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let deadline = self.tries.deadline;
            let step = async {
                if self.reading.is_none() { self.open().await } else { self.read().await }
            };
            let setback = match inner.clock.until(deadline, step).await {
                Ok(Ok(())) => continue,
                Ok(Err(setback)) => setback,
                Err(_) => Setback::TimedOut,
            };
            self.reading = None;
            let lost = matches!(setback, Setback::Lost(_));
            self.attach = self.operation.is_none() || (self.joined && lost);
            inner.wait_or_end(setback, &self.key, &mut self.tries).await?;
        }
    }

    /// Opens the stream, behind what is there.
    async fn open(&mut self) -> Result<(), Setback> {
        let inner = self.inner.clone();
        let form = Form::Stream(self.last_id.as_deref());
        let opened = match &self.operation {
            Some(operation) if !self.attach => {
                self.joined = false;
                self.tries.attempts += 1;
                let upload = operation.upload_bytes() / SLOWEST_UPLOAD;
                let limit = inner.silence.saturating_add(Duration::from_secs(upload));
                let post = inner.transport.post(operation, self.tries.attempts, form, &inner.clock);
                inner.clock.timeout(limit, post).await
            }
            operation => {
                self.tries.attempts += u32::from(operation.is_none());
                let events = inner.transport.events(&self.key, form);
                inner.clock.timeout(inner.silence, events).await
            }
        };
        let (head, response) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(Broken(cause))) => return Err(Setback::Lost(cause)),
            Err(_) => return Err(Setback::Lost("the answer did not begin".to_owned())),
        };
        if head.status == 200 && head.is_stream {
            let events = Events::new(response, inner.silence, inner.clock.clone());
            self.reading = Some((head, events));
            return Ok(());
        }
        if self.attach && self.operation.is_some() && !matches!(head.status, 502..=504) {
            // Whatever became of the record: the request itself brings it back, or says why not.
            self.attach = false;
            return Ok(());
        }
        let body = whole(response).await.map_err(|Broken(cause)| Setback::Lost(cause))?;
        if let (204, None, Some(failed)) = (head.status, &self.operation, &self.failed) {
            // Nothing follows what an attached run ended with, and whoever attached cannot make it run.
            let last = Problem { retryable: Some(false), ..(**failed).clone() };
            return Err(Setback::Refused(Box::new(last)));
        }
        match (head.status, body) {
            (200..=299, Some(body)) => self.completed(&head, body),
            (200..=299, None) => Err(Setback::Unreadable(problem_of(&head, None, &inner.clock))),
            (_, body) => Err(Setback::Refused(problem_of(&head, body.as_deref(), &inner.clock))),
        }
    }

    async fn read(&mut self) -> Result<(), Setback> {
        let Some((head, events)) = &mut self.reading else { return Ok(()) };
        let event = match events.next().await {
            Some(Ok(event)) => event,
            Some(Err(Broken(cause))) => return Err(Setback::Lost(cause)),
            None => return Err(Setback::Lost("the stream stopped before its end".to_owned())),
        };
        let head = head.clone();
        self.joined = true;
        if let Some(id) = event.id {
            self.last_id = Some(id);
        }
        self.take(&head, &event.name, event.data)
    }

    fn take(&mut self, head: &Head, name: &str, data: String) -> Result<(), Setback> {
        match name {
            "started" => {
                let Started { request_id } = read(&data)?;
                if self.run.as_ref() == Some(&request_id) {
                    return Ok(());
                }
                if self.run.replace(request_id.clone()).is_some() {
                    self.restart();
                }
                self.ready.push_back(StreamEvent::Started { request_id });
            }
            "restarted" => {
                self.run = None;
                self.restart();
            }
            "delta" => {
                let Delta { text } = read(&data)?;
                self.told(StreamEvent::Delta(text));
            }
            "progress" => {
                let Progress { chunks_done: done, chunks } = read(&data)?;
                self.told(StreamEvent::Progress { done, chunks });
            }
            "completed" => return self.completed(head, data.into()),
            "failed" => {
                let problem = Box::new(Problem::read(None, data.as_bytes()));
                self.failed = Some(problem.clone());
                return Err(Setback::Refused(problem));
            }
            // Of a later server.
            _ => {}
        }
        Ok(())
    }

    fn told(&mut self, event: StreamEvent<E::Answer>) {
        self.told = true;
        self.tries.got_further();
        self.ready.push_back(event);
    }

    fn restart(&mut self) {
        if std::mem::take(&mut self.told) {
            self.ready.push_back(StreamEvent::Restarted);
        }
    }

    fn completed(&mut self, head: &Head, body: Bytes) -> Result<(), Setback> {
        let reply = reply(&self.key, self.tries.attempts, head, body);
        let reply =
            reply.map_err(|_| Setback::Unreadable(problem_of(head, None, &self.inner.clock)))?;
        self.ready.push_back(StreamEvent::Completed(Box::new(reply)));
        Ok(())
    }
}

/// The data of an event of the server's.
fn read<T: for<'de> Deserialize<'de>>(data: &str) -> Result<T, Setback> {
    serde_json::from_str(data).map_err(|error| {
        let detail = format!("an event of the stream cannot be read: {error}");
        Setback::Unreadable(Box::new(Problem { status: 200, detail, ..Problem::default() }))
    })
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
