//! The events of one run: one buffer, appended to by the run, read by anybody at a place of his own.
//!
//! Text that nobody has read yet is gathered into one event, so that a run without readers keeps its
//! text and little more; an event that was read stays as it is, under its id. Text is *shown* once a
//! reader took it: until then a call that failed can be forgotten, afterwards it cannot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use super::id::StreamId;
use super::sse;
use crate::domain::ids::{Fence, RequestId};
use crate::domain::problem::Problem;
use crate::domain::record::StoredAnswer;
use crate::domain::text::storable;

/// Text is gathered up to this many bytes; then it is an event, read or not.
const GATHERED_BYTES: usize = 4 * 1024;
/// What an event costs beside its bytes.
const EVENT_BYTES: usize = size_of::<Bytes>();

/// How a run ended, for its readers.
#[derive(Debug, Clone)]
pub enum Ending {
    /// Committed, with the body of the plain answer.
    Completed(Arc<StoredAnswer>),
    /// Failed for good, with the stored problem.
    FailedFinal(Arc<StoredAnswer>),
    /// Failed, and nothing is stored.
    Failed(Problem),
}

/// The stream of one run.
#[derive(Debug)]
pub struct Channel {
    fence: Fence,
    run: RequestId,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    /// Event `n` is the one at `n - 1`; the last one has several parts.
    frames: Vec<Bytes>,
    bytes: usize,
    /// Text behind the last event.
    gathered: String,
    /// Where the next events are written; the ones before are parts of it, not copies.
    block: BytesMut,
    /// Whether a reader took text of the call under way.
    shown: bool,
    /// Whether there ever was a reader.
    joined: bool,
    ended: bool,
    /// Ended without a verdict that is stored.
    undecided: bool,
    /// The buffer was given up; whoever is still reading is cut.
    gone: bool,
}

/// A place in a channel.
#[derive(Debug)]
pub struct Reader {
    channel: Arc<Channel>,
    changed: watch::Receiver<()>,
    place: usize,
    /// Said first, where this reader asked for a place that is not there.
    restarted: Option<Bytes>,
}

/// A stored answer as bytes that are shared.
struct Body(Arc<StoredAnswer>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0.body
    }
}

/// The body of a stored answer, shared and not copied.
pub(super) fn shared(answer: &Arc<StoredAnswer>) -> Bytes {
    Bytes::from_owner(Body(answer.clone()))
}

impl Channel {
    /// A stream that has started.
    pub(super) fn new(fence: Fence, run: RequestId) -> Self {
        let mut block = BytesMut::new();
        sse::started(&mut block, StreamId::Run { fence, n: 1 }, run);
        let first = block.split().freeze();
        let state = State {
            bytes: first.len() + EVENT_BYTES,
            frames: vec![first],
            gathered: String::new(),
            block,
            joined: false,
            shown: false,
            ended: false,
            undecided: false,
            gone: false,
        };
        let (changed, _) = watch::channel(());
        Self { fence, run, state: Mutex::new(state), changed }
    }

    /// The run whose stream it is.
    pub fn run(&self) -> RequestId {
        self.run
    }

    /// Appends text as the database would store it, so that whoever reads it has what is stored.
    pub(super) fn push(&self, text: &str) {
        let mut state = self.state();
        if state.ended || state.gone || text.is_empty() {
            return;
        }
        // Whoever was told of text that still lies there will look.
        let news = state.gathered.is_empty();
        let text = storable(text);
        let mut rest = &*text;
        while state.gathered.len() + rest.len() >= GATHERED_BYTES {
            let fits = rest.floor_char_boundary(GATHERED_BYTES - state.gathered.len());
            state.gathered.push_str(&rest[..fits]);
            rest = &rest[fits..];
            self.close_event(&mut state);
        }
        state.gathered.push_str(rest);
        drop(state);
        if news {
            self.changed.send_replace(());
        }
    }

    /// How far a parse is: an event of its own.
    pub(super) fn progress(&self, done: usize, chunks: usize) {
        let mut state = self.state();
        if state.ended || state.gone {
            return;
        }
        let id = self.next_id(&state);
        sse::progress(&mut state.block, id, done, chunks);
        let frame = state.block.split().freeze();
        state.bytes += frame.len() + EVENT_BYTES;
        state.frames.push(frame);
        drop(state);
        self.changed.send_replace(());
    }

    /// Whether there ever was a reader.
    pub(super) fn was_joined(&self) -> bool {
        self.state().joined
    }

    /// The call under way failed. Its text is dropped, unless somebody has it: then `true`.
    pub(super) fn forget(&self) -> bool {
        let mut state = self.state();
        if !state.shown {
            state.frames.truncate(1);
            state.bytes = state.frames.iter().map(|frame| frame.len() + EVENT_BYTES).sum();
            state.gathered.clear();
        }
        state.shown
    }

