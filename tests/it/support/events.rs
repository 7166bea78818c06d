//! A reader of server-sent events, as an app would write it: it reads a line at a time, and keeps
//! what it needs to come back.

use bytes::BytesMut;
use serde_json::{Value, json};
use uuid::Uuid;

use super::client::{Answer, Client};
use super::provider::patiently;

/// One event as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub name: String,
    pub data: Value,
}

impl Event {
    /// The text of a delta.
    pub fn text(&self) -> &str {
        assert_eq!(self.name, "delta", "{self:?}");
        self.data["text"].as_str().unwrap()
    }
}

/// What a stream says next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Event(Event),
    Comment,
}

/// An open stream.
pub struct Events {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    response: reqwest::Response,
    buffer: BytesMut,
    /// Bytes of it that hold no end of an event.
    searched: usize,
    /// The id to come back with.
    pub last_id: Option<String>,
}

impl Events {
    /// Sends the request; it must be answered with a stream.
    pub async fn open(request: reqwest::RequestBuilder) -> Events {
        match Self::try_open(request).await {
            Ok(events) => events,
            Err(answer) => panic!("no stream: {} {}", answer.status, answer.json()),
        }
    }

    /// The same, where a plain answer may come instead.
    pub async fn try_open(request: reqwest::RequestBuilder) -> Result<Events, Answer> {
        let response = patiently("the head of a stream", request.send()).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        if headers.get("content-type").is_none_or(|kind| kind != "text/event-stream") {
            let bytes = response.bytes().await.unwrap().to_vec();
            return Err(Answer { status, headers, bytes });
        }
        let (buffer, searched) = (BytesMut::new(), 0);
        Ok(Events { status, headers, response, buffer, searched, last_id: None })
    }

    /// What comes next. `None`: the response ended, or broke.
    pub async fn said(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = self.parse() {
                if let Said::Event(Event { id: Some(id), .. }) = &said {
                    self.last_id = Some(id.clone());
                }
                return Some(said);
            }
            let chunk = patiently("a stream to go on", self.response.chunk()).await;
            self.buffer.extend_from_slice(&chunk.ok().flatten()?);
        }
    }

    /// The next event, whatever comments come before it.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.said().await? {
                Said::Event(event) => return Some(event),
                Said::Comment => {}
            }
        }
    }

    /// The next event, which there is.
    pub async fn event(&mut self) -> Event {
        self.next().await.expect("the stream goes on")
    }

    /// Everything up to the end.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Reads until the text so far ends with this.
    pub async fn until_text(&mut self, end: &str) -> Vec<Event> {
        let mut events = Vec::new();
        while !text_of(&events).ends_with(end) {
            events.push(self.event().await);
        }
        events
    }

    fn parse(&mut self) -> Option<Said> {
        let from = self.searched.saturating_sub(1);
        let end = self.buffer[from..].windows(2).position(|two| two == b"\n\n");
        let Some(end) = end else {
            self.searched = self.buffer.len();
            return None;
        };
        self.searched = 0;
        let block = self.buffer.split_to(from + end + 2);
        let block = std::str::from_utf8(&block).unwrap().trim_end();
        if block.starts_with(':') {
            assert_eq!(block.lines().count(), 1, "a comment is a line of its own: {block:?}");
            return Some(Said::Comment);
        }
        let (mut id, mut name, mut data) = (None, None, Vec::new());
        for line in block.lines() {
            match line.split_once(": ").unwrap_or_else(|| panic!("no line of ours: {line:?}")) {
                ("id", value) => id = Some(value.to_owned()),
                ("event", value) => name = Some(value.to_owned()),
                ("data", value) => data.push(value),
                _ => panic!("no line of ours: {line:?}"),
            }
        }
        let data = serde_json::from_str(&data.join("\n")).unwrap();
        Some(Said::Event(Event { id, name: name.expect("an event has a name"), data }))
    }
}

/// The text that a reader has assembled; `restarted` begins it anew.
pub fn text_of(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        match event.name.as_str() {
            "restarted" => text.clear(),
            "delta" => text.push_str(event.text()),
            _ => {}
        }
    }
    text
}

/// The names of the events, equal ones in a row told once.
pub fn names_of(events: &[Event]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    names.dedup();
    names
}

impl Client {
    /// A chat that asks for a stream.
    pub fn stream_request(
        &self,
        key: Uuid,
        conversation: &str,
        message: &str,
    ) -> reqwest::RequestBuilder {
        let body = json!({"conversation_id": conversation, "message": message, "stream": true});
        self.chat_request(key, &body)
    }

    pub async fn stream(&self, key: Uuid, conversation: &str, message: &str) -> Events {
        Events::open(self.stream_request(key, conversation, message)).await
    }

    /// Attaches to what runs, or ran, under a key, behind this id.
    pub fn events_request(&self, key: Uuid, last_id: Option<&str>) -> reqwest::RequestBuilder {
        let request = self.request("GET", &format!("/v1/requests/{key}/events"));
        match last_id {
            Some(id) => request.header("last-event-id", id),
            None => request,
        }
    }

    pub async fn events(&self, key: Uuid, last_id: Option<&str>) -> Events {
        Events::open(self.events_request(key, last_id)).await
    }

    /// Comes back behind this id, and must be told that nothing can follow.
    pub async fn assert_over(&self, key: Uuid, last_id: Option<&str>) {
        let answer = self.send(self.events_request(key, last_id)).await.unwrap();
        assert_eq!((answer.status, answer.bytes.len()), (204, 0), "{last_id:?}");
        assert_eq!(answer.header("content-type"), None);
    }
}
