//! Commits of one statement: each writes all of its chat, or nothing and is left to a statement of its own.
//!
//! Record and conversation are locked first, and looked at under their locks, so that a commit writes only
//! where its fence stands and its lease is its own. A row that somebody holds is passed over, not waited
//! for: nothing here waits for a row that was there before.
//!
//! `LATERAL` with a lock is planned as what it is, a look at the key for each member; as a join the server
//! might read whole indexes where it takes the tables for small. What is updated cannot be `LATERAL`; there
//! `h.place between …`, which is always true, has the server expect one member, for which a look at the key is
//! the cheapest also where a table was counted while it was small. `|| ''` keeps it from the index of what is
//! in progress, which looks short and has an entry for each run that has just ended.
//!
//! What was locked is updated, so that both updates reach every row that is held. Where one did not, the whole
//! is undone and split, rather than that an effect stands without its record.

use std::sync::Arc;

use chrono::NaiveDate;
use rust_decimal::Decimal;
use uuid::Uuid;

use super::super::commit::{CallColumns, ChatCommit, CommitOutcome};
use super::super::{Store, StoreError, lost_connection};
use super::{Joint, LOCK_LIMIT, about, of_group};
use crate::clock::BoxFuture;

/// Beside its texts.
const FIXED_BYTES: usize = 1024;
/// Each of its calls, likewise.
const CALL_BYTES: usize = 256;

impl Joint for ChatCommit {
    type Outcome = CommitOutcome;
    type Same = ();
    const NAME: &'static str = "commit";

    fn about(&self) -> [Option<u64>; 2] {
        // Which conversation is in the record; while the record is this run's, so is the lease, and two
        // runs cannot hold it.
        [about((&self.at.tenant, self.at.key)), None]
    }

    fn bytes(&self) -> usize {
        let texts = [Some(&self.message), Some(&self.answer), Some(&self.event_payload)];
        let texts = texts.into_iter().chain([self.metadata.as_ref()]).flatten();
        let changed = self.calls.iter().filter_map(|call| call.changed.as_ref());
        FIXED_BYTES
            + CALL_BYTES * self.calls.len()
            + self.response.len()
            + texts.chain(changed).map(String::len).sum::<usize>()
    }

