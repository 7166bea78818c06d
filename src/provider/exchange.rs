//! One request and its response, under three deadlines.
//!
//! Whatever the vendor, a response is one of three: a refusal, a stream of events, or a body at
//! once from a server that does not stream. What it is is read from its status and its first byte,
//! since gateways label bodies as they like.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, HeaderMap};

use super::reading::{AnswerText, Progress, Reading};
use super::sse::{Events, EventsError};
use super::text::{parse_json, snippet};
use super::{ProviderSettings, SettingsError, errors, http};
use crate::clock::{Clock, Moment};
use crate::domain::failure::{
    CallFailure, Cause, DeadlineKind, FailureFacts, RetryAfterText, TransportFault, VendorError,
};
use crate::domain::prompt::Answer;
use crate::domain::secret::Secret;

/// What is kept of something that cannot be read: enough to tell a JSON object from a gateway's
/// page, and too little to show an end user's answer.
const SNIPPET_BYTES: usize = 32;
/// What is kept of a header.
const HEADER_BYTES: usize = 100;

/// What the end of a stream may take behind the vendor's end mark.
const DRAIN: Duration = Duration::from_millis(100);

type Chunks = BoxStream<'static, Result<Bytes, reqwest::Error>>;

/// What calls of one provider go through.
pub(super) struct Exchange {
    client: reqwest::Client,
    clock: Clock,
    limits: Limits,
    api_key: Option<Secret>,
}

#[derive(Clone, Copy)]
struct Limits {
    first_byte: Duration,
    idle: Duration,
    call: Duration,
    answer_bytes: usize,
}

impl Limits {
    /// A body or an event that holds the longest answer with every character escaped.
    fn body_bytes(&self) -> usize {
        self.answer_bytes.saturating_mul(6).saturating_add(errors::MAX_ERROR_BYTES)
    }
}

impl Exchange {
    pub(super) fn new(settings: &ProviderSettings, clock: Clock) -> Result<Self, SettingsError> {
        let client = http::client(settings.first_byte_timeout).map_err(|error| {
            SettingsError::Client { provider: settings.name.clone(), reason: error.to_string() }
        })?;
        let limits = Limits {
            first_byte: settings.first_byte_timeout,
            idle: settings.idle_timeout,
            call: settings.call_timeout,
            answer_bytes: settings.max_answer_bytes,
        };
        Ok(Exchange { client, clock, limits, api_key: settings.api_key.clone() })
    }

    /// Sends the request and reads the answer. One request, whatever comes of it.
    pub(super) async fn run(
        &self,
        request: reqwest::Request,
        mut reading: impl Reading,
        on_delta: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Answer, CallFailure> {
        let mut answer = AnswerText::new(self.limits.answer_bytes, on_delta);
        let mut call = Call::begin(&self.clock, self.limits);
        let ended = call.perform(&self.client, request, &mut reading, &mut answer).await;
        match ended.and_then(|()| answer.finish(reading.stop())) {
            Ok((text, stop)) => Ok(Answer { text, stop, usage: reading.usage() }),
            Err(mut cause) => {
                self.scrub(&mut cause);
                let facts = FailureFacts {
                    cause,
                    status: call.status,
                    retry_after: call.retry_after,
                    text_flowed: !answer.is_empty(),
                };
                Err(CallFailure { facts, usage: reading.usage() })
            }
        }
    }

    /// Takes our credential out of what the other side said.
    fn scrub(&self, cause: &mut Cause) {
        let Some(api_key) = &self.api_key else { return };
        match cause {
            Cause::Refused { error, .. } | Cause::InBand { error } => {
                let VendorError { kind, code, message, param, detail } = error;
                for text in [kind, code, message, param, detail].into_iter().flatten() {
                    api_key.scrub(text);
                }
            }
            Cause::Unreadable { snippet } => api_key.scrub(snippet),
            Cause::Transport(_)
            | Cause::Deadline { .. }
            | Cause::Cut
            | Cause::NothingUsable
            | Cause::NothingFound
            | Cause::OutputLimit
            | Cause::Moderated(_)
            | Cause::AnswerTooLong { .. }
            | Cause::RuleBroken(_) => {}
        }
    }
}

/// A call under way: its deadlines, and what the response's head told.
struct Call<'a> {
    clock: &'a Clock,
    limits: Limits,
    started: Moment,
    /// When content last came; `None` until the answer has begun.
    progressed: Option<Moment>,
    status: Option<u16>,
    retry_after: RetryAfterText,
}

