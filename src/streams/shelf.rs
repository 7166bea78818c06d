//! Records that are being told: one copy of each, however many readers.
//!
//! Every reader of a record comes with the answer as the database gave it to him. The events that are
//! made of the first one's are kept for as long as anybody reads them; the others' answers are let go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bytes::{Bytes, BytesMut};

use super::channel::shared;
use super::id::StreamId;
use super::sse;
use crate::domain::ids::{Fence, RequestId};
use crate::domain::record::StoredAnswer;

/// The longest piece of the text, in bytes; some readers have a limit on a line.
const PIECE_BYTES: usize = 64 * 1024;
/// So many entries at least before those that nobody reads any more are looked for.
const FEW: usize = 64;

/// The events of a stored verdict.
#[derive(Debug, Default)]
pub struct Told(OnceLock<Vec<Bytes>>);

/// What is being told at this node, by the run that produced it; clones are one and the same.
#[derive(Debug, Clone, Default)]
pub struct Shelf(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    by_run: HashMap<RequestId, Weak<Told>>,
    /// With so many entries it is time to look for those that are gone.
    full: usize,
}

impl Told {
    /// The last event stands in several parts.
    pub(super) fn events(&self) -> &[Bytes] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

impl Shelf {
    /// The events of this run's answer: those that somebody reads already, or new ones. `text` finds
    /// the text in an answer; a final failure has none.
    pub fn share(
        &self,
        (fence, run): (Fence, RequestId),
        answer: &Arc<StoredAnswer>,
        text: impl FnOnce(&StoredAnswer) -> Option<String>,
    ) -> Arc<Told> {
        let told = self.place(run);
        told.0.get_or_init(|| events(fence, run, answer, text(answer).as_deref()));
        told
    }

    fn place(&self, run: RequestId) -> Arc<Told> {
        // Whole between any two statements that could panic.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = known.by_run.get(&run).and_then(Weak::upgrade) {
            return told;
        }
        if known.by_run.len() >= known.full {
            known.by_run.retain(|_, told| told.strong_count() > 0);
            known.full = (2 * known.by_run.len()).max(FEW);
        }
        let told = Arc::new(Told::default());
        known.by_run.insert(run, Arc::downgrade(&told));
        told
    }
}

/// All events of an answer with this text, or of a final failure where there is none. The text is cut
/// at fixed places, so that an id means the same wherever and whenever the record is told.
fn events(
    fence: Fence,
    run: RequestId,
    answer: &Arc<StoredAnswer>,
    text: Option<&str>,
) -> Vec<Bytes> {
    let (mut events, mut to) = (Vec::new(), BytesMut::new());
    let id = |events: &Vec<Bytes>| StreamId::Record { fence, n: events.len() as u64 + 1 };
    let name = match text {
        None => "failed",
        Some(text) => {
            sse::started(&mut to, id(&events), run);
            events.push(to.split().freeze());
            let mut rest = text;
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
                sse::delta(&mut to, id(&events), piece);
                events.push(to.split().freeze());
                rest = behind;
            }
            "completed"
        }
    };
    let last = sse::last(id(&events), name, shared(answer));
    events.extend(last);
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    /// An answer as the database gives it: a copy of its own for everybody who asks.
    fn share(shelf: &Shelf, n: u128, text: impl FnOnce() -> String) -> Arc<Told> {
        let answer = Arc::new(StoredAnswer { status: 200, body: b"{}".to_vec() });
        shelf.share((Fence(1), RequestId(Uuid::from_u128(n))), &answer, |_| Some(text()))
    }

    fn holds(told: &Told, text: &str) -> bool {
        std::str::from_utf8(&told.events()[1]).unwrap().contains(text)
    }

    #[test]
    fn there_is_one_copy_while_anybody_reads_it() {
        let shelf = Shelf::default();
        let first = share(&shelf, 1, || "one".into());
        for _ in 0..50 {
            let next = share(&shelf, 1, || panic!("its events are made"));
            assert!(Arc::ptr_eq(&first, &next));
        }
        assert_eq!(Arc::strong_count(&first), 1);
        assert!(holds(&share(&shelf, 2, || "two".into()), "two"));
        drop(first);
        assert!(holds(&share(&shelf, 1, || "anew".into()), "anew"));
    }

    #[test]
    fn what_nobody_reads_leaves_nothing_behind() {
        let shelf = Shelf::default();
        let read = share(&shelf, 0, || "read".into());
        for n in 1..10_000 {
            drop(share(&shelf, n, || "not any more".into()));
        }
        assert!(shelf.0.lock().unwrap().by_run.len() <= FEW);
        assert!(Arc::ptr_eq(&read, &share(&shelf, 0, || panic!("its events are made"))));
    }
}
