//! What `[retention]` keeps for a time only is taken away: in small steps with pauses between them, by one
//! node at a time, for a while in each round of the keeper.

use std::time::Duration;

use crate::captures::{Captures, CapturesError};
use crate::clock::{Clock, Moment};
use crate::domain::ids::TenantId;
use crate::store::{OfOperation, OldCapture, PartitionSession, StoreError, TurnsPlace};

/// Between two steps: claims come first.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// Between two passes at most; a pass looks at every conversation.
const LONGEST_REST: Duration = Duration::from_secs(6 * 3_600);

/// How long things are kept; `None`: for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionRules {
    /// Turns, and what parses found.
    pub turns: Option<Duration>,
    /// What was uploaded.
    pub captures: Option<Duration>,
    pub provider_calls: Option<Duration>,
}

impl RetentionRules {
    /// Between two passes: a part of the shortest time, so that nothing stays for much longer than it.
    pub fn rest(&self) -> Duration {
        let times = [self.turns, self.captures, self.provider_calls];
        times.into_iter().flatten().min().map_or(LONGEST_REST, |it| (it / 24).min(LONGEST_REST))
    }
}

/// What one round took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TakenAway {
    pub turns: u64,
    pub parse_results: u64,
    pub captures: u64,
    pub provider_calls: u64,
}

/// Where a pass stands between two rounds.
#[derive(Debug, Clone, Default)]
pub struct RetentionPass {
    turns_after: Option<TurnsPlace>,
}

/// Why a round stopped; the next one goes on.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Captures(#[from] CapturesError),
}

/// How far a round came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    /// Its time was over.
    Stopped,
}

/// A round over everything that is kept for a time.
pub struct Retention<'a> {
    pub captures: &'a Captures,
    pub rules: RetentionRules,
    pub clock: &'a Clock,
    /// When the round stops, wherever it is.
    pub deadline: Moment,
}

impl Retention<'_> {
    /// Takes away what is over, until all is or the deadline is reached; `pass` then says where the next
    /// round goes on, and `false` that there is more. Needs [`PartitionSession::alone`].
    ///
    /// # Errors
    /// The first of the database or the object store. What went is gone; a capture whose row is still
    /// there is deleted once more.
    pub async fn round(
        &self,
        session: &mut PartitionSession,
        pass: &mut RetentionPass,
        taken: &mut TakenAway,
    ) -> Result<bool, RetentionError> {
        let rules = &self.rules;
        if let Some(time) = rules.provider_calls {
            let taken = &mut taken.provider_calls;
            if self.rows(session, OfOperation::Calls, time, taken).await? == Progress::Stopped {
                return Ok(false);
            }
        }
        if let Some(time) = rules.turns {
            let results = &mut taken.parse_results;
            let rows = self.rows(session, OfOperation::ParseResults, time, results).await?;
            if rows == Progress::Stopped
                || self.turns(session, time, pass, &mut taken.turns).await? == Progress::Stopped
            {
                return Ok(false);
            }
        }
        // Last: they hang on another service than the rest.
        if let Some(time) = rules.captures
            && self.captures(session, time, &mut taken.captures).await? == Progress::Stopped
        {
            return Ok(false);
        }
        Ok(true)
    }

    async fn rows(
        &self,
        session: &mut PartitionSession,
        what: OfOperation,
        time: Duration,
        taken: &mut u64,
    ) -> Result<Progress, StoreError> {
        let cutoff = session.older_than(time).await?;
        let mut tenant: Option<TenantId> = None;
        loop {
            tenant = session.next_tenant(what, tenant.as_ref()).await?;
            let Some(tenant) = &tenant else { return Ok(Progress::Done) };
            let mut more = true;
            while more {
                if self.pause().await == Progress::Stopped {
                    return Ok(Progress::Stopped);
                }
                let (deleted, any_left) = session.retire_rows(what, tenant, cutoff).await?;
                *taken += deleted;
                more = any_left;
            }
        }
    }

    async fn turns(
        &self,
        session: &mut PartitionSession,
        time: Duration,
        pass: &mut RetentionPass,
        taken: &mut u64,
    ) -> Result<Progress, StoreError> {
        let cutoff = session.older_than(time).await?;
        loop {
            if self.pause().await == Progress::Stopped {
                return Ok(Progress::Stopped);
            }
            let step = session.retire_turns(cutoff, pass.turns_after.as_ref()).await?;
            *taken += step.deleted;
            pass.turns_after = step.after;
            if pass.turns_after.is_none() {
                return Ok(Progress::Done);
            }
        }
    }

    async fn captures(
        &self,
        session: &mut PartitionSession,
        time: Duration,
        taken: &mut u64,
    ) -> Result<Progress, RetentionError> {
        let cutoff = session.older_than(time).await?;
        loop {
            let old = session.old_captures(cutoff).await?;
            if old.is_empty() {
                return Ok(Progress::Done);
            }
            for capture in &old {
                if self.pause().await == Progress::Stopped {
                    return Ok(Progress::Stopped);
                }
                delete_capture(session, self.captures, capture).await?;
                *taken += 1;
            }
        }
    }

    async fn pause(&self) -> Progress {
        self.clock.sleep(PAUSE).await;
        if self.clock.now() < self.deadline { Progress::Done } else { Progress::Stopped }
    }
}

/// The bytes first: whatever happens then, the row says that they must go.
pub(super) async fn delete_capture(
    session: &mut PartitionSession,
    captures: &Captures,
    capture: &OldCapture,
) -> Result<(), RetentionError> {
    match captures.delete(&capture.location).await {
        // Nobody of ours wrote such a place, so there is nothing of ours.
        Ok(()) | Err(CapturesError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(session.forget_capture(capture).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_follows_often_enough_for_the_shortest_time() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let rules = RetentionRules { captures: Some(hours(24 * 30)), ..RetentionRules::default() };
        assert_eq!(rules.rest(), LONGEST_REST);
        let rules = RetentionRules { turns: Some(hours(24)), ..rules };
        assert_eq!(rules.rest(), hours(1));
        assert_eq!(RetentionRules::default().rest(), LONGEST_REST);
    }
}
