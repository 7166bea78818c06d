//! The one transaction: record, conversation, turns, receipt, calls and event, or nothing.
//!
//! One statement, so one round trip. It begins with the record, guarded by fence and request id; no
//! row there means that the run was fenced off, and every later part selects from it, so nothing else
//! is written. A record that is ours with a conversation that is not raises, which undoes all.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;

use super::Store;
use super::error::StoreError;
use super::lost_connection;
use crate::domain::ids::{EventId, TurnId};
use crate::domain::record::{Guard, RecordKey};
use crate::domain::usage::{PriceId, Usage, UsageSource};

/// One HTTP request to a provider, as it is kept.
#[derive(Debug, Clone)]
pub struct CallRow {
    pub call_no: i32,
    /// Whether its output is in the answer.
    pub counted: bool,
    pub provider: String,
    pub model: String,
    pub route: String,
    pub status: Option<u16>,
    pub failure_kind: Option<&'static str>,
    pub changed: Option<String>,
    /// Since the call before or the start of the run.
    pub waited: Duration,
    pub usage: Usage,
    pub cost: Option<Decimal>,
    /// What the cost was counted with.
    pub price: Option<PriceId>,
    pub started_at: DateTime<Utc>,
    pub ended_at: DateTime<Utc>,
}

/// What a committed chat leaves behind.
#[derive(Debug, Clone)]
pub struct ChatCommit {
    pub at: RecordKey,
    pub guard: Guard,
    /// The head of the conversation that the prompt was built on.
    pub based_on_seq: i64,
    /// The bytes that every replay returns.
    pub response: Vec<u8>,
    pub user_turn: TurnId,
    pub assistant_turn: TurnId,
    pub message: String,
    pub answer: String,
    /// A JSON object as text.
    pub metadata: Option<String>,
    pub model: String,
    pub usage: Usage,
    pub usage_source: UsageSource,
    pub cost: Option<Decimal>,
    /// What the cost was counted with.
    pub price: Option<PriceId>,
    pub event: EventId,
    /// A JSON object as text.
    pub event_payload: String,
    pub calls: Vec<CallRow>,
}

impl ChatCommit {
    /// Calls whose output is in the answer.
    pub(super) fn counted_calls(&self) -> i32 {
        let counted = self.calls.iter().filter(|call| call.counted).count();
        i32::try_from(counted).unwrap_or(i32::MAX)
    }
}

/// How a commit that reached the database ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    Committed,
    /// The record is another run's, or ended; nothing was written.
    Fenced,
}

/// What became of a run whose commit got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitTrace {
    Committed,
    /// The record is still this run's: the commit never took effect.
    NotYet,
    Fenced,
}

impl Store {
    /// Writes a chat's outcome. Errors: `LeaseLost` where the conversation is another operation's,
    /// `Unavailable` where it is unknown whether the commit took effect (`trace_commit` tells).
    pub async fn commit_chat(&self, commit: Arc<ChatCommit>) -> Result<CommitOutcome, StoreError> {
        match &self.coalescers {
            Some(coalescers) => coalescers.commits.submit(self, commit).await,
            None => self.commit_chat_alone(commit).await,
        }
    }

    pub(super) async fn commit_chat_alone(
        &self,
        commit: Arc<ChatCommit>,
    ) -> Result<CommitOutcome, StoreError> {
        let faults = self.faults.clone();
        self.database
            .run("commit", move |connection| {
                let (commit, faults) = (commit.clone(), faults.clone());
                Box::pin(async move {
                    lost_connection::before_commit(&faults, connection).await;
                    let outcome = write_chat(connection, &commit).await?;
                    lost_connection::after_commit(&faults, connection).await?;
                    Ok(outcome)
                })
            })
            .await
    }

