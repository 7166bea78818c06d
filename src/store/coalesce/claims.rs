//! Claims of one statement: each wins its key and its conversation, or is left to a statement of its own.
//!
//! Keys are inserted in their order, conversations after all keys, in theirs, so two groups never wait for
//! each other in a circle. A conversation that somebody holds is passed over, not waited for.
//!
//! `wanted` is sorted for that: a CTE is filled only as far as it is read, so that without the sort the
//! first conversation would be held before the second key is there, by a statement that may yet have to
//! wait for it. The sort needs all keys before it gives the first.

use std::sync::Arc;

use uuid::Uuid;

use super::super::claim::{Claim, FirstSight, NewClaim};
use super::super::first_claim::REFUSED_AFTER;
use super::super::{Store, StoreError};
use super::{Joint, LOCK_LIMIT, about, of_group};
use crate::clock::BoxFuture;
use crate::domain::ids::{ConversationId, Subject, TenantId};

/// Beside its texts.
const FIXED_BYTES: usize = 256;

impl Joint for NewClaim {
    type Outcome = FirstSight;
    type Same = (TenantId, Uuid);
    const NAME: &'static str = "claim";

    /// A key is won by one, and the others are told of its record.
    fn same(&self) -> Option<Self::Same> {
        Some((self.tenant.clone(), self.key.id))
    }

    fn about(&self) -> [Option<u64>; 2] {
        // Of a key there is one at most: the others follow it.
        [self.conversation_id.as_ref().and_then(|id| about((&self.tenant, id))), None]
    }

    fn bytes(&self) -> usize {
        let texts = [
            Some(self.tenant.as_str()),
            self.key.text.as_deref(),
            self.subject.as_ref().map(Subject::as_str),
            self.conversation_id.as_ref().map(ConversationId::as_str),
        ];
        FIXED_BYTES + texts.into_iter().flatten().map(str::len).sum::<usize>()
    }

