//! A finished operation as a stream, made from its record as it is read.
//!
//! Its ids count pieces of the stored text, which is cut at fixed places: the same at every node and
//! on every day, so that a replay that broke is resumed like any other stream.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::channel::{Begin, shared};
use super::id::StreamId;
use super::sse;
use crate::domain::ids::{Fence, RequestId};
use crate::domain::record::StoredAnswer;

/// The longest piece of the text, in bytes; some readers have a limit on a line.
const PIECE_BYTES: usize = 64 * 1024;

/// The events of a stored verdict that are still to come.
#[derive(Debug)]
pub struct Replay {
    fence: Fence,
    run: RequestId,
    restarted: bool,
    next: u64,
    steps: Vec<Step>,
    text: String,
    answer: Arc<StoredAnswer>,
}

/// What is left to tell, the next at the end.
#[derive(Debug)]
enum Step {
    Started,
    /// From here on.
    Text(usize),
    Last,
    Bytes(Bytes),
}

impl Replay {
    /// Of an answer with this text; of a final failure where there is none.
    pub fn new(
        fence: Fence,
        run: RequestId,
        answer: Arc<StoredAnswer>,
        text: Option<String>,
        from: Begin,
    ) -> Self {
        let steps = match &text {
            Some(text) if text.is_empty() => vec![Step::Last, Step::Started],
            Some(_) => vec![Step::Last, Step::Text(0), Step::Started],
            None => vec![Step::Last],
        };
        let text = text.unwrap_or_default();
        let mut replay = Self { fence, run, restarted: false, next: 1, steps, text, answer };
        replay.go_behind(from);
        replay
    }

    /// Goes behind an event of this record, or says that it begins anew.
    fn go_behind(&mut self, from: Begin) {
        let n = match from {
            Begin::Start => return,
            Begin::Behind(StreamId::Record { fence, n }) if fence == self.fence => n,
            Begin::Behind(_) | Begin::Elsewhere => {
                self.restarted = true;
                return;
            }
        };
        if n > self.events() {
            self.restarted = true;
            return;
        }
        while self.next <= n {
            self.step();
        }
        // The last event stands in several parts behind its head.
        if self.next > self.events() {
            self.steps.clear();
        }
    }

    /// Whether its reader has had all of it.
    pub fn is_over(&self) -> bool {
        !self.restarted && self.steps.is_empty()
    }

    fn events(&self) -> u64 {
        if self.answer.status != 200 {
            return 1;
        }
        let (mut pieces, mut at) = (0, 0);
        while at < self.text.len() {
            at = self.end_of_piece(at);
            pieces += 1;
        }
        pieces + 2
    }

    fn end_of_piece(&self, from: usize) -> usize {
        self.text.floor_char_boundary(from.saturating_add(PIECE_BYTES))
    }

    fn step(&mut self) -> Option<Bytes> {
        let step = self.steps.pop()?;
        if let Step::Bytes(bytes) = step {
            return Some(bytes);
        }
        let id = StreamId::Record { fence: self.fence, n: self.next };
        self.next += 1;
        let mut to = BytesMut::new();
        match step {
            Step::Started => sse::started(&mut to, id, self.run),
            Step::Text(at) => {
                let end = self.end_of_piece(at);
                sse::delta(&mut to, id, &self.text[at..end]);
                if end < self.text.len() {
                    self.steps.push(Step::Text(end));
                }
            }
            Step::Last => {
                let name = if self.answer.status == 200 { "completed" } else { "failed" };
                let [head, body, tail] = sse::last(id, name, shared(&self.answer));
                self.steps.extend([Step::Bytes(tail), Step::Bytes(body)]);
                return Some(head);
            }
            Step::Bytes(_) => {}
        }
        Some(to.freeze())
    }
}

impl Iterator for Replay {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.restarted) {
            return Some(sse::restarted(self.run));
        }
        self.step()
    }
}
