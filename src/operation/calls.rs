//! The calls of one run as they are kept: every one of them, on every way out of the run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::failure::FailureKind;
use crate::domain::usage::{PriceId, Prices, Usage};
use crate::store::CallRow;

/// The list of a run's calls; clones are one and the same, so that it outlives a run that is dropped.
#[derive(Debug, Clone, Default)]
pub struct CallLog {
    rows: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    row: CallRow,
    prices: Prices,
    open: bool,
}

/// What a call is before it is sent.
pub struct NewCall<'a> {
    pub provider: &'a str,
    pub model: &'a str,
    pub route: &'a str,
    /// Those of the model.
    pub prices: Prices,
    /// Where they stand in the book.
    pub price: Option<PriceId>,
    /// What it changes against the call before.
    pub changed: Option<String>,
    /// Since the call before or the start of the run: between calls and for a slot.
    pub waited: Duration,
    pub at: DateTime<Utc>,
}

impl CallLog {
    /// A call is about to be sent. Returns its number, from 1.
    pub fn begin(&self, call: &NewCall<'_>) -> i32 {
        let mut rows = self.lock();
        let call_no = i32::try_from(rows.len()).map_or(i32::MAX, |calls| calls.saturating_add(1));
        let row = CallRow {
            call_no,
            counted: false,
            provider: call.provider.to_owned(),
            model: call.model.to_owned(),
            route: call.route.to_owned(),
            status: None,
            failure_kind: None,
            changed: call.changed.clone(),
            waited: call.waited,
            usage: Usage::default(),
            cost: None,
            price: call.price,
            started_at: call.at,
            ended_at: call.at,
        };
        rows.push(Entry { row, prices: call.prices, open: true });
        call_no
    }

    /// The call gave an answer that is taken.
    pub fn answered(&self, call_no: i32, usage: Usage, at: DateTime<Utc>) {
        self.end(call_no, |row| {
            row.counted = true;
            row.status = Some(200);
            row.usage = usage;
            row.ended_at = at;
        });
    }

    /// The call failed; what it told of its usage is paid for all the same.
    pub fn failed(
        &self,
        call_no: i32,
        kind: FailureKind,
        status: Option<u16>,
        usage: Usage,
        at: DateTime<Utc>,
    ) {
        self.end(call_no, |row| {
            row.status = status;
            row.failure_kind = Some(kind.as_str());
            row.usage = usage;
            row.ended_at = at;
        });
    }

    /// The answer of this call is in no verdict after all: another one stands in its place.
    pub fn set_aside(&self, call_no: i32) {
        if let Some(entry) = at(&mut self.lock(), call_no) {
            entry.row.counted = false;
        }
    }

    /// One call as it stands.
    pub fn row(&self, call_no: i32) -> Option<CallRow> {
        at(&mut self.lock(), call_no).map(|entry| entry.row.clone())
    }

    fn end(&self, call_no: i32, fill: impl FnOnce(&mut CallRow)) {
        if let Some(entry) = at(&mut self.lock(), call_no) {
            fill(&mut entry.row);
            entry.row.cost = entry.row.usage.cost(&entry.prices);
            entry.open = false;
        }
    }

    /// All calls of a run that is committed.
    pub fn committed(&self) -> Vec<CallRow> {
        self.lock().iter().map(|entry| entry.row.clone()).collect()
    }

    /// All calls of a run that ends without a commit: none counts, and one that was under way ends
    /// with the run's own reason. A call that answered well keeps its place as wasted.
    pub fn wasted(&self, kind: FailureKind, at: DateTime<Utc>) -> Vec<CallRow> {
        let close = |entry: &Entry| {
            let mut row = entry.row.clone();
            row.counted = false;
            if entry.open {
                row.ended_at = at.max(row.started_at);
            }
            row.failure_kind = row.failure_kind.or(Some(kind.as_str()));
            row
        };
        self.lock().iter().map(close).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        // The list is whole between any two statements that hold the lock.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The call with this number, from 1.
fn at(entries: &mut [Entry], call_no: i32) -> Option<&mut Entry> {
    let place = usize::try_from(call_no).ok()?.checked_sub(1)?;
    entries.get_mut(place)
}
