//! The invariants, as queries that find what breaks them. Each returns rows of a tenant and a sentence.
//!
//! What the retention took away is no break, and neither is what was erased. A committed operation is
//! followed from its record to its receipt, its event and its turns, and each of these back: what
//! stands alone is found from its own side.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Row};

use super::error::StoreError;
use super::{Store, interval};
use crate::domain::ids::TenantId;

/// Rows shown per invariant.
const SHOWN: i64 = 20;
/// For one invariant, on a database of any size that is served at all.
const LIMIT: Duration = Duration::from_secs(3_600);

/// One invariant. The statement selects `(tenant_id, what)`; `$1` is a tenant or null for all, `$2`
/// what is shown at most, `$3` how long the sweep has for a run without an owner; `$4`, `$5` and `$6`
/// how long published events, turns and calls are kept, null for ever.
pub struct Invariant {
    pub name: &'static str,
    pub promise: &'static str,
    sql: &'static str,
}

/// What breaks an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub tenant: String,
    pub what: String,
}

/// How long the retention leaves what a committed operation wrote; `None`: for ever.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kept {
    pub published_events: Option<Duration>,
    pub turns: Option<Duration>,
    pub provider_calls: Option<Duration>,
}

/// All of them, in the order in which they are reported.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "one_receipt",
        promise: "a committed record has exactly one receipt, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has no receipt of its run' as what
            from request_records r
            left join usage_receipts u on u.tenant_id = r.tenant_id and u.operation_id = r.operation_id
                and u.request_id = r.request_id and u.idempotency_key = r.idempotency_key
                and u.record_day = r.day
            where r.state = 'committed' and u.operation_id is null",
    },
    Invariant {
        name: "one_event",
        promise: "a committed record has exactly one call_completed event, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has '
                || coalesce(o.events, 0) || ' events' as what
            from request_records r
            left join (select tenant_id, payload ->> 'operation_id' as operation_id,
                    payload ->> 'request_id' as request_id, count(*) as events
                from outbox where type = 'call_completed' group by 1, 2, 3) o
                on o.tenant_id = r.tenant_id and o.operation_id = r.operation_id::text
                and o.request_id = r.request_id::text
            where r.state = 'committed' and (o.events > 1 or (o.events is null
                and r.completed_at > coalesce(clock_timestamp() - $4::interval, '-infinity')))",
    },
    Invariant {
        name: "two_turns",
        promise: "a committed chat has its two turns, side by side, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has '
                || coalesce(t.turns, 0) || ' turns of its run' as what
            from request_records r
            left join (select tenant_id, conversation_id, operation_id, request_id, count(*) as turns,
                    min(seq) filter (where role = 'user') as question,
                    min(seq) filter (where role = 'assistant') as answer,
                    min(turn_id::text) filter (where role = 'assistant') as turn_id
                from turns group by 1, 2, 3, 4) t
                on t.tenant_id = r.tenant_id and t.conversation_id = r.conversation_id
                and t.operation_id = r.operation_id and t.request_id = r.request_id
            where r.state = 'committed' and r.endpoint = 'chat' and r.erased_at is null
                and r.completed_at > coalesce(clock_timestamp() - $5::interval, '-infinity')
                and (t.turns = 2 and t.answer = t.question + 1 and t.turn_id = r.turn_id::text)
                    is not true",
    },
    Invariant {
        name: "one_result",
        promise: "a committed parse has exactly one result, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has no parse result of its run'
                as what
            from request_records r
            left join parse_results p on p.tenant_id = r.tenant_id
                and p.operation_id = r.operation_id and p.request_id = r.request_id
            where r.state = 'committed' and r.endpoint = 'parse' and r.erased_at is null
                and r.completed_at > coalesce(clock_timestamp() - $5::interval, '-infinity')
                and p.operation_id is null",
    },
    Invariant {
        name: "result_of_a_receipt",
        promise: "no parse result stands without the receipt of its operation",
        sql: "select p.tenant_id, 'parse result of operation ' || p.operation_id || ' has no receipt'
                as what
            from parse_results p where not exists (select from usage_receipts u
                where u.tenant_id = p.tenant_id and u.operation_id = p.operation_id
                    and u.request_id = p.request_id)",
    },
    Invariant {
        name: "receipt_of_a_record",
        promise: "no receipt stands without its committed record",
        sql: "select u.tenant_id, 'receipt of operation ' || u.operation_id
                || ' has no committed record' as what
            from usage_receipts u
            left join request_records r on r.tenant_id = u.tenant_id
                and r.idempotency_key = u.idempotency_key and r.day = u.record_day
                and r.operation_id = u.operation_id and r.request_id = u.request_id
                and r.state = 'committed'
            where r.tenant_id is null and u.record_day in (
                select to_date(substr(p.relname::text, 17), 'YYYYMMDD')
                from pg_inherits i join pg_class p on p.oid = i.inhrelid
                where i.inhparent = 'request_records'::regclass and not i.inhdetachpending
                    and p.relname ~ '^request_records_[0-9]{8}$')",
    },
    Invariant {
        name: "turn_of_a_receipt",
        promise: "no turn stands without the receipt of its operation",
        sql: "select t.tenant_id, 'turn ' || t.seq || ' of ' || t.conversation_id
                || ' has no receipt' as what
            from turns t where not exists (select from usage_receipts u
                where u.tenant_id = t.tenant_id and u.operation_id = t.operation_id
                    and u.request_id = t.request_id)",
    },
    Invariant {
        name: "event_of_a_receipt",
        promise: "no event stands without the receipt of its operation",
        sql: "select o.tenant_id, 'event ' || o.id || ' has no receipt' as what
            from outbox o where o.type = 'call_completed' and not exists (select from usage_receipts u
                where u.tenant_id = o.tenant_id and u.event_id = o.id
                    and u.operation_id::text = o.payload ->> 'operation_id'
                    and u.request_id::text = o.payload ->> 'request_id')",
    },
    Invariant {
        name: "gapless_turns",
        promise: "the turns of a conversation are gapless and alternate",
        sql: "select tenant_id, conversation_id || ' at turn ' || seq as what from (
                select tenant_id, conversation_id, seq, role, lag(seq) over (
                    partition by tenant_id, conversation_id order by seq) as before
                from turns) t
            where role <> case when seq % 2 = 1 then 'user' else 'assistant' end
                or seq <> before + 1
                -- Only the retention takes a conversation's beginning away.
                or (before is null and seq <> 1 and $5::interval is null)",
    },
    Invariant {
        name: "head_of_turns",
        promise: "a conversation's head is its last turn",
        sql: "select coalesce(c.tenant_id, t.tenant_id) as tenant_id,
                coalesce(c.conversation_id, t.conversation_id) || ' has head '
                || coalesce(c.head_seq::text, 'none') || ' and its last turn is '
                || coalesce(t.last_seq::text, 'none') as what
            from conversations c
            full join (select tenant_id, conversation_id, max(seq) as last_seq from turns
                group by 1, 2) t
                on t.tenant_id = c.tenant_id and t.conversation_id = c.conversation_id
            where c.head_seq is null or (c.head_seq <> coalesce(t.last_seq, 0)
                and (t.last_seq is not null or $5::interval is null))",
    },
    Invariant {
        name: "tokens_of_calls",
        promise: "the tokens of a receipt are those of its counted calls, and only a receipt has any",
        sql: "select coalesce(u.tenant_id, c.tenant_id) as tenant_id, case when u.operation_id is null
                then 'counted calls of operation ' || c.operation_id || ' without their receipt'
                else 'receipt of operation ' || u.operation_id end as what
            from usage_receipts u
            full join (select tenant_id, operation_id, count(*) as calls,
                    min(request_id::text) as first_run, max(request_id::text) as last_run,
                    sum(input_tokens) as input, sum(output_tokens) as output,
                    sum(cache_read_tokens) as cache_read, sum(cache_write_tokens) as cache_write,
                    sum(reasoning_tokens) as reasoning
                from provider_calls where counted group by 1, 2) c
                on c.tenant_id = u.tenant_id and c.operation_id = u.operation_id
            where u.operation_id is null
                -- A chunk of a parse may be an earlier run's.
                or (u.endpoint = 'chat' and (c.first_run <> u.request_id::text
                    or c.last_run <> u.request_id::text))
                or (u.created_at > coalesce(clock_timestamp() - $6::interval, '-infinity')
                    and (coalesce(c.calls, 0) <> u.provider_calls or (u.usage_source <> 'estimated'
                        and (c.input is distinct from u.input_tokens
                            or c.output is distinct from u.output_tokens
                            or c.cache_read is distinct from u.cache_read_tokens
                            or c.cache_write is distinct from u.cache_write_tokens
                            or c.reasoning is distinct from u.reasoning_tokens))))",
    },
    Invariant {
        name: "free_conversations",
        promise: "no conversation is held by an operation that does not run",
        sql: "select c.tenant_id, c.conversation_id || ' is held by ' || c.active_key as what
            from conversations c where c.active_key is not null and not exists (
                select from request_keys k join request_records r
                    on r.tenant_id = k.tenant_id and r.idempotency_key = k.idempotency_key and r.day = k.day
                where k.tenant_id = c.tenant_id and k.idempotency_key = c.active_key
                    and r.state = 'in_progress' and r.conversation_id = c.conversation_id)",
    },
    Invariant {
        name: "owned_runs",
        promise: "no run is without a live owner for longer than the sweep needs",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' runs, silent since '
                || r.heartbeat_at as what
            from request_records r where r.state = 'in_progress'
                and r.heartbeat_at < clock_timestamp() - $3::interval
                and exists (select from server_epoch where server_start = pg_postmaster_start_time()
                    and first_seen < clock_timestamp() - $3::interval)",
    },
    Invariant {
        name: "one_record",
        promise: "a key has one record, in the partition that the key names",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' of ' || r.day
                || ' is not where its key says' as what
            from request_records r where not exists (select from request_keys k
                where k.tenant_id = r.tenant_id and k.idempotency_key = r.idempotency_key
                    and k.day = r.day)",
    },
];

