//! The lease of a conversation: which operation may build on its head.
//!
//! `conversations.active_key` is a hint. The lease is live if and only if that key's record is in
//! progress and live, so a leftover is stolen by the next claim and nothing can stay for ever.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::StoreError;
use super::record;
use crate::domain::ids::{ConversationId, Subject, TenantId};
use crate::domain::liveness::{Liveness, LivenessRules};
use crate::domain::record::{RecordKey, State};

/// Another operation that runs in the conversation.
#[derive(Debug, Clone, Copy)]
pub struct Holder {
    pub key: Uuid,
    pub claimed_at: DateTime<Utc>,
    pub now: DateTime<Utc>,
}

/// Whether a conversation can be had.
pub(super) enum Lease {
    Free { head_seq: i64 },
    Busy(Holder),
    Hidden,
}

/// Locks the conversation, making it where it is new, and takes its lease for `key` unless a living
/// operation holds it. Nothing is written where the answer is not `Free`.
pub(super) async fn lock_conversation(
    connection: &mut PgConnection,
    rules: &LivenessRules,
    tenant: &TenantId,
    conversation: &ConversationId,
    subject: Option<&Subject>,
    key: Uuid,
) -> Result<Lease, StoreError> {
    sqlx::query!(
        "/* claim.make_conversation */
        insert into conversations (tenant_id, conversation_id, subject) values ($1, $2, $3)
        on conflict do nothing",
        tenant.as_str(),
        conversation.as_str(),
        subject.map(Subject::as_str),
    )
    .execute(&mut *connection)
    .await?;
    let row = sqlx::query!(
        "/* claim.lock_conversation */
        select subject, head_seq, active_key from conversations
        where tenant_id = $1 and conversation_id = $2 for update",
        tenant.as_str(),
        conversation.as_str(),
    )
    .fetch_optional(&mut *connection)
    .await?;
    // Deleted between the two statements: as if somebody else had it; the client asks again.
    let Some(row) = row else {
        return Err(StoreError::Conflict("the conversation was deleted meanwhile".into()));
    };
    if row.subject.as_deref() != subject.map(Subject::as_str) {
        return Ok(Lease::Hidden);
    }
    if let Some(holder) = live_holder(connection, rules, tenant, row.active_key, Some(key)).await? {
        return Ok(Lease::Busy(holder));
    }
    sqlx::query!(
        "/* claim.take_lease */
        update conversations set active_key = $3 where tenant_id = $1 and conversation_id = $2",
        tenant.as_str(),
        conversation.as_str(),
        key,
    )
    .execute(connection)
    .await?;
    Ok(Lease::Free { head_seq: row.head_seq })
}

/// The operation that holds a conversation, if it is alive and not `own`. Reads in a new
/// statement, so that the holder's record is at least as new as its conversation's row.
pub(super) async fn live_holder(
    connection: &mut PgConnection,
    rules: &LivenessRules,
    tenant: &TenantId,
    active: Option<Uuid>,
    own: Option<Uuid>,
) -> Result<Option<Holder>, StoreError> {
    let Some(active) = active.filter(|&active| Some(active) != own) else { return Ok(None) };
    let held = record::read(connection, tenant, active, false).await?.and_then(|row| row.record);
    Ok(held.and_then(|record| {
        let alive =
            record.state == State::InProgress && rules.judge(&record.liveness) == Liveness::Alive;
        alive.then_some(Holder {
            key: active,
            claimed_at: record.claimed_at,
            now: record.liveness.now,
        })
    }))
}

/// Clears the lease where it is still this operation's.
pub(super) async fn free_conversation(
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
