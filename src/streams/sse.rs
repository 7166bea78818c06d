//! Server-sent events as bytes.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;

use super::id::StreamId;
use crate::domain::ids::RequestId;
use crate::domain::problem::Problem;

/// A line that readers pass over; it keeps the connection warm.
pub const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Room for the lines around an event's data.
const AROUND_BYTES: usize = 64;

/// Far above the longest answer that is stored, escaped: whoever sends more without an end of an event
/// is no node of ours.
const LONGEST_EVENT: usize = 64 * 1024 * 1024;

/// The first event of a stream.
pub(super) fn started(to: &mut BytesMut, id: StreamId, run: RequestId) {
    event(to, Some(id), "started", json!({ "request_id": run }).to_string().as_bytes());
}

/// A piece of the answer, escaped straight into the buffer.
pub(super) fn delta(to: &mut BytesMut, id: StreamId, text: &str) {
    to.reserve(text.len() + AROUND_BYTES);
    head(to, Some(id), "delta");
    to.put_slice(b"{\"text\":");
    // Only a writer that fails fails here, and this one grows.
    let written = serde_json::to_writer(to.writer(), text);
    debug_assert!(written.is_ok());
    to.put_slice(b"}\n\n");
}

/// How far a parse is.
pub(super) fn progress(to: &mut BytesMut, id: StreamId, done: usize, chunks: usize) {
    let data = json!({ "chunks_done": done, "chunks": chunks }).to_string();
    event(to, Some(id), "progress", data.as_bytes());
}

/// Says that what follows is the stream from its start, and of which run. It has no id: whoever
/// loses the connection here comes back with the old one, and is told again.
pub(super) fn restarted(run: RequestId) -> Bytes {
    let mut to = BytesMut::new();
    event(&mut to, None, "restarted", json!({ "request_id": run }).to_string().as_bytes());
    to.freeze()
}

/// The end of a stream, told by somebody else than the run: it has no id, since it is no event of
/// the run's, and a reader that comes back goes on behind the last one that was.
pub fn failed_without_id(problem: &Problem) -> Bytes {
    let mut to = BytesMut::new();
    event(&mut to, None, "failed", &problem.to_json());
    to.freeze()
}

/// The last event of a stream in parts, so that a long body is not copied.
pub(super) fn last(id: StreamId, name: &str, body: Bytes) -> [Bytes; 3] {
    let mut before = BytesMut::new();
    head(&mut before, Some(id), name);
    [before.freeze(), on_data_lines(body), Bytes::from_static(b"\n\n")]
}

fn event(to: &mut BytesMut, id: Option<StreamId>, name: &str, data: &[u8]) {
    head(to, id, name);
    to.put_slice(data);
    to.put_slice(b"\n\n");
}

/// Up to where the data stands.
fn head(to: &mut BytesMut, id: Option<StreamId>, name: &str) {
    if let Some(id) = id {
        to.put_slice(format!("id: {id}\n").as_bytes());
    }
    to.put_slice(b"event: ");
    to.put_slice(name.as_bytes());
    to.put_slice(b"\ndata: ");
}

/// JSON over several lines needs the field's name before each of them. What this service writes has
/// one line; the bytes come from the database all the same.
fn on_data_lines(body: Bytes) -> Bytes {
    if !body.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return body;
    }
    let text = String::from_utf8_lossy(&body);
    let lines: Cow<'_, str> = text.replace("\r\n", "\n").replace('\r', "\n").into();
    Bytes::from(lines.replace('\n', "\ndata: "))
}

/// Whole events out of a stream of bytes, and what kind they are: what is handed on ends between two
/// events, so that a stream that breaks can be taken up by somebody else.
#[derive(Debug, Default)]
pub struct Splitter {
    buffer: BytesMut,
    /// Bytes of the buffer that hold no end of an event.
    searched: usize,
    last_id: Option<StreamId>,
    ended: bool,
    gave: bool,
}

