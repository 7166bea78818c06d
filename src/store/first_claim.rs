//! The winner's one statement: a key that is new, and a conversation that is free, are had in one round
//! trip.

use std::sync::Arc;

use super::claim::{Claim, FirstSight, NewClaim};
use super::error::StoreError;
use super::{Store, record};
use crate::domain::ids::{ConversationId, Subject};

/// Keys under which an input fails before it is answered from memory.
pub(super) const REFUSED_AFTER: i32 = 2;

impl Store {
    /// A claim by itself.
    pub(super) async fn claim_at_once(&self, new: Arc<NewClaim>) -> Result<FirstSight, StoreError> {
        let won = match new.conversation_id.clone() {
            Some(conversation) => self.claim_new(new, conversation).await?,
            None => self.claim_alone(new).await?,
        };
        Ok(won.map_or(FirstSight::NotFree, FirstSight::Won))
    }

    /// What stands under the key of a claim, which may be nothing.
    pub(super) async fn what_stands(&self, new: &NewClaim) -> Result<FirstSight, StoreError> {
        let (tenant, key) = (new.tenant.clone(), new.key.id);
        let standing = self
            .database
            .run("claim.read", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move { record::read(connection, &tenant, key, true).await })
            })
            .await?;
        let record = standing.and_then(|row| row.record).map(Box::new);
        Ok(record.map_or(FirstSight::NotFree, FirstSight::Stands))
    }

    /// The winner's one statement. `None`: the key or the conversation is not free at first sight.
    async fn claim_new(
        &self,
        new: Arc<NewClaim>,
        conversation: ConversationId,
    ) -> Result<Option<Claim>, StoreError> {
        let (node, offset) = (self.node(), self.clock_offset);
        self.database
            .run("claim.new", move |connection| {
                let (new, conversation) = (new.clone(), conversation.clone());
                Box::pin(async move {
                    let row = sqlx::query!(
                        r#"/* claim.new */
                        with setting as (
                            select set_config('synchronous_commit', 'off', true) as async_commit,
                                ((clock_timestamp() + $12::interval) at time zone 'UTC')::date as day),
                        won_key as (
                            insert into request_keys (tenant_id, idempotency_key, day)
                            select $1, $2, day from setting where async_commit is not null
                            on conflict do nothing returning day),
                        held as (
                            insert into conversations as c (tenant_id, conversation_id, subject, active_key)
                            select $1, $3, $4, $2 from won_key
                            on conflict (tenant_id, conversation_id)
                                do update set active_key = excluded.active_key
                                where c.active_key is null and c.subject is not distinct from excluded.subject
                            returning head_seq),
                        won as (
                            insert into request_records (tenant_id, idempotency_key, day, operation_id,
                                key_source, key_text, endpoint, subject, conversation_id, request_hash,
                                owner, request_id)
                            select $1, $2, won_key.day, $5, $6, $7, $8, $4, $3, $9, $10, $11
                            from held, won_key
                            returning day, claimed_at)
                        select won.day as "day!", won.claimed_at as "claimed_at!", held.head_seq as "head_seq!",
                            r.failure_kind as "refused_kind?", r.model as "refused_by?"
                        from won cross join held left join refused_inputs r on r.tenant_id = $1
                            and r.endpoint = $8 and r.request_hash = $9 and r.failures >= $13
                            and r.until > clock_timestamp()"#,
                        new.tenant.as_str(),
                        new.key.id,
                        conversation.as_str(),
                        new.subject.as_ref().map(Subject::as_str),
                        new.operation_id.0,
                        new.key.source.as_str(),
                        new.key.text.as_deref(),
                        new.endpoint,
                        &new.hash.0[..],
                        i64::from(node.0),
                        new.request_id.0,
                        offset,
                        REFUSED_AFTER,
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(row.map(|row| Claim {
                        refused: row.refused_kind.zip(row.refused_by),
                        ..new.won(row.day, row.claimed_at, row.head_seq)
                    }))
                })
            })
            .await
    }

    /// The same for an operation that runs in no conversation. `None`: the key is not free.
    async fn claim_alone(&self, new: Arc<NewClaim>) -> Result<Option<Claim>, StoreError> {
        let (node, offset) = (self.node(), self.clock_offset);
        self.database
            .run("claim.alone", move |connection| {
                let new = new.clone();
                Box::pin(async move {
                    let row = sqlx::query!(
                        r#"/* claim.alone */
                        with setting as (
                            select set_config('synchronous_commit', 'off', true) as async_commit,
                                ((clock_timestamp() + $10::interval) at time zone 'UTC')::date as day),
                        won_key as (
                            insert into request_keys (tenant_id, idempotency_key, day)
                            select $1, $2, day from setting where async_commit is not null
                            on conflict do nothing returning day),
                        won as (
                            insert into request_records (tenant_id, idempotency_key, day, operation_id,
                                key_source, key_text, endpoint, subject, request_hash, owner, request_id)
                            select $1, $2, won_key.day, $3, $4, $5, $6, $7, $8, $9, $11 from won_key
                            returning day, claimed_at)
                        select won.day as "day!", won.claimed_at as "claimed_at!",
                            r.failure_kind as "refused_kind?", r.model as "refused_by?"
                        from won left join refused_inputs r on r.tenant_id = $1
                            and r.endpoint = $6 and r.request_hash = $8 and r.failures >= $12
                            and r.until > clock_timestamp()"#,
                        new.tenant.as_str(),
                        new.key.id,
                        new.operation_id.0,
                        new.key.source.as_str(),
                        new.key.text.as_deref(),
                        new.endpoint,
                        new.subject.as_ref().map(Subject::as_str),
                        &new.hash.0[..],
                        i64::from(node.0),
                        offset,
                        new.request_id.0,
                        REFUSED_AFTER,
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(row.map(|row| Claim {
                        refused: row.refused_kind.zip(row.refused_by),
                        ..new.won(row.day, row.claimed_at, 0)
                    }))
                })
            })
            .await
    }
}
