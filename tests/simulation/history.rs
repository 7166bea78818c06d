//! A history: what is done to the service and around it, in order. It is plain data, so that it can
//! be printed, kept, cut down by hand and run again.

use oncekey::faults::Point;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One history, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// What it was made from; the keys of its operations follow from it too.
    pub seed: u64,
    /// Days that each node is ahead of the real one at its first start.
    pub nodes: Vec<i64>,
    /// Only clients misbehave: every operation must cost exactly one run and one provider call.
    pub calm: bool,
    /// `retry.max_runs`.
    pub max_runs: u32,
    pub operations: Vec<Operation>,
    pub commands: Vec<Command>,
}

/// One thing that a client intends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub tenant: usize,
    pub conversation: usize,
    /// Its key among those of its tenant; tenants use the same keys.
    pub key: usize,
}

/// What happens next. Nodes and operations are meant by their place in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A client sends an operation to a node, for the first time or again.
    Send {
        operation: usize,
        node: usize,
    },
    /// The same, and it waits for a run that is under way (`Prefer: wait`).
    SendPatiently {
        operation: usize,
        node: usize,
    },
    /// A client cancels an operation.
    Cancel {
        operation: usize,
        node: usize,
    },
    /// A client deletes the conversation of an operation.
    Erase {
        operation: usize,
        node: usize,
    },
    /// A client sends another body under the operation's key.
    SendOther {
        operation: usize,
        node: usize,
    },
    /// The clients that wait for this operation go away.
    Cut {
        operation: usize,
    },
    /// The next provider call of this operation meets this.
    Fault {
        operation: usize,
        fault: Fault,
    },
    /// The oldest provider call of this operation that is held goes on.
    Answer {
        operation: usize,
    },
    /// Waits until the provider has one more call of this operation than was waited for before, or
    /// it takes too long.
    UntilCalled {
        operation: usize,
    },
    /// Waits until somebody is held at this node, or it takes too long.
    UntilHeld {
        node: usize,
    },
    /// Waits until the server answers.
    UntilServer,
    Pause {
        ms: u64,
    },
    /// The node is gone as if killed; what it had on the way may still arrive.
    Crash {
        node: usize,
    },
    /// The node is told to end, and is killed where it takes too long.
    Drain {
        node: usize,
    },
    /// The node starts, so many days ahead.
    Start {
        node: usize,
        days: i64,
    },
    /// Nothing of the node moves any more, its timers included; its sockets stay.
    Freeze {
        node: usize,
    },
    Thaw {
        node: usize,
    },
    /// From now on one of the node's lines to the database behaves so.
    Line {
        node: usize,
        line: Line,
        way: Way,
    },
    /// All connections of the line that are there break.
    CutLine {
        node: usize,
        line: Line,
    },
    /// The server ends one session in good order.
    Terminate {
        session: usize,
    },
    /// One session's process is killed: the server loses what was not yet written and recovers.
    CrashServer {
        session: usize,
    },
    /// The server ends in good order and is away for a while.
    RestartServer {
        down_ms: u64,
    },
    /// The partition of an old day is dropped, unless something runs in it: by the product, or by
    /// hand.
    DropDay {
        days: i64,
        by_hand: bool,
    },
    /// Time passes for the database: every run in progress has been silent for an hour.
    Age,
    /// Operations that come to this place at the node wait there.
    Hold {
        node: usize,
        place: Place,
    },
    /// Whoever waits at the node goes on.
    Release {
        node: usize,
    },
    /// The next operation that comes to this place at the node panics.
    Panic {
        node: usize,
        place: Place,
    },
}

/// What a provider call meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Nothing is sent until `Answer`, then all of it.
    Held,
    /// A part is sent, the rest after `Answer`.
    HeldInside,
    /// Nothing is sent until `Answer`, then the connection breaks.
    HeldThenReset,
    Overloaded,
    RateLimited,
    ServerError,
    Reset,
    Close,
    CutInside,
    /// The stream ends in good order without its end mark.
    EndsEarly,
    ErrorInside,
    NoChoices,
    Unauthorized,
    /// These three end the operation for good.
    Rejected,
    Filtered,
    TooLarge,
}

/// A node's lines to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    /// All statements of operations.
    Pool,
    /// Heartbeats, the node's lock and its detector.
    Beats,
}

/// How a line behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    Pass,
    Freeze,
    SwallowReplies,
    DelayReplies { ms: u64 },
    Refuse,
}

/// [`Point`], for a history's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    BeforeClaim,
    AfterClaim,
    BeforeCall,
    AfterCall,
    BeforeCommit,
    AfterCommit,
}

impl Place {
    pub const ALL: [Place; 6] = [
        Place::BeforeClaim,
        Place::AfterClaim,
        Place::BeforeCall,
        Place::AfterCall,
        Place::BeforeCommit,
        Place::AfterCommit,
    ];

    pub fn point(self) -> Point {
        match self {
            Place::BeforeClaim => Point::BeforeClaim,
            Place::AfterClaim => Point::AfterClaim,
            Place::BeforeCall => Point::BeforeCall,
            Place::AfterCall => Point::AfterCall,
            Place::BeforeCommit => Point::BeforeCommit,
            Place::AfterCommit => Point::AfterCommit,
        }
    }
}

impl History {
    pub fn tenant(&self, operation: usize) -> String {
        format!("t{}", self.operations[operation].tenant)
    }

    pub fn conversation(&self, operation: usize) -> String {
        format!("c{}", self.operations[operation].conversation)
    }

    pub fn key(&self, operation: usize) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seed.to_be_bytes());
        bytes[15] = u8::try_from(self.operations[operation].key).unwrap();
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// The operation's message, or the other one under its key. No two of a history are equal.
    pub fn message(&self, operation: usize, other: bool) -> String {
        let which = if other { "another question" } else { "the question" };
        format!("operation {operation} asks {which}")
    }

    /// The operation that a message belongs to.
    pub fn operation_of(message: &str) -> Option<usize> {
        message.strip_prefix("operation ")?.split(' ').next()?.parse().ok()
    }

    pub fn from_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap()
    }

    /// With a command a line.
    pub fn to_json(&self) -> String {
        let mut whole = serde_json::to_value(self).unwrap();
        whole["commands"] = serde_json::json!([]);
        let commands: Vec<String> =
            self.commands.iter().map(|command| serde_json::to_string(command).unwrap()).collect();
        let list = format!("\"commands\":[\n{}\n]", commands.join(",\n"));
        whole.to_string().replace("\"commands\":[]", &list) + "\n"
    }
}