impl Splitter {
    /// `false`: what came is longer than any event of ours, and nothing of it is to be used.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let fits = self.buffer.len() + bytes.len() <= LONGEST_EVENT;
        if fits {
            self.buffer.extend_from_slice(bytes);
        }
        fits
    }

    /// Everything up to the last end of an event, if there is any.
    pub fn take(&mut self) -> Option<Bytes> {
        let from = self.searched.saturating_sub(1);
        let end = self.buffer[from..].windows(2).rposition(|two| two == b"\n\n");
        let Some(end) = end.map(|at| from + at + 2) else {
            self.searched = self.buffer.len();
            return None;
        };
        self.searched = self.buffer.len() - end;
        let events = self.buffer.split_to(end).freeze();
        self.gave = true;
        for line in events.split(|byte| *byte == b'\n') {
            if let Some(id) = line.strip_prefix(b"id: ") {
                let id = std::str::from_utf8(id).ok().and_then(StreamId::parse);
                self.last_id = id.or(self.last_id);
            }
            self.ended |= matches!(line, b"event: completed" | b"event: failed");
        }
        Some(events)
    }

    /// The id of the last event that was taken.
    pub fn last_id(&self) -> Option<StreamId> {
        self.last_id
    }

    /// Whether anything was taken.
    pub fn gave(&self) -> bool {
        self.gave
    }

    /// Whether the last event of a stream was taken.
    pub fn ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Fence;
    use proptest::prelude::*;
    use uuid::Uuid;

    const ID: StreamId = StreamId::Run { fence: Fence(3), n: 7 };

    fn delta_of(text: &str) -> String {
        let mut to = BytesMut::new();
        delta(&mut to, ID, text);
        String::from_utf8(to.to_vec()).unwrap()
    }

    #[test]
    fn an_event_has_its_lines_in_order() {
        assert_eq!(delta_of("a\"b"), "id: 3-7\nevent: delta\ndata: {\"text\":\"a\\\"b\"}\n\n");
        let restarted = restarted(RequestId(Uuid::nil()));
        assert!(restarted.starts_with(b"event: restarted\ndata: {\"request_id\":\"0000"));
        let parts = last(ID, "completed", Bytes::from_static(b"{}")).concat();
        assert_eq!(parts, b"id: 3-7\nevent: completed\ndata: {}\n\n");
    }

    #[test]
    fn no_line_of_a_body_is_without_its_name() {
        let parts = last(ID, "failed", Bytes::from_static(b"{\r\n \"a\":1\n}")).concat();
        let text = String::from_utf8(parts).unwrap();
        assert!(text.ends_with("data: {\ndata:  \"a\":1\ndata: }\n\n"), "{text:?}");
    }

    #[test]
    fn what_is_handed_on_ends_between_events() {
        let mut splitter = Splitter::default();
        assert!(splitter.push(b"id: 3-7\nevent: del"));
        assert_eq!(splitter.take(), None);
        assert!(splitter.push(b"ta\ndata: {}\n"));
        assert_eq!(splitter.take(), None);
        assert!(splitter.push(b"\n:\n\nid: 3-8\nevent: completed\n"));
        assert_eq!(splitter.take().unwrap(), "id: 3-7\nevent: delta\ndata: {}\n\n:\n\n");
        assert_eq!(splitter.last_id(), Some(ID));
        assert!(!splitter.ended());
        assert!(splitter.push(b"data: {}\n\n"));
        assert_eq!(splitter.take().unwrap(), "id: 3-8\nevent: completed\ndata: {}\n\n");
        assert!(splitter.ended());
        assert_eq!(splitter.take(), None);
    }

    #[test]
    fn what_never_ends_is_not_gathered_for_ever() {
        let mut splitter = Splitter::default();
        let piece = vec![b'x'; LONGEST_EVENT / 4];
        assert!((0..4).all(|_| splitter.push(&piece)));
        assert!(!splitter.push(b"x"));
        assert!(!splitter.gave());
    }

    proptest! {
        #[test]
        fn any_text_stays_on_one_line_and_is_read_back(text in any::<String>()) {
            let event = delta_of(&text);
            prop_assert_eq!(event.matches('\n').count(), 4);
            prop_assert!(!event.contains('\r'));
            let data = event.lines().nth(2).unwrap().strip_prefix("data: ").unwrap();
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            prop_assert_eq!(data["text"].as_str().unwrap(), text);
        }

        #[test]
        fn splitting_loses_nothing(cuts in prop::collection::vec(1usize..9, 1..40)) {
            let whole = [delta_of("one"), ":\n\n".into(), delta_of("two\n\nthree")].concat();
            let (mut splitter, mut rest, mut got) = (Splitter::default(), whole.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                let (piece, behind) = rest.split_at((*cut).min(rest.len()));
                assert!(splitter.push(piece));
                if let Some(events) = splitter.take() {
                    prop_assert!(events.ends_with(b"\n\n"));
                    got.extend_from_slice(&events);
                }
                rest = behind;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(got, whole.as_bytes());
        }
    }
}