    /// Looks up, on another connection, what became of a commit whose answer was lost.
    pub async fn trace_commit(
        &self,
        at: RecordKey,
        guard: Guard,
    ) -> Result<CommitTrace, StoreError> {
        self.database
            .run("commit.trace", move |connection| {
                let at = at.clone();
                Box::pin(async move {
                    let state = sqlx::query_scalar!(
                        "/* commit.trace */
                        select state from request_records
                        where tenant_id = $1 and idempotency_key = $2 and day = $3
                            and fence = $4 and request_id = $5",
                        at.tenant.as_str(),
                        at.key,
                        at.day,
                        guard.fence.0,
                        guard.request_id.0,
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(match state.as_deref() {
                        Some("committed") => CommitTrace::Committed,
                        Some("in_progress") => CommitTrace::NotYet,
                        _ => CommitTrace::Fenced,
                    })
                })
            })
            .await
    }
}

/// `|| ''` keeps the server from the index of what is in progress, which looks short to it and has an entry
/// for each run that has just ended.
async fn write_chat(
    connection: &mut sqlx::PgConnection,
    commit: &ChatCommit,
) -> Result<CommitOutcome, StoreError> {
    let calls = CallColumns::of(&commit.calls);
    let row = sqlx::query!(
        r#"/* commit.chat */
        with mine as (
            update request_records set state = 'committed', response_status = 200, response = $6,
                turn_id = $7, completed_at = clock_timestamp()
            where tenant_id = $1 and idempotency_key = $2 and day = $3
                and state || '' = 'in_progress' and fence = $4 and request_id = $5
            returning tenant_id, idempotency_key, day, operation_id, request_id, conversation_id,
                endpoint, subject),
        held as (
            update conversations c set head_seq = c.head_seq + 2, active_key = null
            where c.tenant_id = $1 and c.conversation_id = (select conversation_id from mine)
                and c.active_key = $2 and c.head_seq = $8
            returning c.head_seq),
        won as (select mine.*, held.head_seq from mine join held on true),
        turn as (
            insert into turns (tenant_id, conversation_id, seq, turn_id, role, content, based_on_seq,
                operation_id, request_id, metadata)
            select won.tenant_id, won.conversation_id, won.head_seq - 1, $9::uuid, 'user', $10, $8,
                won.operation_id, won.request_id, $11::text::jsonb from won
            union all
            select won.tenant_id, won.conversation_id, won.head_seq, $7::uuid, 'assistant', $12, $8,
                won.operation_id, won.request_id, null from won),
        receipt as (
            insert into usage_receipts (tenant_id, operation_id, request_id, idempotency_key, endpoint,
                subject, model, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens,
                reasoning_tokens, usage_source, cost_usd, provider_calls, event_id, record_day, price_id)
            select won.tenant_id, won.operation_id, won.request_id, won.idempotency_key, won.endpoint,
                won.subject, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22::uuid, won.day,
                $42
            from won),
        calls as (
            insert into provider_calls (tenant_id, operation_id, request_id, call_no, counted,
                provider, model, route, status, failure_kind, changed, input_tokens,
                cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
                cost_usd, started_at, ended_at, waited_ms, price_id)
            select won.tenant_id, won.operation_id, won.request_id, n.* from won, unnest($24::int[],
                $25::bool[], $26::text[], $27::text[], $28::text[], $29::int[], $30::text[],
                $31::text[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[],
                $36::bigint[], $37::numeric[], $38::timestamptz[], $39::timestamptz[],
                $40::bigint[], $41::bigint[]) as n),
        event as (
            insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
            select $22::uuid, won.tenant_id, 'conversation', won.conversation_id, 'call_completed',
                $23::text::jsonb from won)
        select (select count(*) from mine) as "mine!",
            case when exists (select from mine) and not exists (select from held)
                then lease_lost_v1() else (select count(*) from held) end as "held!""#,
        commit.at.tenant.as_str(),
        commit.at.key,
        commit.at.day,
        commit.guard.fence.0,
        commit.guard.request_id.0,
        &commit.response,
        commit.assistant_turn.0,
        commit.based_on_seq,
        commit.user_turn.0,
        &commit.message,
        commit.metadata.as_deref(),
        &commit.answer,
        &commit.model,
        commit.usage.input_tokens,
        commit.usage.cache_read_tokens,
        commit.usage.cache_write_tokens,
        commit.usage.output_tokens,
        commit.usage.reasoning_tokens,
        commit.usage_source.as_str(),
        commit.cost,
        commit.counted_calls(),
        commit.event.0,
        &commit.event_payload,
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
        commit.price.map(|price| price.0),
    )
    .fetch_one(connection)
    .await?;
    Ok(if row.mine == 1 { CommitOutcome::Committed } else { CommitOutcome::Fenced })
}

/// The calls of a run, column by column, as `unnest` takes them.
#[derive(Debug, Default)]
pub(super) struct CallColumns {
    pub call_no: Vec<i32>,
    pub counted: Vec<bool>,
    pub provider: Vec<String>,
    pub model: Vec<String>,
    pub route: Vec<String>,
    pub status: Vec<Option<i32>>,
    pub failure_kind: Vec<Option<String>>,
    pub changed: Vec<Option<String>>,
    pub input: Vec<Option<i64>>,
    pub cache_read: Vec<Option<i64>>,
    pub cache_write: Vec<Option<i64>>,
    pub output: Vec<Option<i64>>,
    pub reasoning: Vec<Option<i64>>,
    pub cost: Vec<Option<Decimal>>,
    pub started_at: Vec<DateTime<Utc>>,
    pub ended_at: Vec<DateTime<Utc>>,
    pub waited_ms: Vec<i64>,
    pub price: Vec<Option<i64>>,
}

impl CallColumns {
    pub fn of<'a>(calls: impl IntoIterator<Item = &'a CallRow>) -> Self {
        let mut columns = Self::default();
        for call in calls {
            columns.call_no.push(call.call_no);
            columns.counted.push(call.counted);
            columns.provider.push(call.provider.clone());
            columns.model.push(call.model.clone());
            columns.route.push(call.route.clone());
            columns.status.push(call.status.map(i32::from));
            columns.failure_kind.push(call.failure_kind.map(str::to_owned));
            columns.changed.push(call.changed.clone());
            columns.input.push(call.usage.input_tokens);
            columns.cache_read.push(call.usage.cache_read_tokens);
            columns.cache_write.push(call.usage.cache_write_tokens);
            columns.output.push(call.usage.output_tokens);
            columns.reasoning.push(call.usage.reasoning_tokens);
            columns.cost.push(call.cost);
            columns.started_at.push(call.started_at);
            columns.ended_at.push(call.ended_at);
            columns.waited_ms.push(i64::try_from(call.waited.as_millis()).unwrap_or(i64::MAX));
            columns.price.push(call.price.map(|price| price.0));
        }
        columns
    }
}
