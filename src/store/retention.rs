//! Taking away what is kept for a time only: calls, parse results, captures, the oldest turns.
//!
//! No index was made for it: that would cost every commit. Operations are named by UUIDv7, so the keys of
//! calls and results stand in the order of time within a tenant, and the oldest are a range of the primary
//! key. Turns go from the front of their conversation, looked up by that table's key. Each step is a
//! transaction of some hundred rows that nobody else has a reason to lock; who calls pauses in between.
//!
//! Nothing goes that the audit still asks for: a call is kept as long as the receipt that counts it is
//! younger than the time, and the two turns of an operation go together.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::error::StoreError;
use super::retire::PartitionSession;
use crate::domain::ids::{ConversationId, OperationId, TenantId};

/// Calls or results in one transaction.
const ROWS: i64 = 500;
/// Captures in one step: each is a request to the object store too.
const CAPTURES: i64 = 50;
/// Conversations looked at in one transaction, and turns that may go of each.
const CONVERSATIONS: i64 = 100;
const TURNS_OF_EACH: i64 = 40;

/// What is kept under the key of its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfOperation {
    Calls,
    ParseResults,
}

/// A conversation, as a place in their order.
pub type TurnsPlace = (TenantId, ConversationId);

/// What one step over the conversations did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnsStep {
    pub deleted: u64,
    /// Where the next step goes on; `None`: this was the last.
    pub after: Option<TurnsPlace>,
}

/// A capture whose time is over, or that is erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldCapture {
    pub tenant: TenantId,
    pub id: Uuid,
    pub operation: OperationId,
    pub location: String,
    pub bytes: i64,
}

impl PartitionSession {
    /// The moment before which something is older than this.
    pub async fn older_than(&mut self, time: Duration) -> Result<DateTime<Utc>, StoreError> {
        let now = self.now().await?;
        let time = TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
        Ok(now.checked_sub_signed(time).unwrap_or(DateTime::UNIX_EPOCH))
    }

    /// The first tenant after this one that has such rows.
    pub async fn next_tenant(
        &mut self,
        what: OfOperation,
        after: Option<&TenantId>,
    ) -> Result<Option<TenantId>, StoreError> {
        let after = after.map_or("", TenantId::as_str);
        let next = match what {
            OfOperation::Calls => {
                sqlx::query_scalar!(
                    "/* retention.tenant_of_calls */
                    select tenant_id from provider_calls where tenant_id > $1
                    order by tenant_id limit 1",
                    after,
                )
                .fetch_optional(&mut self.connection)
                .await?
            }
            OfOperation::ParseResults => {
                sqlx::query_scalar!(
                    "/* retention.tenant_of_results */
                    select tenant_id from parse_results where tenant_id > $1
                    order by tenant_id limit 1",
                    after,
                )
                .fetch_optional(&mut self.connection)
                .await?
            }
        };
        Ok(next.map(TenantId::new))
    }

    /// Deletes the oldest of a tenant that are from before `cutoff`. `false` beside their number: there
    /// are no more.
    pub async fn retire_rows(
        &mut self,
        what: OfOperation,
        tenant: &TenantId,
        cutoff: DateTime<Utc>,
    ) -> Result<(u64, bool), StoreError> {
        let deleted = match what {
            OfOperation::Calls => self.retire_calls(tenant, cutoff).await?,
            OfOperation::ParseResults => self.retire_results(tenant, cutoff).await?,
        };
        Ok((deleted, i64::try_from(deleted).is_ok_and(|deleted| deleted >= ROWS)))
    }

