//! The invariants, as queries that find what breaks them. Each returns rows of a key and a sentence.

use sqlx::AssertSqlSafe;
use sqlx::Row;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::TenantId;

/// Rows shown per invariant.
const SHOWN: i64 = 20;

/// One invariant. The statement selects `(tenant_id, what)`; `$1` is a tenant or null for all, `$2`
/// what is shown at most, `$3` how long the sweep has for a run without an owner.
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

/// All of them, in the order in which they are reported.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "one_receipt",
        promise: "a committed record has exactly one receipt, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has no receipt of its run' as what
            from request_records r
            left join usage_receipts u on u.tenant_id = r.tenant_id and u.operation_id = r.operation_id
                and u.request_id = r.request_id and u.idempotency_key = r.idempotency_key
            where r.state = 'committed' and u.operation_id is null",
    },
    Invariant {
        name: "one_event",
        promise: "a committed record has exactly one call_completed event, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has ' || count(o.id) || ' events' as what
            from request_records r
            left join outbox o on o.tenant_id = r.tenant_id and o.type = 'call_completed'
                and o.payload ->> 'operation_id' = r.operation_id::text
                and o.payload ->> 'request_id' = r.request_id::text
            where r.state = 'committed' group by r.tenant_id, r.idempotency_key, r.operation_id
            having count(o.id) <> 1",
    },
    Invariant {
        name: "two_turns",
        promise: "a committed chat has its two turns, with its request id",
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' has ' || count(t.turn_id) || ' turns' as what
            from request_records r
            left join turns t on t.tenant_id = r.tenant_id and t.conversation_id = r.conversation_id
                and t.operation_id = r.operation_id and t.request_id = r.request_id
            where r.state = 'committed' and r.endpoint = 'chat' and r.erased_at is null
            group by r.tenant_id, r.idempotency_key, r.operation_id, r.turn_id
            having count(t.turn_id) <> 2
                or count(*) filter (where t.role = 'assistant' and t.turn_id = r.turn_id) <> 1",
    },
    Invariant {
        name: "receipt_of_a_record",
        promise: "no receipt stands without its committed record",
        sql: "select u.tenant_id, 'receipt of operation ' || u.operation_id || ' has no committed record' as what
            from usage_receipts u
            where exists (select from pg_inherits i join pg_class p on p.oid = i.inhrelid
                    where i.inhparent = 'request_records'::regclass and not i.inhdetachpending
                        and p.relname = 'request_records_' || to_char(u.record_day, 'YYYYMMDD'))
                and not exists (select from request_records r
                    where r.tenant_id = u.tenant_id and r.idempotency_key = u.idempotency_key
                        and r.day = u.record_day and r.operation_id = u.operation_id
                        and r.request_id = u.request_id and r.state = 'committed')",
    },
    Invariant {
        name: "turn_of_a_receipt",
        promise: "no turn stands without the receipt of its operation",
        sql: "select t.tenant_id, 'turn ' || t.seq || ' of ' || t.conversation_id || ' has no receipt' as what
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
                    and u.operation_id::text = o.payload ->> 'operation_id')",
    },
    Invariant {
        name: "gapless_turns",
        promise: "the turns of a conversation are gapless and alternate",
        sql: "select tenant_id, conversation_id || ' at turn ' || seq as what from (
                select t.tenant_id, t.conversation_id, t.seq, t.role,
                    row_number() over (partition by t.tenant_id, t.conversation_id order by t.seq) as place
                from turns t) numbered
            where seq <> place or role <> case when place % 2 = 1 then 'user' else 'assistant' end",
    },
    Invariant {
        name: "head_of_turns",
        promise: "a conversation's head is its last turn",
        sql: "select c.tenant_id, c.conversation_id || ' has head ' || c.head_seq || ' and '
                || (select count(*) from turns t where t.tenant_id = c.tenant_id
                    and t.conversation_id = c.conversation_id) || ' turns' as what
            from conversations c where c.head_seq <> coalesce((select max(t.seq) from turns t
                where t.tenant_id = c.tenant_id and t.conversation_id = c.conversation_id), 0)",
    },
    Invariant {
        name: "tokens_of_calls",
        promise: "the tokens of a receipt are those of its counted calls",
        sql: "select u.tenant_id, 'receipt of operation ' || u.operation_id as what
            from usage_receipts u
            left join lateral (select count(*) as calls, sum(c.input_tokens) as input,
                    sum(c.output_tokens) as output, sum(c.cache_read_tokens) as cache_read,
                    sum(c.cache_write_tokens) as cache_write, sum(c.reasoning_tokens) as reasoning
                from provider_calls c where c.tenant_id = u.tenant_id
                    and c.operation_id = u.operation_id and c.request_id = u.request_id and c.counted) c on true
            where u.usage_source <> 'estimated'
                and (c.calls <> u.provider_calls or c.input is distinct from u.input_tokens
                    or c.output is distinct from u.output_tokens
                    or c.cache_read is distinct from u.cache_read_tokens
                    or c.cache_write is distinct from u.cache_write_tokens
                    or c.reasoning is distinct from u.reasoning_tokens)",
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
        sql: "select r.tenant_id, 'record ' || r.idempotency_key || ' of ' || r.day || ' is not where its key says' as what
            from request_records r where not exists (select from request_keys k
                where k.tenant_id = r.tenant_id and k.idempotency_key = r.idempotency_key and k.day = r.day)",
    },
];

impl Store {
    /// Looks for rows that break one invariant; at most twenty are returned.
    pub async fn broken(
        &self,
        invariant: &'static Invariant,
        tenant: Option<TenantId>,
    ) -> Result<Vec<Finding>, StoreError> {
        // The sweep looks every twelfth part of stale_after, at least once a second.
        let patience = super::interval(self.liveness.stale_after * 2 + self.liveness.grace);
        self.database
            .run("audit", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    // Constant text of this file around a constant of this file.
                    let sql = format!(
                        "/* audit.{} */ select tenant_id, what from ({}) broken
                        where ($1::text is null or tenant_id = $1) and $3::interval is not null
                        order by tenant_id, what limit $2",
                        invariant.name, invariant.sql
                    );
                    let rows = sqlx::query(AssertSqlSafe(sql))
                        .bind(tenant.as_ref().map(|tenant| tenant.as_str().to_owned()))
                        .bind(SHOWN)
                        .bind(patience)
                        .fetch_all(connection)
                        .await?;
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
