//! A finished operation as a stream, made from its record.
//!
//! Its events are made once for all who read it at the same time, and are the same at every node and
//! on every day: a reader is a place among them, and a replay that broke is resumed like any other
//! stream.

use std::sync::Arc;

use bytes::Bytes;

use super::channel::Begin;
use super::id::StreamId;
use super::shelf::Told;
use super::sse;
use crate::domain::ids::{Fence, RequestId};

/// Parts of the last event.
const LAST_PARTS: usize = 3;

/// A place in the events of a stored verdict.
#[derive(Debug)]
pub struct Replay {
    told: Arc<Told>,
    place: usize,
    /// Said first, where this reader asked for a place that is not there.
    restarted: Option<Bytes>,
}

impl Replay {
    /// Behind an event of this record; from its start otherwise, and told so where the id is none of
    /// its own.
    pub fn new(fence: Fence, run: RequestId, told: Arc<Told>, from: Begin) -> Self {
        let parts = told.events().len();
        let events = parts.saturating_sub(LAST_PARTS - 1);
        let place = match from {
            Begin::Start => Some(0),
            Begin::Behind(StreamId::Record { fence: of, n }) if of == fence => {
                usize::try_from(n).ok().filter(|n| *n <= events)
            }
            Begin::Behind(_) | Begin::Elsewhere => None,
        };
        let (place, restarted) = match place {
            Some(place) if place == events => (parts, None),
            Some(place) => (place, None),
            None => (0, Some(sse::restarted(run))),
        };
        Self { told, place, restarted }
    }

    /// Whether its reader has had all of it.
    pub fn is_over(&self) -> bool {
        self.restarted.is_none() && self.place == self.told.events().len()
    }
}

impl Iterator for Replay {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(restarted) = self.restarted.take() {
            return Some(restarted);
        }
        let part = self.told.events().get(self.place).cloned()?;
        self.place += 1;
        Some(part)
    }
}