    fn together(
        store: Store,
        group: Arc<[Arc<Self>]>,
    ) -> BoxFuture<'static, Result<Vec<Option<Self::Outcome>>, StoreError>> {
        Box::pin(async move {
            let faults = store.faults.clone();
            store
                .database
                .run_once_only("commit.group", move |connection| {
                    let (group, faults) = (group.clone(), faults.clone());
                    Box::pin(async move {
                        lost_connection::before_commit(&faults, connection).await;
                        let outcomes = write_chats(connection, &group).await?;
                        lost_connection::after_commit(&faults, connection).await?;
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
        Box::pin(async move { store.commit_chat_alone(one).await })
    }
}

async fn write_chats(
    connection: &mut sqlx::PgConnection,
    group: &[Arc<ChatCommit>],
) -> Result<Vec<Option<CommitOutcome>>, StoreError> {
    let columns = Columns::of(group);
    let (of, calls) = (&columns.calls_of, CallColumns::of(columns.calls.iter().copied()));
    let places = sqlx::query_scalar!(
        r#"/* commit.group */
        with bound as materialized (select set_config('lock_timeout', $1, true) as lock_limit),
        asked as materialized (
            select n.* from bound, unnest($2::int[], $3::text[], $4::uuid[], $5::date[], $6::bigint[],
                $7::uuid[], $8::bytea[], $9::uuid[], $10::uuid[], $11::bigint[], $12::text[],
                $13::text[], $14::text[], $15::text[], $16::bigint[], $17::bigint[], $18::bigint[],
                $19::bigint[], $20::bigint[], $21::text[], $22::numeric[], $23::int[], $24::uuid[],
                $25::text[], $26::bigint[])
                as n (place, tenant_id, idempotency_key, day, fence, request_id, response, user_turn,
                    assistant_turn, based_on_seq, message, metadata, answer, model, input_tokens,
                    cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
                    usage_source, cost_usd, provider_calls, event_id, payload, price_id)
            where bound.lock_limit is not null),
        mine as materialized (
            select a.place, a.based_on_seq, r.* from asked a cross join lateral (
                select r.tenant_id, r.idempotency_key, r.day, r.operation_id, r.request_id,
                    r.conversation_id, r.endpoint, r.subject
                from request_records r
                where r.tenant_id = a.tenant_id and r.idempotency_key = a.idempotency_key
                    and r.day = a.day and r.state || '' = 'in_progress' and r.fence = a.fence
                    and r.request_id = a.request_id
                limit 1 for update of r skip locked) r),
        held as materialized (
            select m.*, c.head_seq from mine m cross join lateral (
                select c.head_seq + 2 as head_seq from conversations c
                where c.tenant_id = m.tenant_id and c.conversation_id = m.conversation_id
                    and c.active_key = m.idempotency_key and c.head_seq = m.based_on_seq
                limit 1 for update of c skip locked) c),
        ended as (
            update request_records r set state = 'committed', response_status = 200,
                response = a.response, turn_id = a.assistant_turn, completed_at = clock_timestamp()
            from held h join asked a using (place)
            where h.place between 0 and 2147483647
                and r.tenant_id = h.tenant_id and r.idempotency_key = h.idempotency_key and r.day = h.day
            returning 1),
        freed as (
            update conversations c set head_seq = h.head_seq, active_key = null
            from held h
            where h.place between 0 and 2147483647
                and c.tenant_id = h.tenant_id and c.conversation_id = h.conversation_id
            returning 1),
        turn as (
            insert into turns (tenant_id, conversation_id, seq, turn_id, role, content, based_on_seq,
                operation_id, request_id, metadata)
            select h.tenant_id, h.conversation_id, h.head_seq - 1, a.user_turn, 'user', a.message,
                a.based_on_seq, h.operation_id, h.request_id, a.metadata::jsonb
            from held h join asked a using (place)
            union all
            select h.tenant_id, h.conversation_id, h.head_seq, a.assistant_turn, 'assistant', a.answer,
                a.based_on_seq, h.operation_id, h.request_id, null
            from held h join asked a using (place)),
        receipt as (
            insert into usage_receipts (tenant_id, operation_id, request_id, idempotency_key, endpoint,
                subject, model, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens,
                reasoning_tokens, usage_source, cost_usd, provider_calls, event_id, record_day, price_id)
            select h.tenant_id, h.operation_id, h.request_id, h.idempotency_key, h.endpoint, h.subject,
                a.model, a.input_tokens, a.cache_read_tokens, a.cache_write_tokens, a.output_tokens,
                a.reasoning_tokens, a.usage_source, a.cost_usd, a.provider_calls, a.event_id, h.day,
                a.price_id
            from held h join asked a using (place)),
        calls as (
            insert into provider_calls (tenant_id, operation_id, request_id, call_no, counted,
                provider, model, route, status, failure_kind, changed, input_tokens,
                cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
                cost_usd, started_at, ended_at, waited_ms, price_id)
            select h.tenant_id, h.operation_id, h.request_id, n.call_no, n.counted, n.provider, n.model,
                n.route, n.status, n.failure_kind, n.changed, n.input_tokens, n.cache_read_tokens,
                n.cache_write_tokens, n.output_tokens, n.reasoning_tokens, n.cost_usd, n.started_at,
                n.ended_at, n.waited_ms, n.price_id
            from unnest($27::int[], $28::int[], $29::bool[], $30::text[], $31::text[], $32::text[],
                $33::int[], $34::text[], $35::text[], $36::bigint[], $37::bigint[], $38::bigint[],
                $39::bigint[], $40::bigint[], $41::numeric[], $42::timestamptz[], $43::timestamptz[],
                $44::bigint[], $45::bigint[])
                as n (place, call_no, counted, provider, model, route, status, failure_kind, changed,
                    input_tokens, cache_read_tokens, cache_write_tokens, output_tokens,
                    reasoning_tokens, cost_usd, started_at, ended_at, waited_ms, price_id)
            join held h using (place)),
        event as (
            insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
            select a.event_id, h.tenant_id, 'conversation', h.conversation_id, 'call_completed',
                a.payload::jsonb
            from held h join asked a using (place))
        select case when (select count(*) from ended) = (select count(*) from held)
                and (select count(*) from freed) = (select count(*) from held)
            then place else lease_lost_v1() end as "place!" from held"#,
        LOCK_LIMIT,
        &columns.place,
        &columns.tenant as &[&str],
        &columns.key,
        &columns.day,
        &columns.fence,
        &columns.request,
        &columns.response as &[&[u8]],
        &columns.user_turn,
        &columns.assistant_turn,
        &columns.based_on_seq,
        &columns.message as &[&str],
        &columns.metadata as &[Option<&str>],
        &columns.answer as &[&str],
        &columns.model as &[&str],
        &columns.input as &[Option<i64>],
        &columns.cache_read as &[Option<i64>],
        &columns.cache_write as &[Option<i64>],
        &columns.output as &[Option<i64>],
        &columns.reasoning as &[Option<i64>],
        &columns.usage_source as &[&str],
        &columns.cost as &[Option<Decimal>],
        &columns.counted,
        &columns.event,
        &columns.payload as &[&str],
        &columns.price as &[Option<i64>],
        of,
        &calls.call_no,
        &calls.counted,
        &calls.provider,
        &calls.model,
        &calls.route,
        &calls.status as &[Option<i32>],
        &calls.failure_kind as &[Option<String>],
        &calls.changed as &[Option<String>],
        &calls.input as &[Option<i64>],
        &calls.cache_read as &[Option<i64>],
        &calls.cache_write as &[Option<i64>],
        &calls.output as &[Option<i64>],
        &calls.reasoning as &[Option<i64>],
        &calls.cost as &[Option<Decimal>],
        &calls.started_at,
        &calls.ended_at,
        &calls.waited_ms,
        &calls.price as &[Option<i64>],
    )
    .fetch_all(connection)
    .await
    .map_err(of_group)?;
    let mut outcomes = vec![None; group.len()];
    for place in places {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if let Some(outcome) = outcomes.get_mut(place) {
            *outcome = Some(CommitOutcome::Committed);
        }
    }
    Ok(outcomes)
}

/// The commits, column by column.
#[derive(Default)]
struct Columns<'a> {
    place: Vec<i32>,
    tenant: Vec<&'a str>,
    key: Vec<Uuid>,
    day: Vec<NaiveDate>,
    fence: Vec<i64>,
    request: Vec<Uuid>,
    response: Vec<&'a [u8]>,
    user_turn: Vec<Uuid>,
    assistant_turn: Vec<Uuid>,
    based_on_seq: Vec<i64>,
    message: Vec<&'a str>,
    metadata: Vec<Option<&'a str>>,
    answer: Vec<&'a str>,
    model: Vec<&'a str>,
    input: Vec<Option<i64>>,
    cache_read: Vec<Option<i64>>,
    cache_write: Vec<Option<i64>>,
    output: Vec<Option<i64>>,
    reasoning: Vec<Option<i64>>,
    usage_source: Vec<&'a str>,
    cost: Vec<Option<Decimal>>,
    counted: Vec<i32>,
    event: Vec<Uuid>,
    payload: Vec<&'a str>,
    price: Vec<Option<i64>>,
    /// The calls of all, and the place of the commit that each belongs to.
    calls: Vec<&'a super::super::commit::CallRow>,
    calls_of: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn of(group: &'a [Arc<ChatCommit>]) -> Self {
        let mut columns = Self::default();
        for (place, commit) in (0..).zip(group) {
            columns.place.push(place);
            columns.tenant.push(commit.at.tenant.as_str());
            columns.key.push(commit.at.key);
            columns.day.push(commit.at.day);
            columns.fence.push(commit.guard.fence.0);
            columns.request.push(commit.guard.request_id.0);
            columns.response.push(&commit.response);
            columns.user_turn.push(commit.user_turn.0);
            columns.assistant_turn.push(commit.assistant_turn.0);
            columns.based_on_seq.push(commit.based_on_seq);
            columns.message.push(&commit.message);
            columns.metadata.push(commit.metadata.as_deref());
            columns.answer.push(&commit.answer);
            columns.model.push(&commit.model);
            columns.input.push(commit.usage.input_tokens);
            columns.cache_read.push(commit.usage.cache_read_tokens);
            columns.cache_write.push(commit.usage.cache_write_tokens);
            columns.output.push(commit.usage.output_tokens);
            columns.reasoning.push(commit.usage.reasoning_tokens);
            columns.usage_source.push(commit.usage_source.as_str());
            columns.cost.push(commit.cost);
            columns.counted.push(commit.counted_calls());
            columns.event.push(commit.event.0);
            columns.payload.push(&commit.event_payload);
            columns.price.push(commit.price.map(|price| price.0));
            columns.calls_of.extend(commit.calls.iter().map(|_| place));
            columns.calls.extend(&commit.calls);
        }
        columns
    }
}
