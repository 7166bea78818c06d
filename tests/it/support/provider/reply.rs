//! What a request is answered with.

use std::path::PathBuf;

use serde_json::Value;

use super::Gate;
use super::wire::Tokens;

/// One answer of the script.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(super) content: Content,
    /// Before anything of the response is sent.
    pub(super) before_head: Vec<Action>,
    /// After so many deltas of an answer, or events of a given stream; 0 is after the head.
    pub(super) within: Vec<(usize, Action)>,
    pub(super) chunking: Chunking,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    /// A response at once.
    Raw { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// A stream of events as it stands.
    Events(Vec<u8>),
    /// A normal answer in the form of whoever asks. `None`: what follows from the prompt.
    Answer { text: Option<String>, tokens: Option<Tokens>, stop: Stop },
    /// The same at once, as from a server that does not stream.
    Whole { text: String, tokens: Tokens },
}

/// Why a normal answer stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    End,
    MaxTokens,
}

/// What is done at a moment of an answer.
#[derive(Debug, Clone)]
pub enum Action {
    /// Waits for the test.
    Hold(Gate),
    /// Sends nothing more, and keeps the connection, until the client goes.
    Hang,
    /// Breaks the connection.
    Reset,
    /// Closes the connection in the middle.
    Close,
    /// Ends the response in good order, here.
    End,
    /// Sends these bytes of the body.
    Send(Vec<u8>),
}

/// How a streamed body is cut into chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunking {
    /// Each event one chunk.
    Events,
    OneByte,
    /// Cut after these counts of bytes; the rest is the last chunk.
    Sizes(Vec<usize>),
}

impl Reply {
    fn of(content: Content) -> Reply {
        Reply { content, before_head: Vec::new(), within: Vec::new(), chunking: Chunking::Events }
    }

    /// The normal answer, as with no script; for putting actions into it.
    pub fn normal() -> Reply {
        Reply::of(Content::Answer { text: None, tokens: None, stop: Stop::End })
    }

    /// A normal answer with this text.
    pub fn text(text: &str) -> Reply {
        let text = Some(text.to_owned());
        Reply::of(Content::Answer { text, tokens: None, stop: Stop::End })
    }

    /// A normal answer with this text and these tokens.
    pub fn text_and_tokens(text: &str, tokens: Tokens) -> Reply {
        let text = Some(text.to_owned());
        Reply::of(Content::Answer { text, tokens: Some(tokens), stop: Stop::End })
    }

    /// An answer that ran into its limit on output.
    pub fn cut_by_max_tokens(text: &str) -> Reply {
        let text = Some(text.to_owned());
        Reply::of(Content::Answer { text, tokens: None, stop: Stop::MaxTokens })
    }

    /// A call of the pinned tool with this input, as text that should be JSON.
    pub fn tool(input: impl Into<String>) -> Reply {
        Reply::text(&input.into())
    }

    /// A call of the pinned tool that ran into the limit on output.
    pub fn tool_cut_by_max_tokens(input: impl Into<String>) -> Reply {
        Reply::cut_by_max_tokens(&input.into())
    }

    /// A file of `tests/fixtures/tool`.
    pub fn tool_file(name: &str) -> Reply {
        Reply::tool(String::from_utf8(fixture(&format!("tool/{name}"))).unwrap())
    }

    /// A whole answer in JSON, though a stream was asked for.
    pub fn whole(text: &str, tokens: Tokens) -> Reply {
        Reply::of(Content::Whole { text: text.to_owned(), tokens })
    }

    /// A response as it stands.
    pub fn status(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Reply {
        let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let headers = headers.iter().map(own).collect();
        Reply::of(Content::Raw { status, headers, body: body.into() })
    }

    /// A stream of events as it stands.
    pub fn events(events: impl Into<Vec<u8>>) -> Reply {
        Reply::of(Content::Events(events.into()))
    }

    /// A file of `tests/fixtures/provider`: status, headers and body. `@HTTPDATE+3` in a header
    /// becomes the date three seconds from when it is sent.
    pub fn file(name: &str) -> Reply {
        let file: Value = serde_json::from_slice(&fixture(&format!("provider/{name}"))).unwrap();
        let headers = file["headers"].as_object().unwrap();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect();
        let body = match &file["body"] {
            Value::String(text) => text.clone().into_bytes(),
            json => json.to_string().into_bytes(),
        };
        let status = u16::try_from(file["status"].as_u64().unwrap()).unwrap();
        Reply::of(Content::Raw { status, headers, body })
    }

    /// A file of `tests/fixtures/sse`.
    pub fn events_file(name: &str) -> Reply {
        Reply::events(fixture(&format!("sse/{name}")))
    }

    /// Nothing is sent until the client goes.
    pub fn hang() -> Reply {
        Reply::normal().before_head(Action::Hang)
    }

    /// The connection breaks before anything is sent.
    pub fn reset() -> Reply {
        Reply::normal().before_head(Action::Reset)
    }

    /// The connection is closed before anything is sent.
    pub fn close() -> Reply {
        Reply::normal().before_head(Action::Close)
    }

    /// Does this before the head of the response is sent.
    pub fn before_head(mut self, action: Action) -> Reply {
        self.before_head.push(action);
        self
    }

    /// Does this after so many deltas of an answer, or events of a given stream. 0: after the
    /// head. Of a response at once it is the only event.
    pub fn after(mut self, deltas: usize, action: Action) -> Reply {
        self.within.push((deltas, action));
        self
    }

    pub fn chunking(mut self, chunking: Chunking) -> Reply {
        self.chunking = chunking;
        self
    }
}

/// The bytes of a file under `tests/fixtures`.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
