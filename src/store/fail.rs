//! The other end of a run: a failure, passing or final, with the calls that were paid for.

use std::sync::Arc;

use rust_decimal::Decimal;
use sqlx::postgres::types::PgInterval;

use super::Store;
use super::commit::{CallColumns, CallRow, CommitOutcome};
use super::error::StoreError;
use crate::domain::ids::OperationId;
use crate::domain::record::{Guard, RecordKey, StoredAnswer};

/// How a run failed.
#[derive(Debug, Clone)]
pub struct Failure {
    pub at: RecordKey,
    pub guard: Guard,
    pub operation_id: OperationId,
    pub kind: &'static str,
    /// A final failure is stored and replayed; a passing one leaves nothing to replay.
    pub answer: Option<StoredAnswer>,
    /// Whether the provider said that the account is out of credit.
    pub quota_hit: bool,
    /// The model that refused the input for a reason of the input's own; such an input is remembered.
    pub refused_by: Option<String>,
    pub calls: Vec<CallRow>,
}

/// How long a refused input is answered from memory.
const REFUSED_FOR: PgInterval = PgInterval { months: 0, days: 1, microseconds: 0 };

impl Store {
    /// Ends a run as failed, frees its conversation and keeps its calls, in one statement. The calls
    /// are kept also where the run was fenced off: they were paid for all the same.
    pub async fn fail(&self, failure: Failure) -> Result<CommitOutcome, StoreError> {
        let calls = CallColumns::of(&failure.calls);
        let failure = Arc::new((failure, calls));
        self.database
            .run("fail", move |connection| {
                let failure = failure.clone();
                Box::pin(async move {
                    let (failure, calls) = &*failure;
                    let ended = sqlx::query_scalar!(
                        r#"/* fail */
                        with ended as (
                            update request_records set state = 'failed', failure_kind = $6,
                                failure_final = $7, response_status = $8, response = $9,
                                quota_hits = quota_hits + $10, completed_at = clock_timestamp()
                            where tenant_id = $1 and idempotency_key = $2 and day = $3
                                and state = 'in_progress' and fence = $4 and request_id = $5
                            returning tenant_id, idempotency_key, conversation_id, endpoint,
                                request_hash),
                        freed as (
                            update conversations c set active_key = null
                            where c.tenant_id = $1
                                and c.conversation_id = (select conversation_id from ended)
                                and c.active_key = $2),
                        calls as (
                            insert into provider_calls (tenant_id, operation_id, request_id, call_no, counted,
                                provider, model, route, status, failure_kind, changed, input_tokens,
                                cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
                                cost_usd, started_at, ended_at, waited_ms, price_id)
                            select $1, $11, $5, n.* from unnest($12::int[], $13::bool[], $14::text[],
                                $15::text[], $16::text[], $17::int[], $18::text[], $19::text[],
                                $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[],
                                $24::bigint[], $25::numeric[], $26::timestamptz[], $27::timestamptz[],
                                $28::bigint[], $31::bigint[]) as n
                            on conflict do nothing),
                        remembered as (
                            insert into refused_inputs as r (tenant_id, endpoint, request_hash, model,
                                failure_kind, until)
                            select tenant_id, endpoint, request_hash, $29, $6,
                                clock_timestamp() + $30::interval
                            from ended where $29::text is not null
                            on conflict (tenant_id, endpoint, request_hash) do update set
                                failures = case when r.model = excluded.model
                                        and r.until > clock_timestamp() then r.failures + 1 else 1 end,
                                model = excluded.model, failure_kind = excluded.failure_kind,
                                until = excluded.until)
                        select count(*) as "ended!" from ended"#,
                        failure.at.tenant.as_str(),
                        failure.at.key,
                        failure.at.day,
                        failure.guard.fence.0,
                        failure.guard.request_id.0,
                        failure.kind,
                        failure.answer.is_some(),
                        failure.answer.as_ref().map(|answer| i32::from(answer.status)),
                        failure.answer.as_ref().map(|answer| &answer.body[..]),
                        i32::from(failure.quota_hit),
                        failure.operation_id.0,
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
                        failure.refused_by.as_deref(),
                        REFUSED_FOR,
                        &calls.price as &[Option<i64>],
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(if ended == 1 { CommitOutcome::Committed } else { CommitOutcome::Fenced })
                })
            })
            .await
    }
}
