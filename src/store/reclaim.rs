//! The second statement of an arrival that found a record: take over, claim again, give up; and the
//! sweep's end of a run that nobody owns.
//!
//! Each is guarded by the fence and the request id that were read, and judges the record again under
//! its lock: a late beat may have landed meanwhile.

use std::sync::Arc;

use sqlx::{Connection, PgConnection};

use super::claim::Claim;
use super::error::StoreError;
use super::lease::{Holder, Lease, Taken, WantedLease};
use super::retire::hold_day;
use super::{Store, record};
use crate::domain::ids::{ConversationId, Fence, RequestId, TenantId};
use crate::domain::liveness::{Liveness, LivenessRules};
use crate::domain::record::{Guard, Record, RecordKey, State, StoredAnswer};

#[derive(Debug)]
pub enum ReclaimOutcome {
    Won(Claim),
    /// The record is no longer as it was read, or its owner turned out to be alive: read it again.
    Changed,
    ConversationBusy(Holder),
    /// The conversation belongs to another subject now.
    ConversationHidden,
}

/// Whether a run counts. One that draining released, or that was cancelled, is not held against the
/// operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    Counts,
    DoesNotCount,
}

impl Store {
    /// Claims a record again that ended in a passing failure, or takes over a run without a live
    /// owner: fence + 1, a new request id, the old operation id.
    pub async fn reclaim(
        &self,
        found: Arc<Record>,
        request_id: RequestId,
        counting: Counting,
    ) -> Result<ReclaimOutcome, StoreError> {
        let lost = match self.reclaim_once(found.clone(), request_id, counting).await {
            Err(error) if error.is_in_doubt() => error,
            outcome => return outcome,
        };
        // Once more, on another connection: a claim whose answer was lost must not stay behind
        // without a run. The record then bears this arrival's id, and is not as it was read.
        tracing::warn!(error = %lost, "what became of a claim is not known; looking");
        match self.reclaim_once(found.clone(), request_id, counting).await {
            Ok(ReclaimOutcome::Changed) => {
                let record = self.record(found.at.tenant.clone(), found.at.key).await?;
                let Some(record) = record else { return Ok(ReclaimOutcome::Changed) };
                let own = self.own_claim(&record, request_id).await?;
                Ok(own.map_or(ReclaimOutcome::Changed, ReclaimOutcome::Won))
            }
            Err(StoreError::NotSent(text)) => Err(StoreError::Unavailable(text)),
            outcome => outcome,
        }
    }

    async fn reclaim_once(
        &self,
        found: Arc<Record>,
        request_id: RequestId,
        counting: Counting,
    ) -> Result<ReclaimOutcome, StoreError> {
        let (rules, node) = (self.liveness, i64::from(self.node().0));
        self.database
            .run("reclaim", move |connection| {
                let found = found.clone();
                Box::pin(async move {
                    // Read first: a poll that finds the conversation busy writes nothing.
                    if let Some(wanted) = wanted(&found)
                        && let Some(taken) = wanted.look(connection, &rules).await?
                    {
                        return Ok(taken.into());
                    }
                    let mut transaction = connection.begin().await?;
                    sqlx::query!(
                        r#"/* reclaim.setting */
                        select set_config('synchronous_commit', 'off', true) as "setting!""#
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    if !lock_abandoned(&mut transaction, &rules, &found).await? {
                        transaction.rollback().await?;
                        return Ok(ReclaimOutcome::Changed);
                    }
                    let mut head_seq = 0;
                    if let Some(wanted) = wanted(&found) {
                        match wanted.take(&mut transaction, &rules).await? {
                            Lease::Free { head_seq: head } => head_seq = head,
                            Lease::Taken(taken) => {
                                transaction.rollback().await?;
                                return Ok(taken.into());
                            }
                        }
                    }
                    let row = sqlx::query!(
                        "/* reclaim.win */
                        update request_records set state = 'in_progress', fence = fence + 1,
                            attempts = attempts + $6, request_id = $4, owner = $5,
                            claimed_at = clock_timestamp(), heartbeat_at = clock_timestamp(),
                            completed_at = null, failure_kind = null, failure_final = null
                        where tenant_id = $1 and idempotency_key = $2 and day = $3
                        returning fence, attempts, quota_hits, first_claimed_at, claimed_at",
                        found.at.tenant.as_str(),
                        found.at.key,
                        found.at.day,
                        request_id.0,
                        node,
                        i32::from(counting == Counting::Counts),
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    transaction.commit().await?;
                    Ok(ReclaimOutcome::Won(Claim {
                        at: found.at.clone(),
                        guard: Guard { fence: Fence(row.fence), request_id },
                        operation_id: found.operation_id,
                        head_seq,
                        attempts: row.attempts.try_into().unwrap_or(u32::MAX),
                        quota_hits: row.quota_hits.try_into().unwrap_or(u32::MAX),
                        first_claimed_at: row.first_claimed_at,
                        claimed_at: row.claimed_at,
                        refused: None,
                    }))
                })
            })
            .await
    }

    /// Ends an operation for good, from a passing failure or from a run without a live owner.
    /// `false`: the record is no longer as it was read.
    pub async fn give_up(
        &self,
        found: Arc<Record>,
        kind: &'static str,
        answer: StoredAnswer,
    ) -> Result<bool, StoreError> {
        self.end_unowned(found, kind, Some(answer)).await
    }

    /// Ends a run without a live owner as a passing failure and frees its conversation.
    /// `false`: it lives after all, or somebody took it over.
    pub async fn abandon(
        &self,
        found: Arc<Record>,
        kind: &'static str,
    ) -> Result<bool, StoreError> {
        self.end_unowned(found, kind, None).await
    }

    /// With an answer for good, without one in passing.
    async fn end_unowned(
        &self,
        found: Arc<Record>,
        kind: &'static str,
        answer: Option<StoredAnswer>,
    ) -> Result<bool, StoreError> {
        let (rules, answer) = (self.liveness, Arc::new(answer));
        self.database
            .run("end_unowned", move |connection| {
                let (found, answer) = (found.clone(), answer.clone());
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    if !lock_abandoned(&mut transaction, &rules, &found).await? {
                        transaction.rollback().await?;
                        return Ok(false);
                    }
                    sqlx::query!(
                        "/* end_unowned */
                        update request_records set state = 'failed', failure_kind = $4,
                            failure_final = $5, response_status = $6, response = $7,
                            completed_at = clock_timestamp()
                        where tenant_id = $1 and idempotency_key = $2 and day = $3",
                        found.at.tenant.as_str(),
                        found.at.key,
                        found.at.day,
                        kind,
                        answer.is_some(),
                        answer.as_ref().as_ref().map(|answer| i32::from(answer.status)),
                        answer.as_ref().as_ref().map(|answer| &answer.body[..]),
                    )
                    .execute(&mut *transaction)
                    .await?;
                    free_conversation(&mut transaction, &found.at, found.conversation_id.as_ref())
                        .await?;
                    transaction.commit().await?;
                    Ok(true)
                })
            })
            .await
    }