    /// The receipt is counted so that it is asked for call by call, by its key.
    async fn retire_calls(
        &mut self,
        tenant: &TenantId,
        cutoff: DateTime<Utc>,
    ) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "/* retention.calls */
            delete from provider_calls where ctid = any (array(
                select c.ctid from provider_calls c
                where c.tenant_id = $1 and c.operation_id < $2 and c.ended_at < $3
                    and (select count(*) from usage_receipts u where u.tenant_id = c.tenant_id
                        and u.operation_id = c.operation_id and u.created_at >= $3) = 0
                order by c.operation_id limit $4 for update of c skip locked))",
            tenant.as_str(),
            named_at(cutoff),
            cutoff,
            ROWS,
        )
        .execute(&mut self.connection)
        .await?;
        Ok(done.rows_affected())
    }

    async fn retire_results(
        &mut self,
        tenant: &TenantId,
        cutoff: DateTime<Utc>,
    ) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "/* retention.results */
            delete from parse_results where ctid = any (array(
                select ctid from parse_results
                where tenant_id = $1 and operation_id < $2 and created_at < $3
                order by operation_id limit $4 for update skip locked))",
            tenant.as_str(),
            named_at(cutoff),
            cutoff,
            ROWS,
        )
        .execute(&mut self.connection)
        .await?;
        Ok(done.rows_affected())
    }

    /// Deletes the turns from before `cutoff` at the front of the next conversations after this place.
    /// The conversations stay, with their head.
    pub async fn retire_turns(
        &mut self,
        cutoff: DateTime<Utc>,
        after: Option<&TurnsPlace>,
    ) -> Result<TurnsStep, StoreError> {
        let (tenant, conversation) = after
            .map_or(("", ""), |(tenant, conversation)| (tenant.as_str(), conversation.as_str()));
        // An operation's turns go with its answer, the later of the two: none is left alone.
        let row = sqlx::query!(
            r#"/* retention.turns */
            with looked as (
                select tenant_id, conversation_id from conversations
                where tenant_id >= $2 and (tenant_id, conversation_id) > ($2, $3)
                order by tenant_id, conversation_id limit $4),
            old as (
                select l.tenant_id, l.conversation_id, (
                    select max(first.seq) from (
                        select t.seq, t.role, t.created_at from turns t where t.tenant_id = l.tenant_id
                            and t.conversation_id = l.conversation_id
                        order by t.seq limit $5) first
                    where first.role = 'assistant' and first.created_at < $1) as seq
                from looked l),
            gone as (
                delete from turns where ctid = any (array(
                    select first.ctid from old, lateral (
                        select t.ctid from turns t where t.tenant_id = old.tenant_id
                            and t.conversation_id = old.conversation_id and t.seq <= old.seq
                        order by t.seq limit $5) first))
                returning tenant_id, conversation_id),
            of_each as (
                select count(*) as turns from gone group by tenant_id, conversation_id)
            select (select coalesce(sum(turns), 0)::bigint from of_each) as "deleted!",
                (select coalesce(max(turns), 0) >= $5 from of_each) as "more!",
                (select count(*) from looked) as "looked!",
                (select tenant_id from looked order by tenant_id desc, conversation_id desc limit 1)
                    as "tenant?",
                (select conversation_id from looked order by tenant_id desc, conversation_id desc limit 1)
                    as "conversation?""#,
            cutoff,
            tenant,
            conversation,
            CONVERSATIONS,
            TURNS_OF_EACH,
        )
        .fetch_one(&mut self.connection)
        .await?;
        let last = row.tenant.zip(row.conversation);
        let last = last.map(|(tenant, conversation)| {
            (TenantId::new(tenant), ConversationId::new(conversation))
        });
        let after = match (row.more, row.looked < CONVERSATIONS) {
            // One of them has more that is old: the same ones again.
            (true, _) => Some(after.cloned().unwrap_or_else(beginning)),
            (false, true) => None,
            (false, false) => last,
        };
        Ok(TurnsStep { deleted: u64::try_from(row.deleted).unwrap_or(0), after })
    }

    /// The oldest captures from before `cutoff`.
    pub async fn old_captures(
        &mut self,
        cutoff: DateTime<Utc>,
    ) -> Result<Vec<OldCapture>, StoreError> {
        let rows = sqlx::query!(
            "/* retention.captures */
            select tenant_id, capture_id, operation_id, location, bytes from captures
            where created_at < $1 order by created_at limit $2",
            cutoff,
            CAPTURES,
        )
        .fetch_all(&mut self.connection)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| OldCapture {
                tenant: TenantId::new(row.tenant_id),
                id: row.capture_id,
                operation: OperationId(row.operation_id),
                location: row.location,
                bytes: row.bytes,
            })
            .collect())
    }

    /// Deletes the row of a capture whose bytes are gone.
    pub async fn forget_capture(&mut self, capture: &OldCapture) -> Result<(), StoreError> {
        sqlx::query!(
            "/* retention.capture */ delete from captures where tenant_id = $1 and capture_id = $2",
            capture.tenant.as_str(),
            capture.id,
        )
        .execute(&mut self.connection)
        .await?;
        Ok(())
    }
}

/// Before the first conversation.
fn beginning() -> TurnsPlace {
    (TenantId::new(""), ConversationId::new(""))
}

/// The least UUIDv7 of this moment: what was named before it stands before it.
pub(super) fn named_at(moment: DateTime<Utc>) -> Uuid {
    // 48 bits of milliseconds, which last until the year 10889; before 1970 nothing was named.
    let milliseconds = u128::try_from(moment.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(milliseconds << 80)
}
