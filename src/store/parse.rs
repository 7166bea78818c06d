//! What a parse writes beside what every operation writes: the chunks that are done, and its result in
//! the one transaction.
//!
//! A chunk is kept together with the call that gave it, under the run's guard, as soon as it is there:
//! whoever takes the operation over finds both. The commit counts those calls, whichever run made them.

use std::sync::Arc;
use std::time::Duration;

use rust_decimal::Decimal;
use uuid::Uuid;

use super::commit::{CallColumns, CallRow, CommitOutcome};
use super::error::StoreError;
use super::lost_connection;
use super::{Store, interval};
use crate::domain::ids::{EventId, OperationId, RequestId, TenantId};
use crate::domain::record::{Guard, RecordKey};
use crate::domain::usage::{PriceId, Usage, UsageSource};

/// A chunk that is done.
#[derive(Debug, Clone)]
pub struct DoneChunk {
    /// Everything that its answer depends on, hashed.
    pub asked: [u8; 32],
    /// JSON.
    pub value: String,
    /// The call that gave it; it counts once the operation is committed.
    pub call: CallRow,
}

/// A chunk that an earlier run finished.
#[derive(Debug, Clone)]
pub struct KeptChunk {
    pub asked: [u8; 32],
    pub value: String,
    pub call: PaidCall,
}

/// A call of an earlier run whose output goes into the answer.
#[derive(Debug, Clone)]
pub struct PaidCall {
    pub request_id: RequestId,
    pub call_no: i32,
    pub usage: Usage,
    pub cost: Option<Decimal>,
    pub price: Option<PriceId>,
}

/// What a committed parse leaves behind.
#[derive(Debug, Clone)]
pub struct ParseCommit {
    pub at: RecordKey,
    pub guard: Guard,
    /// The bytes that every replay returns.
    pub response: Vec<u8>,
    pub capture: Uuid,
    pub profile: String,
    /// JSON.
    pub result: String,
    /// A JSON array.
    pub gaps: String,
    /// A JSON object as text.
    pub metadata: Option<String>,
    pub model: String,
    /// The sum over all counted calls, those of earlier runs among them.
    pub usage: Usage,
    pub usage_source: UsageSource,
    pub cost: Option<Decimal>,
    /// What the cost was counted with; `None` also where that were several prices.
    pub price: Option<PriceId>,
    pub event: EventId,
    /// A JSON object as text.
    pub event_payload: String,
    /// Those of this run.
    pub calls: Vec<CallRow>,
    /// Those of earlier runs.
    pub paid: Vec<PaidCall>,
}