impl Store {
    /// Looks for rows that break one invariant, where everything is kept for ever; at most twenty are
    /// returned.
    pub async fn broken(
        &self,
        invariant: &'static Invariant,
        tenant: Option<TenantId>,
    ) -> Result<Vec<Finding>, StoreError> {
        self.broken_of_kept(invariant, tenant, Kept::default()).await
    }

    /// The same where the retention takes things away.
    pub async fn broken_of_kept(
        &self,
        invariant: &'static Invariant,
        tenant: Option<TenantId>,
        kept: Kept,
    ) -> Result<Vec<Finding>, StoreError> {
        // The sweep looks every twelfth part of stale_after, at least once a second.
        let patience = interval(self.liveness.stale_after * 2 + self.liveness.grace);
        let kept = [kept.published_events, kept.turns, kept.provider_calls];
        let kept = kept.map(|time| time.map(interval));
        self.database
            .run_within(LIMIT, "audit", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    // It reads everything, once: planned for these values, in its own time, and by
                    // hash alone. On tables without statistics any other join may look cheaper, and
                    // then compares every pair of a tenant's rows.
                    sqlx::raw_sql(
                        "set local statement_timeout = 0; set local plan_cache_mode = force_custom_plan; \
                         set local work_mem = '64MB'; set local enable_nestloop = off; \
                         set local enable_mergejoin = off; set local enable_seqscan = on",
                    )
                    .execute(&mut *transaction)
                    .await?;
                    // Constant text of this file around a constant of this file. Every value is named
                    // once, so that PostgreSQL knows its type also where an invariant has no use for it.
                    let sql = format!(
                        "/* audit.{} */ select tenant_id, what from ({}) broken
                        where ($1::text is null or tenant_id = $1) and coalesce($3::interval,
                            $4::interval, $5::interval, $6::interval) is not null
                        order by tenant_id, what limit $2",
                        invariant.name, invariant.sql
                    );
                    let [events, turns, calls] = kept;
                    let rows = sqlx::query(AssertSqlSafe(sql))
                        .bind(tenant.as_ref().map(|tenant| tenant.as_str().to_owned()))
                        .bind(SHOWN)
                        .bind(patience)
                        .bind(events)
                        .bind(turns)
                        .bind(calls)
                        .fetch_all(&mut *transaction)
                        .await?;
                    transaction.rollback().await?;
                    rows.into_iter()
                        .map(|row| {
                            Ok(Finding {
                                tenant: row.try_get("tenant_id")?,
                                what: row.try_get("what")?,
                            })
                        })
                        .collect()
                })
            })
            .await
    }
}