impl<'a> Call<'a> {
    fn begin(clock: &'a Clock, limits: Limits) -> Call<'a> {
        Call {
            clock,
            limits,
            started: clock.now(),
            progressed: None,
            status: None,
            retry_after: RetryAfterText::default(),
        }
    }

    async fn perform(
        &mut self,
        client: &reqwest::Client,
        request: reqwest::Request,
        reading: &mut impl Reading,
        answer: &mut AnswerText<'_>,
    ) -> Result<(), Cause> {
        #[expect(clippy::disallowed_methods, reason = "the one call that goes out to providers")]
        let response = self.before_deadline(client.execute(request)).await?;
        let response = response.map_err(|error| Cause::Transport(fault(&error)))?;
        self.status = Some(response.status().as_u16());
        self.retry_after = RetryAfterText {
            millis: header(response.headers(), "retry-after-ms"),
            plain: header(response.headers(), "retry-after"),
        };
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let content_type = content_type(response.headers());
        let mut chunks = response.bytes_stream().boxed();
        // Nothing but blanks and then the end is no answer in any form.
        let Some(first) = self.first_bytes(&mut chunks).await? else { return Err(Cause::Cut) };
        let begins_with = first.first().copied();
        let chunks = stream::once(async move { Ok(first) }).chain(chunks).boxed();
        if is_events(&content_type, begins_with) {
            self.read_events(chunks, reading, answer).await
        } else {
            self.read_whole(chunks, reading, answer).await
        }
    }

    /// A refusal with as much of its body as comes in time: its status says the most.
    async fn refusal(&mut self, response: Response) -> Cause {
        self.progress();
        let content_type = content_type(response.headers());
        let mut chunks = response.bytes_stream();
        let mut body = Vec::new();
        while body.len() < errors::MAX_ERROR_BYTES {
            match self.before_deadline(chunks.next()).await {
                Ok(Some(Ok(chunk))) => body.extend_from_slice(&chunk),
                Ok(Some(Err(_)) | None) | Err(_) => break,
            }
        }
        body.truncate(errors::MAX_ERROR_BYTES);
        let (html, error) = errors::from_body(&content_type, &body);
        Cause::Refused { html, error }
    }

    /// The body from its first byte that is no blank; servers send blanks to keep a line open.
    async fn first_bytes(&mut self, chunks: &mut Chunks) -> Result<Option<Bytes>, Cause> {
        loop {
            match self.before_deadline(chunks.next()).await? {
                Some(Ok(chunk)) => {
                    if let Some(start) = chunk.iter().position(|byte| !byte.is_ascii_whitespace()) {
                        return Ok(Some(chunk.slice(start..)));
                    }
                }
                Some(Err(_)) => return Err(Cause::Transport(TransportFault::Body)),
                None => return Ok(None),
            }
            self.check_deadline()?;
        }
    }

    async fn read_events(
        &mut self,
        chunks: Chunks,
        reading: &mut impl Reading,
        answer: &mut AnswerText<'_>,
    ) -> Result<(), Cause> {
        let limit_bytes = self.limits.body_bytes();
        let mut events = Events::new(chunks, limit_bytes);
        loop {
            let ended = match self.before_deadline(events.next()).await {
                Ok(Some(Ok(data))) => {
                    match take_event(&data, reading, answer)? {
                        Progress::End => {
                            self.drain(&mut events).await;
                            return Ok(());
                        }
                        Progress::Content => self.progress(),
                        Progress::Began => self.begin_answer(),
                        Progress::Nothing => {}
                    }
                    self.check_deadline()
                }
                Ok(Some(Err(EventsError::Transport))) => {
                    Err(Cause::Transport(TransportFault::Body))
                }
                Ok(Some(Err(EventsError::TooLong { limit_bytes }))) => {
                    Err(Cause::AnswerTooLong { limit_bytes })
                }
                Ok(Some(Err(error @ EventsError::NoText))) => {
                    Err(Cause::Unreadable { snippet: error.to_string() })
                }
                Ok(None) => return Ok(()),
                Err(deadline) => Err(deadline),
            };
            match ended {
                Ok(()) => {}
                // The vendor's end mark is there already: what ends the stream takes nothing back.
                Err(_) if reading.stop().is_some() => return Ok(()),
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Reads the stream to its end, behind the end mark and for a moment at most: a connection
    /// whose response was read to the end serves the next call too.
    async fn drain(&self, events: &mut Events) {
        let end = async { while let Some(Ok(_)) = events.next().await {} };
        let _ = self.clock.timeout(DRAIN, end).await;
    }

    async fn read_whole(
        &mut self,
        mut chunks: Chunks,
        reading: &mut impl Reading,
        answer: &mut AnswerText<'_>,
    ) -> Result<(), Cause> {
        let limit_bytes = self.limits.body_bytes();
        let mut body = Vec::new();
        loop {
            match self.before_deadline(chunks.next()).await? {
                Some(Ok(chunk)) => {
                    if body.len() + chunk.len() > limit_bytes {
                        return Err(Cause::AnswerTooLong { limit_bytes });
                    }
                    if !chunk.trim_ascii().is_empty() {
                        self.progress();
                    }
                    body.extend_from_slice(&chunk);
                    self.check_deadline()?;
                }
                Some(Err(_)) => return Err(Cause::Transport(TransportFault::Body)),
                None => break,
            }
        }
        let text = String::from_utf8(body).map_err(|error| unreadable(&error.to_string()))?;
        let body = parse_json(&text).map_err(|_| unreadable(&text))?;
        if let Some(error) = errors::from_json(&body) {
            return Err(Cause::InBand { error });
        }
        reading.whole(&body, answer)
    }

    fn progress(&mut self) {
        self.progressed = Some(self.clock.now());
    }

    fn begin_answer(&mut self) {
        if self.progressed.is_none() {
            self.progress();
        }
    }

    /// The next deadline: that of the whole call, or of what is awaited, whichever is sooner.
    fn deadline(&self) -> (Moment, DeadlineKind, Duration) {
        let (moment, kind, limit) = match self.progressed {
            None => (
                self.started + self.limits.first_byte,
                DeadlineKind::FirstByte,
                self.limits.first_byte,
            ),
            Some(last) => (last + self.limits.idle, DeadlineKind::Idle, self.limits.idle),
        };
        let absolute = self.started + self.limits.call;
        if absolute <= moment {
            (absolute, DeadlineKind::Absolute, self.limits.call)
        } else {
            (moment, kind, limit)
        }
    }

    async fn before_deadline<T>(&self, future: impl Future<Output = T>) -> Result<T, Cause> {
        let (moment, kind, limit) = self.deadline();
        let output = self.clock.until(moment, future).await;
        output.map_err(|_| Cause::Deadline { kind, limit })
    }

    /// For loops that always find something to read: what comes without content, or for too long,
    /// must not hide a deadline that has passed.
    fn check_deadline(&self) -> Result<(), Cause> {
        let (moment, kind, limit) = self.deadline();
        if self.clock.now() < moment { Ok(()) } else { Err(Cause::Deadline { kind, limit }) }
    }
}

fn take_event(
    data: &str,
    reading: &mut impl Reading,
    answer: &mut AnswerText<'_>,
) -> Result<Progress, Cause> {
    if reading.done_word() == Some(data.trim()) {
        return Ok(Progress::End);
    }
    let event = parse_json(data).map_err(|_| unreadable(data))?;
    reading.event(&event, answer)
}

/// A JSON body begins as one, whatever its label says; everything else under the label of a
/// stream is one, and so is what begins like a field or a comment of one.
fn is_events(content_type: &str, first: Option<u8>) -> bool {
    match first {
        Some(b'{' | b'[' | b'<') => false,
        Some(b'd' | b'e' | b'i' | b'r' | b':') => true,
        Some(_) | None => content_type.starts_with("text/event-stream"),
    }
}

fn unreadable(text: &str) -> Cause {
    Cause::Unreadable { snippet: snippet(text, SNIPPET_BYTES) }
}

fn fault(error: &reqwest::Error) -> TransportFault {
    // The only timeout that the client itself has is that of connecting.
    if error.is_connect() || error.is_timeout() {
        TransportFault::Connect
    } else {
        TransportFault::Request
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    // A header that is no text is there all the same, and says nothing.
    headers.get(name).map(|value| snippet(value.to_str().unwrap_or_default(), HEADER_BYTES))
}

fn content_type(headers: &HeaderMap) -> String {
    header(headers, CONTENT_TYPE.as_str()).unwrap_or_default().to_ascii_lowercase()
}