    fn together(
        store: Store,
        group: Arc<[Arc<Self>]>,
    ) -> BoxFuture<'static, Result<Vec<Option<Self::Outcome>>, StoreError>> {
        Box::pin(async move {
            let (node, offset) = (store.node(), store.clock_offset);
            store
                .database
                .run_once_only("claim.group", move |connection| {
                    let group = group.clone();
                    Box::pin(async move {
                        let columns = Columns::of(&group);
                        let rows = sqlx::query!(
                            r#"/* claim.group */
                            with setting as materialized (
                                select set_config('synchronous_commit', 'off', true) as async_commit,
                                    set_config('lock_timeout', $13, true) as lock_limit,
                                    ((clock_timestamp() + $12::interval) at time zone 'UTC')::date as day),
                            asked as materialized (
                                select n.*, setting.day from setting, unnest($1::int[], $2::text[],
                                    $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::text[],
                                    $8::text[], $9::text[], $10::bytea[], $11::uuid[])
                                    as n (place, tenant_id, idempotency_key, conversation_id, subject,
                                        operation_id, key_source, key_text, endpoint, request_hash,
                                        request_id)
                                where setting.async_commit is not null and setting.lock_limit is not null),
                            won_key as (
                                insert into request_keys (tenant_id, idempotency_key, day)
                                select tenant_id, idempotency_key, day from asked
                                order by tenant_id, idempotency_key
                                on conflict do nothing returning tenant_id, idempotency_key),
                            wanted as materialized (
                                select asked.* from won_key join asked using (tenant_id, idempotency_key)
                                order by asked.place),
                            free as materialized (
                                select w.place, w.idempotency_key, c.* from wanted w cross join lateral (
                                    select c.tenant_id, c.conversation_id, c.head_seq
                                    from conversations c
                                    where c.tenant_id = w.tenant_id
                                        and c.conversation_id = w.conversation_id
                                        and c.active_key is null
                                        and c.subject is not distinct from w.subject
                                    limit 1 for update of c skip locked) c),
                            taken as (
                                update conversations c set active_key = free.idempotency_key
                                from free
                                where c.tenant_id = free.tenant_id
                                    and c.conversation_id = free.conversation_id
                                returning free.place, c.head_seq),
                            made as (
                                insert into conversations (tenant_id, conversation_id, subject, active_key)
                                select w.tenant_id, w.conversation_id, w.subject, w.idempotency_key
                                from wanted w
                                where not exists (select from conversations c
                                    where c.tenant_id = w.tenant_id
                                        and c.conversation_id = w.conversation_id)
                                order by w.tenant_id, w.conversation_id
                                on conflict do nothing returning tenant_id, conversation_id, head_seq),
                            held as (
                                select place, head_seq from taken
                                union all
                                select w.place, made.head_seq from made
                                join wanted w using (tenant_id, conversation_id)),
                            won as (
                                insert into request_records (tenant_id, idempotency_key, day,
                                    operation_id, key_source, key_text, endpoint, subject,
                                    conversation_id, request_hash, owner, request_id)
                                select w.tenant_id, w.idempotency_key, w.day, w.operation_id,
                                    w.key_source, w.key_text, w.endpoint, w.subject, w.conversation_id,
                                    w.request_hash, $14, w.request_id
                                from wanted w join held using (place)
                                returning tenant_id, idempotency_key, day, claimed_at)
                            select w.place as "place!", won.day as "day!", won.claimed_at as "claimed_at!",
                                held.head_seq as "head_seq!", r.failure_kind as "refused_kind?",
                                r.model as "refused_by?"
                            from won join wanted w using (tenant_id, idempotency_key)
                            join held using (place)
                            left join refused_inputs r on r.tenant_id = w.tenant_id
                                and r.endpoint = w.endpoint and r.request_hash = w.request_hash
                                and r.failures >= $15 and r.until > clock_timestamp()"#,
                            &columns.place,
                            &columns.tenant as &[&str],
                            &columns.key,
                            &columns.conversation as &[Option<&str>],
                            &columns.subject as &[Option<&str>],
                            &columns.operation,
                            &columns.key_source as &[&str],
                            &columns.key_text as &[Option<&str>],
                            &columns.endpoint as &[&str],
                            &columns.hash as &[&[u8]],
                            &columns.request,
                            offset,
                            LOCK_LIMIT,
                            i64::from(node.0),
                            REFUSED_AFTER,
                        )
                        .fetch_all(connection)
                        .await
                        .map_err(of_group)?;
                        let mut outcomes = vec![None; group.len()];
                        for row in rows {
                            let place = usize::try_from(row.place).unwrap_or(usize::MAX);
                            let Some((outcome, new)) = outcomes.get_mut(place).zip(group.get(place))
                            else {
                                continue;
                            };
                            *outcome = Some(FirstSight::Won(Claim {
                                refused: row.refused_kind.zip(row.refused_by),
                                ..new.won(row.day, row.claimed_at, row.head_seq)
                            }));
                        }
                        Ok(outcomes)
                    })
                })
                .await
        })
    }

    fn alone(
        store: Store,
        one: Arc<Self>,
    ) -> BoxFuture<'static, Result<Self::Outcome, StoreError>> {
        Box::pin(async move { store.claim_at_once(one).await })
    }

    fn behind(
        store: Store,
        first: Arc<Self>,
    ) -> BoxFuture<'static, Result<Self::Outcome, StoreError>> {
        Box::pin(async move { store.what_stands(&first).await })
    }
}

/// The claims, column by column.
#[derive(Default)]
struct Columns<'a> {
    place: Vec<i32>,
    tenant: Vec<&'a str>,
    key: Vec<Uuid>,
    conversation: Vec<Option<&'a str>>,
    subject: Vec<Option<&'a str>>,
    operation: Vec<Uuid>,
    key_source: Vec<&'a str>,
    key_text: Vec<Option<&'a str>>,
    endpoint: Vec<&'a str>,
    hash: Vec<&'a [u8]>,
    request: Vec<Uuid>,
}

impl<'a> Columns<'a> {
    fn of(group: &'a [Arc<NewClaim>]) -> Self {
        let mut columns = Self::default();
        for (place, new) in (0..).zip(group) {
            columns.place.push(place);
            columns.tenant.push(new.tenant.as_str());
            columns.key.push(new.key.id);
            columns.conversation.push(new.conversation_id.as_ref().map(ConversationId::as_str));
            columns.subject.push(new.subject.as_ref().map(Subject::as_str));
            columns.operation.push(new.operation_id.0);
            columns.key_source.push(new.key.source.as_str());
            columns.key_text.push(new.key.text.as_deref());
            columns.endpoint.push(new.endpoint);
            columns.hash.push(&new.hash.0);
            columns.request.push(new.request_id.0);
        }
        columns
    }
}