impl Store {
    /// Keeps a chunk and its call, while the run holds its claim. `Fenced`: it does no longer.
    pub async fn keep_chunk(
        &self,
        at: RecordKey,
        guard: Guard,
        chunk: DoneChunk,
    ) -> Result<CommitOutcome, StoreError> {
        let chunk = Arc::new(chunk);
        self.database
            .run("parse.keep_chunk", move |connection| {
                let (at, chunk) = (at.clone(), chunk.clone());
                Box::pin(async move {
                    let calls = CallColumns::of(std::slice::from_ref(&chunk.call));
                    let kept = sqlx::query_scalar!(
                        r#"/* parse.keep_chunk */
                        with mine as (
                            select tenant_id, operation_id, request_id from request_records
                            where tenant_id = $1 and idempotency_key = $2 and day = $3
                                and state = 'in_progress' and fence = $4 and request_id = $5
                            for share),
                        call as (
                            insert into provider_calls (tenant_id, operation_id, request_id, call_no, counted,
                                provider, model, route, status, failure_kind, changed, input_tokens,
                                cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
                                cost_usd, started_at, ended_at, waited_ms, price_id)
                            select mine.tenant_id, mine.operation_id, mine.request_id, n.call_no, false,
                                n.provider, n.model, n.route, n.status, null, n.changed, n.input, n.cache_read,
                                n.cache_write, n.output, n.reasoning, n.cost, n.started_at, n.ended_at,
                                n.waited_ms, n.price
                            from mine, unnest($6::int[], $7::text[], $8::text[], $9::text[], $10::int[],
                                $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
                                $16::bigint[], $17::numeric[], $18::timestamptz[], $19::timestamptz[],
                                $20::bigint[], $23::bigint[]) as n (call_no, provider, model, route, status, changed, input,
                                cache_read, cache_write, output, reasoning, cost, started_at, ended_at,
                                waited_ms, price)
                            on conflict do nothing returning call_no),
                        chunk as (
                            insert into parse_chunks (tenant_id, operation_id, asked, request_id, call_no, value)
                            select mine.tenant_id, mine.operation_id, $21::bytea, mine.request_id,
                                ($6::int[])[1], $22 from mine
                            on conflict do nothing)
                        select count(*) as "kept!" from mine"#,
                        at.tenant.as_str(),
                        at.key,
                        at.day,
                        guard.fence.0,
                        guard.request_id.0,
                        &calls.call_no,
                        &calls.provider,
                        &calls.model,
                        &calls.route,
                        &calls.status as &[Option<i32>],
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
                        &chunk.asked[..],
                        &chunk.value,
                        &calls.price as &[Option<i64>],
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(if kept == 1 { CommitOutcome::Committed } else { CommitOutcome::Fenced })
                })
            })
            .await
    }

    /// The chunks of an operation that earlier runs finished.
    pub async fn kept_chunks(
        &self,
        tenant: TenantId,
        operation: OperationId,
    ) -> Result<Vec<KeptChunk>, StoreError> {
        self.database
            .run("parse.kept_chunks", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let rows = sqlx::query!(
                        "/* parse.kept_chunks */
                        select k.asked, k.value, k.request_id, k.call_no, c.input_tokens,
                            c.cache_read_tokens, c.cache_write_tokens, c.output_tokens,
                            c.reasoning_tokens, c.cost_usd, c.price_id
                        from parse_chunks k join provider_calls c on c.tenant_id = k.tenant_id
                            and c.operation_id = k.operation_id and c.request_id = k.request_id
                            and c.call_no = k.call_no
                        where k.tenant_id = $1 and k.operation_id = $2",
                        tenant.as_str(),
                        operation.0,
                    )
                    .fetch_all(connection)
                    .await?;
                    rows.into_iter()
                        .map(|row| {
                            let asked = row.asked.try_into().map_err(|_| StoreError::Corrupt {
                                table: "parse_chunks",
                                column: "asked",
                                key: operation.to_string(),
                                problem: "not 32 bytes".to_owned(),
                            })?;
                            let usage = Usage {
                                input_tokens: row.input_tokens,
                                cache_read_tokens: row.cache_read_tokens,
                                cache_write_tokens: row.cache_write_tokens,
                                output_tokens: row.output_tokens,
                                reasoning_tokens: row.reasoning_tokens,
                            };
                            let call = PaidCall {
                                request_id: RequestId(row.request_id),
                                call_no: row.call_no,
                                usage,
                                cost: row.cost_usd,
                                price: row.price_id.map(PriceId),
                            };
                            Ok(KeptChunk { asked, value: row.value, call })
                        })
                        .collect()
                })
            })
            .await
    }

    /// Deletes a batch of chunks that were kept this long ago: no run can want them any more. Returns how
    /// many; fewer than asked for say that these were the last.
    pub async fn forget_chunks(&self, older_than: Duration, batch: i64) -> Result<u64, StoreError> {
        let older_than = interval(older_than);
        self.database
            .run("parse.forget_chunks", move |connection| {
                Box::pin(async move {
                    let done = sqlx::query!(
                        "/* parse.forget_chunks */
                        delete from parse_chunks where ctid = any (array(
                            select ctid from parse_chunks
                            where created_at < clock_timestamp() - $1::interval
                            limit $2 for update skip locked))",
                        older_than,
                        batch,
                    )
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await
    }

    /// Writes a parse's outcome. Errors: `Unavailable` where it is unknown whether the commit took
    /// effect (`trace_commit` tells).
    pub async fn commit_parse(
        &self,
        commit: Arc<ParseCommit>,
    ) -> Result<CommitOutcome, StoreError> {
        let faults = self.faults.clone();
        self.database
            .run("commit", move |connection| {
                let (commit, faults) = (commit.clone(), faults.clone());
                Box::pin(async move {
                    lost_connection::before_commit(&faults, connection).await;
                    let outcome = write_parse(connection, &commit).await?;
                    lost_connection::after_commit(&faults, connection).await?;
                    Ok(outcome)
                })
            })
            .await
    }
}

/// One statement, guarded like the one of a chat. A call that a chunk was kept with is there already,
/// and counts from now on.
async fn write_parse(
    connection: &mut sqlx::PgConnection,
    commit: &ParseCommit,
) -> Result<CommitOutcome, StoreError> {
    let calls = CallColumns::of(&commit.calls);
    let counted = commit.calls.iter().filter(|call| call.counted).count() + commit.paid.len();
    let (paid_by, paid_no): (Vec<Uuid>, Vec<i32>) =
        commit.paid.iter().map(|call| (call.request_id.0, call.call_no)).unzip();
    let written = sqlx::query_scalar!(
        r#"/* commit.parse */
        with mine as (
            update request_records set state = 'committed', response_status = 200, response = $6,
                completed_at = clock_timestamp()
            where tenant_id = $1 and idempotency_key = $2 and day = $3
                and state = 'in_progress' and fence = $4 and request_id = $5
            returning tenant_id, idempotency_key, day, operation_id, request_id, endpoint, subject),
        result as (
            insert into parse_results (tenant_id, operation_id, request_id, capture_id, profile, result,
                gaps, metadata)
            select tenant_id, operation_id, request_id, $7::uuid, $8, $9::text::jsonb, $10::text::jsonb,
                $41::text::jsonb
            from mine),
        receipt as (
            insert into usage_receipts (tenant_id, operation_id, request_id, idempotency_key, endpoint,
                subject, model, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens,
                reasoning_tokens, usage_source, cost_usd, provider_calls, event_id, record_day, price_id)
            select tenant_id, operation_id, request_id, idempotency_key, endpoint, subject, $11, $12,
                $13, $14, $15, $16, $17, $18, $19, $20::uuid, day, $43 from mine),
        paid as (
            update provider_calls c set counted = true
            from mine, unnest($22::uuid[], $23::int[]) as p (request_id, call_no)
            where c.tenant_id = mine.tenant_id and c.operation_id = mine.operation_id
                and c.request_id = p.request_id and c.call_no = p.call_no),
        calls as (
            insert into provider_calls as c (tenant_id, operation_id, request_id, call_no, counted,
                provider, model, route, status, failure_kind, changed, input_tokens,
                cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
                cost_usd, started_at, ended_at, waited_ms, price_id)
            select mine.tenant_id, mine.operation_id, mine.request_id, n.* from mine, unnest($24::int[],
                $25::bool[], $26::text[], $27::text[], $28::text[], $29::int[], $30::text[],
                $31::text[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[],
                $36::bigint[], $37::numeric[], $38::timestamptz[], $39::timestamptz[],
                $40::bigint[], $42::bigint[]) as n
            on conflict (tenant_id, operation_id, request_id, call_no)
                do update set counted = excluded.counted),
        event as (
            insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
            select $20::uuid, tenant_id, 'parse', operation_id::text, 'call_completed',
                $21::text::jsonb from mine),
        done as (
            delete from parse_chunks k using mine
            where k.tenant_id = mine.tenant_id and k.operation_id = mine.operation_id)
        select count(*) as "written!" from mine"#,
        commit.at.tenant.as_str(),
        commit.at.key,
        commit.at.day,
        commit.guard.fence.0,
        commit.guard.request_id.0,
        &commit.response,
        commit.capture,
        &commit.profile,
        &commit.result,
        &commit.gaps,
        &commit.model,
        commit.usage.input_tokens,
        commit.usage.cache_read_tokens,
        commit.usage.cache_write_tokens,
        commit.usage.output_tokens,
        commit.usage.reasoning_tokens,
        commit.usage_source.as_str(),
        commit.cost,
        i32::try_from(counted).unwrap_or(i32::MAX),
        commit.event.0,
        &commit.event_payload,
        &paid_by,
        &paid_no,
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
        commit.metadata.as_deref(),
        &calls.price as &[Option<i64>],
        commit.price.map(|price| price.0),
    )
    .fetch_one(connection)
    .await?;
    Ok(if written == 1 { CommitOutcome::Committed } else { CommitOutcome::Fenced })
}