    pub(super) fn finish(&self, ending: &Ending) {
        let mut state = self.state();
        if state.ended || state.gone {
            return;
        }
        if !state.gathered.is_empty() {
            self.close_event(&mut state);
        }
        let id = self.next_id(&state);
        let (name, body) = match ending {
            Ending::Completed(answer) => ("completed", shared(answer)),
            Ending::FailedFinal(answer) => ("failed", shared(answer)),
            Ending::Failed(problem) => ("failed", problem.to_json().into()),
        };
        for part in sse::last(id, name, body) {
            state.bytes += part.len() + EVENT_BYTES;
            state.frames.push(part);
        }
        state.ended = true;
        state.undecided = matches!(ending, Ending::Failed(_));
        state.block = BytesMut::new();
        drop(state);
        self.changed.send_replace(());
    }

    /// Gives the buffer up, for those as well who are still reading it.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        state.gone = true;
        state.frames = Vec::new();
        state.gathered = String::new();
        state.bytes = 0;
        drop(state);
        self.changed.send_replace(());
    }

    /// Whether it ended without a verdict. One may be there all the same, from a commit whose answer
    /// was lost or from an arrival that gave the operation up: the record knows better then.
    pub fn ended_undecided(&self) -> bool {
        self.state().undecided
    }

    /// What it holds, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes
    }

    fn next_id(&self, state: &State) -> StreamId {
        StreamId::Run { fence: self.fence, n: state.frames.len() as u64 + 1 }
    }

    /// Makes one event of what was gathered.
    fn close_event(&self, state: &mut State) {
        let id = self.next_id(state);
        sse::delta(&mut state.block, id, &state.gathered);
        state.gathered.clear();
        let frame = state.block.split().freeze();
        state.bytes += frame.len() + EVENT_BYTES;
        state.frames.push(frame);
    }

    /// A reader behind this id, or from the start; from the start as well, and told so, where the id
    /// is none of this stream's.
    pub fn reader(self: &Arc<Self>, from: Begin) -> Reader {
        let changed = self.changed.subscribe();
        let mut state = self.state();
        state.joined = true;
        // Of the last event, the parts after the first have no number of their own.
        let events = state.frames.len().saturating_sub(if state.ended { 2 } else { 0 });
        let place = match from {
            Begin::Start => Some(0),
            Begin::Behind(StreamId::Run { fence, n }) if fence == self.fence => {
                usize::try_from(n).ok().filter(|n| *n <= events)
            }
            Begin::Behind(_) | Begin::Elsewhere => None,
        };
        let (place, restarted) = match place {
            Some(place) if state.ended && place == events => (state.frames.len(), None),
            Some(place) => (place, None),
            None => (0, Some(sse::restarted(self.run))),
        };
        state.shown |= place > 1;
        drop(state);
        Reader { channel: self.clone(), changed, place, restarted }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    Start,
    Behind(StreamId),
    /// Behind something that is no id of ours.
    Elsewhere,
}

impl Begin {
    /// From `Last-Event-ID`.
    pub fn header(value: Option<&str>) -> Self {
        match value {
            None | Some("") => Begin::Start,
            Some(text) => StreamId::parse(text).map_or(Begin::Elsewhere, Begin::Behind),
        }
    }
}

impl Reader {
    /// The next bytes, as soon as there are any. `None`: the stream is over, or the buffer was given
    /// up. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        if let Some(restarted) = self.restarted.take() {
            return Some(restarted);
        }
        loop {
            match self.look() {
                Look::Frame(frame) => return Some(frame),
                Look::Over => return None,
                Look::Nothing => {}
            }
            // The sender lives in the channel that this reader holds.
            self.changed.changed().await.ok()?;
        }
    }

    /// The run whose stream it is.
    pub fn run(&self) -> RequestId {
        self.channel.run
    }

    /// Whether the stream has ended and its reader has had all of it.
    pub fn is_over(&self) -> bool {
        let state = self.channel.state();
        self.restarted.is_none() && state.ended && self.place == state.frames.len() && !state.gone
    }

    fn look(&mut self) -> Look {
        let mut state = self.channel.state();
        if state.gone {
            return Look::Over;
        }
        if self.place == state.frames.len() && !state.gathered.is_empty() {
            self.channel.close_event(&mut state);
        }
        let Some(frame) = state.frames.get(self.place).cloned() else {
            return if state.ended { Look::Over } else { Look::Nothing };
        };
        state.shown |= self.place > 0;
        self.place += 1;
        Look::Frame(frame)
    }
}

enum Look {
    Frame(Bytes),
    Nothing,
    Over,
}
