//! The lease of a conversation: `active_key`, a hint that counts if and only if that key's record is
//! in progress and alive.
//!
//! Whether another holder is alive is judged in a statement after the one that locked the
//! conversation's row: a subquery in `ON CONFLICT … WHERE` would see the newest row with an old
//! snapshot. A lease is only ever taken, never cleared for somebody else, and taking it does not touch
//! the record of whoever had it.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::StoreError;
use super::record;
use crate::domain::ids::{ConversationId, Subject, TenantId};
use crate::domain::liveness::{Liveness, LivenessRules};
use crate::domain::record::State;

/// Another operation that runs in the conversation.
#[derive(Debug, Clone, Copy)]
pub struct Holder {
    pub key: Uuid,
    pub claimed_at: DateTime<Utc>,
    pub now: DateTime<Utc>,
}

/// Why a conversation cannot be had.
pub(super) enum Taken {
    Busy(Holder),
    /// It belongs to another subject.
    Hidden,
}

/// Whether a conversation was had.
pub(super) enum Lease {
    Free { head_seq: i64 },
    Taken(Taken),
}

/// A conversation that a key's operation wants to run in.
pub(super) struct WantedLease<'a> {
    pub tenant: &'a TenantId,
    pub conversation: &'a ConversationId,
    pub subject: Option<&'a Subject>,
    pub key: Uuid,
}

impl WantedLease<'_> {
    /// Reads, without a lock and without writing, whether the conversation can be had. `None`: it
    /// can, at first sight.
    pub async fn look(
        &self,
        connection: &mut PgConnection,
        rules: &LivenessRules,
    ) -> Result<Option<Taken>, StoreError> {
        let row = sqlx::query!(
            "/* lease.look */
            select subject, active_key from conversations
            where tenant_id = $1 and conversation_id = $2",
            self.tenant.as_str(),
            self.conversation.as_str(),
        )
        .fetch_optional(&mut *connection)
        .await?;
        match row {
            None => Ok(None),
            Some(row) => self.judge(connection, rules, row.subject, row.active_key).await,
        }
    }

    /// Locks the conversation, making it where it is new, and takes its lease unless a living
    /// operation holds it. Nothing is written where the answer is not `Free`.
    pub async fn take(
        &self,
        connection: &mut PgConnection,
        rules: &LivenessRules,
    ) -> Result<Lease, StoreError> {
        sqlx::query!(
            "/* lease.make_conversation */
            insert into conversations (tenant_id, conversation_id, subject) values ($1, $2, $3)
            on conflict do nothing",
            self.tenant.as_str(),
            self.conversation.as_str(),
            self.subject.map(Subject::as_str),
        )
        .execute(&mut *connection)
        .await?;
        let row = sqlx::query!(
            "/* lease.lock */
            select subject, head_seq, active_key from conversations
            where tenant_id = $1 and conversation_id = $2 for update",
            self.tenant.as_str(),
            self.conversation.as_str(),
        )
        .fetch_optional(&mut *connection)
        .await?;
        // Deleted between the two statements: as if somebody else had it; the client asks again.
        let Some(row) = row else {
            return Err(StoreError::Conflict("the conversation was deleted meanwhile".into()));
        };
        if let Some(taken) = self.judge(connection, rules, row.subject, row.active_key).await? {
            return Ok(Lease::Taken(taken));
        }
        sqlx::query!(
            "/* lease.take */
            update conversations set active_key = $3 where tenant_id = $1 and conversation_id = $2",
            self.tenant.as_str(),
            self.conversation.as_str(),
            self.key,
        )
        .execute(connection)
        .await?;
        Ok(Lease::Free { head_seq: row.head_seq })
    }

    /// Reads the holder in a new statement, so that its record is at least as new as the
    /// conversation's row.
    async fn judge(
        &self,
        connection: &mut PgConnection,
        rules: &LivenessRules,
        subject: Option<String>,
        active: Option<Uuid>,
    ) -> Result<Option<Taken>, StoreError> {
        if subject.as_deref() != self.subject.map(Subject::as_str) {
            return Ok(Some(Taken::Hidden));
        }
        let active = active.filter(|&active| active != self.key);
        let holder = live_holder(connection, rules, self.tenant, active).await?;
        Ok(holder.map(Taken::Busy))
    }
}

/// The operation that holds a conversation, if it is alive.
pub(super) async fn live_holder(
    connection: &mut PgConnection,
    rules: &LivenessRules,
    tenant: &TenantId,
    active: Option<Uuid>,
) -> Result<Option<Holder>, StoreError> {
    let Some(key) = active else { return Ok(None) };
    let held = record::read(connection, tenant, key, false).await?;
    Ok(held.and_then(|row| row.record).and_then(|record| {
        let alive =
            record.state == State::InProgress && rules.judge(&record.liveness) == Liveness::Alive;
        alive.then_some(Holder { key, claimed_at: record.claimed_at, now: record.liveness.now })
    }))
}
