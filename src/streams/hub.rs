//! The streams of this node, by the operation whose run they are.
//!
//! A run's stream is there from its claim until a minute after its end. All ended ones together hold
//! a bounded number of bytes: beyond it the oldest go first, and whoever still reads one is cut.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use super::channel::{Channel, Ending};
use crate::domain::failure::FailureKind;
use crate::domain::ids::{Fence, RequestId, TenantId};
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::verdict::detail_of;

/// How long a stream is kept once it has ended: time to find a network again.
pub const KEPT_FOR: Duration = Duration::from_secs(60);
/// Bytes of all ended streams of a node.
const KEPT_BYTES: usize = 64 * 1024 * 1024;

type Key = (TenantId, Uuid);

/// All streams of a node; clones are one and the same.
#[derive(Debug, Clone, Default)]
pub struct Hub(Arc<Mutex<Streams>>);

#[derive(Debug, Default)]
struct Streams {
    by_key: HashMap<Key, Arc<Channel>>,
    /// In the order of their ends.
    ended: VecDeque<Ended>,
    ended_bytes: usize,
}

#[derive(Debug)]
struct Ended {
    key: Key,
    channel: Arc<Channel>,
    until: Duration,
    bytes: usize,
}

/// The run that a stream is opened for.
#[derive(Debug, Clone)]
pub struct Run {
    pub tenant: TenantId,
    pub key: Uuid,
    pub fence: Fence,
    pub id: RequestId,
    /// Whether text is held back until the whole answer was accepted.
    pub held: bool,
}

/// The end of a stream that its run holds. Dropped before the run has said how it ended, it tells
/// readers that the run was lost.
#[derive(Debug)]
pub struct Writer {
    hub: Hub,
    key: Key,
    channel: Arc<Channel>,
    held: bool,
    finished: bool,
}

impl Hub {
    /// Opens the stream of a run, in the place of an older run's.
    pub fn open(&self, run: Run, now: Duration) -> Writer {
        let channel = Arc::new(Channel::new(run.fence, run.id));
        let key = (run.tenant, run.key);
        let mut streams = self.streams();
        streams.expire(now);
        streams.by_key.insert(key.clone(), channel.clone());
        drop(streams);
        Writer { hub: self.clone(), key, channel, held: run.held, finished: false }
    }

    /// The stream of this run, where it is here.
    pub fn find(
        &self,
        tenant: &TenantId,
        key: Uuid,
        run: RequestId,
        now: Duration,
    ) -> Option<Arc<Channel>> {
        let mut streams = self.streams();
        streams.expire(now);
        let found = streams.by_key.get(&(tenant.clone(), key));
        found.filter(|channel| channel.run() == run).cloned()
    }

    /// Lets go of ended streams whose time is over.
    pub fn expire(&self, now: Duration) {
        self.streams().expire(now);
    }

    /// How many streams are here, ended ones included, and the bytes that those hold.
    pub fn held(&self) -> (usize, usize) {
        let streams = self.streams();
        (streams.by_key.len(), streams.ended_bytes)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        // Whole between any two statements that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    fn expire(&mut self, now: Duration) {
        while let Some(oldest) = self.ended.front()
            && (oldest.until <= now || self.ended_bytes > KEPT_BYTES)
        {
            let Some(oldest) = self.ended.pop_front() else { return };
            self.ended_bytes -= oldest.bytes;
            self.remove(&oldest.key, &oldest.channel);
            oldest.channel.give_up();
        }
    }

    /// Unless a newer run's stands there.
    fn remove(&mut self, key: &Key, channel: &Arc<Channel>) {
        if self.by_key.get(key).is_some_and(|there| Arc::ptr_eq(there, channel)) {
            self.by_key.remove(key);
        }
    }
}

impl Writer {
    /// The stream itself, for readers.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Text of the call under way, as it comes.
    pub fn push(&self, text: &str) {
        if !self.held {
            self.channel.push(text);
        }
    }

    /// How far a parse is, in chunks.
    pub fn progress(&self, done: usize, chunks: usize) {
        self.channel.progress(done, chunks);
    }

    /// The call under way failed, or its answer was not accepted: its text is forgotten. `true`
    /// where it cannot be, because a reader has some of it.
    pub fn forget(&self) -> bool {
        self.channel.forget()
    }

    /// The whole answer was accepted.
    pub fn accepted(&self, text: &str) {
        if self.held {
            self.channel.push(text);
        }
    }

    /// The last event; the stream is kept for a while.
    pub fn finish(mut self, ending: &Ending, now: Duration) {
        self.finished = true;
        self.channel.finish(ending);
        let (key, channel) = (self.key.clone(), self.channel.clone());
        let (bytes, joined) = (channel.bytes(), channel.was_joined());
        let mut streams = self.hub.streams();
        if !joined {
            // Nobody knows an id of it, so the record tells it as well.
            streams.remove(&key, &channel);
            return;
        }
        streams.ended.push_back(Ended { key, channel, until: now + KEPT_FOR, bytes });
        streams.ended_bytes += bytes;
        streams.expire(now);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let detail = detail_of(FailureKind::RunLost);
        let problem = Problem::new(ErrorCode::RunLost, self.channel.run(), detail);
        self.channel.finish(&Ending::Failed(problem));
        self.hub.streams().remove(&self.key, &self.channel);
    }
}
