//! One round over the old partitions: what may be dropped is dropped, and what then means nothing any
//! more is cleared away. The keeper and the command do the same.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Clock;
use crate::domain::partition::{DropRule, Stays};
use crate::store::{Cleaned, Dropping, PartitionSession, Reader, StoreError};

/// Between two attempts at a partition that somebody holds.
const PAUSE: Duration = Duration::from_millis(250);

/// What happened to a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retired {
    Dropped {
        table: String,
    },
    /// An interrupted detaching was finished, and what it held is kept as a table of its own.
    Detached {
        table: String,
        why: Stays,
    },
    Stays {
        table: String,
        why: Stays,
    },
    /// Told once, when the waiting begins.
    Waits {
        table: String,
        readers: Vec<Reader>,
    },
    /// The patience is over: the next round goes on.
    LeftWaiting {
        table: String,
        readers: Vec<Reader>,
    },
}

/// Rows that were cleared away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleared {
    pub keys: u64,
    pub derived_keys: u64,
}

/// Drops what the rule lets go, one partition after the other, and tells about each. A partition that
/// somebody holds is waited for as long as `patience` lasts; the ones behind it cannot be detached
/// before it, so then the round ends.
///
/// # Errors
/// The first of the database; what was begun is finished by the next round.
pub async fn drop_old(
    session: &mut PartitionSession,
    rule: &DropRule,
    patience: Duration,
    clock: &Clock,
    mut tell: impl FnMut(Retired),
) -> Result<(), StoreError> {
    let (mut settled, mut waited_for) = (BTreeSet::new(), BTreeSet::new());
    let deadline = clock.now() + patience;
    loop {
        // Looked at anew each time: an attempt that waits leaves a partition half detached.
        let partitions = session.partitions().await?;
        let next = partitions.into_iter().find(|partition| !settled.contains(&partition.table));
        let Some(partition) = next else { return Ok(()) };
        let table = partition.table.clone();
        match session.retire(&partition, rule).await? {
            Dropping::Waits(readers) if clock.now() >= deadline => {
                tell(Retired::LeftWaiting { table, readers });
                return Ok(());
            }
            Dropping::Waits(readers) => {
                if waited_for.insert(table.clone()) {
                    tell(Retired::Waits { table, readers });
                }
                clock.sleep(PAUSE).await;
                continue;
            }
            Dropping::Dropped => tell(Retired::Dropped { table: table.clone() }),
            Dropping::Detached(why) => tell(Retired::Detached { table: table.clone(), why }),
            Dropping::Stays(why) => tell(Retired::Stays { table: table.clone(), why }),
        }
        settled.insert(table);
    }
}

/// Clears away the keys of days without a partition, and derived keys older than `derived_age`.
///
/// # Errors
/// The first of the database; the next round begins anew.
pub async fn clear_keys(
    session: &mut PartitionSession,
    derived_age: Duration,
) -> Result<Cleared, StoreError> {
    let mut cleared = Cleared::default();
    let derived = Cleaned::Derived { older_than: derived_age };
    for (what, rows) in [(Cleaned::Keys, &mut cleared.keys), (derived, &mut cleared.derived_keys)] {
        let mut cleaning = session.begin_cleaning(what).await?;
        while session.clean(&mut cleaning).await? {}
        *rows = cleaning.deleted;
    }
    Ok(cleared)
}

/// Transactions, for a line that a person reads.
pub fn named(readers: &[Reader]) -> String {
    let names = readers.iter().map(|reader| {
        let application =
            if reader.application.is_empty() { "no name" } else { reader.application.as_str() };
        let since = reader.since.map(|at| format!(" since {}", at.format("%H:%M:%SZ")));
        format!("{} ({application}{})", reader.pid, since.unwrap_or_default())
    });
    names.collect::<Vec<_>>().join(", ")
}
