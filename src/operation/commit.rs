//! Writing a verdict until it is written or known not to be: the transaction is repeated with the
//! answer kept in memory, never the model call.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::Inner;
use super::heartbeat::LeftSeat;
use crate::domain::record::{Guard, RecordKey};
use crate::store::{
    ChatCommit, CommitOutcome, CommitTrace, Failure, ParseCommit, Store, StoreError,
};

/// Between two tries while the database is away.
const PAUSE: Duration = Duration::from_millis(250);

/// Everything that a committed operation writes; repeating the transaction repeats these bytes.
#[derive(Clone)]
pub(super) enum Effects {
    Chat(Arc<ChatCommit>),
    Parse(Arc<ParseCommit>),
}

impl Effects {
    fn at(&self) -> &RecordKey {
        match self {
            Effects::Chat(commit) => &commit.at,
            Effects::Parse(commit) => &commit.at,
        }
    }

    fn guard(&self) -> Guard {
        match self {
            Effects::Chat(commit) => commit.guard,
            Effects::Parse(commit) => commit.guard,
        }
    }

    /// The bytes that every replay returns.
    pub fn response(&self) -> &[u8] {
        match self {
            Effects::Chat(commit) => &commit.response,
            Effects::Parse(commit) => &commit.response,
        }
    }

    async fn write(&self, store: &Store) -> Result<CommitOutcome, StoreError> {
        match self {
            Effects::Chat(commit) => store.commit_chat(commit.clone()).await,
            Effects::Parse(commit) => store.commit_parse(commit.clone()).await,
        }
    }
}

/// How a commit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Committed,
    Fenced,
    LeaseLost,
    /// The database stayed away for as long as the run was trusted.
    Unknown,
    /// Refused for a reason that repeating does not change.
    Broken,
}

/// Commits, as long as the run's last beat is trusted. When the answer to a commit is lost, what
/// became of it is looked up before anything else is tried.
pub(super) async fn settle(inner: &Inner, left: LeftSeat, effects: &Effects) -> Ending {
    let (mut in_doubt, mut written_again) = (false, false);
    loop {
        if inner.clock.now() >= left.trusted_until {
            tracing::error!(
                event = "outcome_unknown",
                in_doubt,
                "the commit could not be written in time"
            );
            return if in_doubt { Ending::Unknown } else { Ending::Fenced };
        }
        let writing = effects.write(&inner.store);
        let error = match writing.instrument(tracing::trace_span!("commit")).await {
            Ok(CommitOutcome::Committed) => return Ending::Committed,
            Ok(CommitOutcome::Fenced) if !in_doubt => return Ending::Fenced,
            // An earlier try may have been the one that took the record out of our hands.
            Ok(CommitOutcome::Fenced) => match trace(inner, left, effects).await {
                Some(CommitTrace::Committed) => return Ending::Committed,
                Some(CommitTrace::Fenced | CommitTrace::NotYet) => return Ending::Fenced,
                None => return Ending::Unknown,
            },
            Err(StoreError::LeaseLost) => return Ending::LeaseLost,
            Err(error) if error.is_unavailable() || error.is_conflict() => error,
            Err(error) => {
                tracing::error!(event = "commit_refused", %error, "the database refused the commit");
                return Ending::Broken;
            }
        };
        tracing::warn!(event = "commit_repeated", %error, "the transaction is written again");
        if error.is_unavailable() {
            in_doubt = true;
            match trace(inner, left, effects).await {
                Some(CommitTrace::Committed) => return Ending::Committed,
                Some(CommitTrace::Fenced) => return Ending::Fenced,
                // At once the first time: a connection broke, and another stands. A database that answers
                // and refuses (a full disk) is given time.
                Some(CommitTrace::NotYet) if written_again => inner.clock.sleep(PAUSE).await,
                Some(CommitTrace::NotYet) => written_again = true,
                None => return Ending::Unknown,
            }
        } else {
            inner.clock.sleep(PAUSE).await;
        }
    }
}

/// Looks up what became of a commit. `None`: the database stayed away.
async fn trace(inner: &Inner, left: LeftSeat, effects: &Effects) -> Option<CommitTrace> {
    loop {
        match inner.store.trace_commit(effects.at().clone(), effects.guard()).await {
            Ok(trace) => return Some(trace),
            Err(error) => tracing::warn!(
                event = "commit_in_doubt",
                %error,
                "what became of the commit is not known yet"
            ),
        }
        if inner.clock.now() >= left.trusted_until {
            return None;
        }
        inner.clock.sleep(PAUSE).await;
    }
}

/// Writes the end of a run that failed, as long as the run's last beat is trusted: until it is
/// written, nobody else may begin. Repeating is safe: a record that was ended is no longer in
/// progress, and its calls are there already.
pub(super) async fn settle_failure(
    inner: &Inner,
    left: LeftSeat,
    failure: Failure,
) -> Result<CommitOutcome, StoreError> {
    let mut in_doubt = false;
    loop {
        let outcome = match inner.store.fail(failure.clone()).await {
            // Ended by the try whose answer was lost, or by somebody else: told apart by reading.
            Ok(CommitOutcome::Fenced) if in_doubt => ended_as(inner, &failure).await,
            outcome => outcome,
        };
        match outcome {
            Err(error)
                if (error.is_unavailable() || error.is_conflict())
                    && inner.clock.now() < left.trusted_until =>
            {
                in_doubt = true;
                tracing::warn!(%error, "the end of the run is written again");
                inner.clock.sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn ended_as(inner: &Inner, failure: &Failure) -> Result<CommitOutcome, StoreError> {
    let record = inner.store.record(failure.at.tenant.clone(), failure.at.key).await?;
    let ours = record.is_some_and(|record| {
        record.guard == failure.guard && record.failure_kind.as_deref() == Some(failure.kind)
    });
    Ok(if ours { CommitOutcome::Committed } else { CommitOutcome::Fenced })
}