    /// Runs that nobody owns and that have been silent for `stale_after`, oldest first, at most
    /// `limit` of them. A look only; `abandon` judges each again.
    pub async fn ownerless_runs(&self, limit: i64) -> Result<Vec<Record>, StoreError> {
        let (rules, stale) = (self.liveness, self.stale_after_interval());
        self.database
            .run("sweep.look", move |connection| {
                Box::pin(async move {
                    let keys = sqlx::query!(
                        "/* sweep.look */
                        select tenant_id, idempotency_key from request_records
                        where state = 'in_progress' and heartbeat_at < clock_timestamp() - $1::interval
                        order by heartbeat_at limit $2",
                        stale,
                        limit,
                    )
                    .fetch_all(&mut *connection)
                    .await?;
                    let mut found = Vec::new();
                    for row in keys {
                        let tenant = TenantId::new(row.tenant_id);
                        let read =
                            record::read(connection, &tenant, row.idempotency_key, false).await?;
                        found.extend(read.and_then(|row| row.record).filter(|record| {
                            record.state == State::InProgress
                                && rules.judge(&record.liveness) != Liveness::Alive
                        }));
                    }
                    Ok(found)
                })
            })
            .await
    }
}

impl From<Taken> for ReclaimOutcome {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Busy(holder) => Self::ConversationBusy(holder),
            Taken::Hidden => Self::ConversationHidden,
        }
    }
}

/// The lease that a run of this record needs; a parse needs none.
fn wanted(found: &Record) -> Option<WantedLease<'_>> {
    found.conversation_id.as_ref().map(|conversation| WantedLease {
        tenant: &found.at.tenant,
        conversation,
        subject: found.subject.as_ref(),
        key: found.at.key,
    })
}

/// Locks a record that is as it was read and that nobody runs, judged again under the lock. Until the
/// transaction ends its partition is not dropped.
async fn lock_abandoned(
    connection: &mut PgConnection,
    rules: &LivenessRules,
    found: &Record,
) -> Result<bool, StoreError> {
    hold_day(connection, found.at.day).await?;
    if !record::lock(connection, &found.at, found.guard).await? {
        return Ok(false);
    }
    let again = record::read(connection, &found.at.tenant, found.at.key, false).await?;
    Ok(again.and_then(|row| row.record).is_some_and(|record| {
        let unowned = match record.state {
            State::FailedPassing => !record.erased,
            State::InProgress => rules.judge(&record.liveness) != Liveness::Alive,
            State::Committed(_) | State::FailedFinal(_) => false,
        };
        unowned && record.state == found.state && record.guard == found.guard
    }))
}

/// Clears the lease where it is still this operation's.
async fn free_conversation(
    connection: &mut PgConnection,
    at: &RecordKey,
    conversation: Option<&ConversationId>,
) -> Result<(), StoreError> {
    let Some(conversation) = conversation else { return Ok(()) };
    sqlx::query!(
        "/* lease.free */
        update conversations set active_key = null
        where tenant_id = $1 and conversation_id = $2 and active_key = $3",
        at.tenant.as_str(),
        conversation.as_str(),
        at.key,
    )
    .execute(connection)
    .await?;
    Ok(())
}
