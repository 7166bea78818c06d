//! Reading a record: one statement, one snapshot, with all that a decision needs to know.

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::StoreError;
use crate::domain::hash::RequestHash;
use crate::domain::ids::{ConversationId, Fence, OperationId, RequestId, Subject, TenantId};
use crate::domain::liveness::{LivenessFacts, Owner};
use crate::domain::record::{Guard, Record, RecordKey, State, StoredAnswer};

/// What stands under a key.
pub(super) struct KeyRow {
    /// Absent where its partition was dropped, or where a claim found the conversation busy.
    pub record: Option<Record>,
}

/// A record as it is read, and whom an API key belongs to where one was looked up with it. Everything
/// is absent where no row stands.
pub(super) struct Row {
    pub bearer_tenant: Option<String>,
    pub bearer_role: Option<String>,
    pub bearer_subject: Option<String>,
    key_day: Option<NaiveDate>,
    operation_id: Option<Uuid>,
    key_source: Option<String>,
    endpoint: Option<String>,
    subject: Option<String>,
    conversation_id: Option<String>,
    request_hash: Option<Vec<u8>>,
    state: Option<String>,
    fence: Option<i64>,
    attempts: Option<i32>,
    quota_hits: Option<i32>,
    heartbeat_at: Option<DateTime<Utc>>,
    first_claimed_at: Option<DateTime<Utc>>,
    claimed_at: Option<DateTime<Utc>>,
    completed_at: Option<DateTime<Utc>>,
    request_id: Option<Uuid>,
    response_status: Option<i32>,
    response: Option<Vec<u8>>,
    failure_kind: Option<String>,
    failure_final: Option<bool>,
    erased_at: Option<DateTime<Utc>>,
    known_owner: Option<i64>,
    owner_dead_at: Option<DateTime<Utc>>,
    epoch: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
}

/// Reads key, day and record in a statement, and so in a snapshot, of its own. `with_answer` says
/// whether the stored answer is wanted too.
pub(super) async fn read(
    connection: &mut PgConnection,
    tenant: &TenantId,
    key: Uuid,
    with_answer: bool,
) -> Result<Option<KeyRow>, StoreError> {
    let row = sqlx::query_as!(
        Row,
        r#"/* record.read */
        select null::text as bearer_tenant, null::text as bearer_role, null::text as bearer_subject,
            k.day as "key_day?", r.operation_id as "operation_id?", r.key_source as "key_source?",
            r.endpoint as "endpoint?", r.subject as "subject?", r.conversation_id as "conversation_id?",
            r.request_hash as "request_hash?", r.state as "state?", r.fence as "fence?",
            r.attempts as "attempts?", r.quota_hits as "quota_hits?", r.heartbeat_at as "heartbeat_at?",
            r.first_claimed_at as "first_claimed_at?", r.claimed_at as "claimed_at?",
            r.completed_at as "completed_at?", r.request_id as "request_id?",
            r.response_status as "response_status?",
            case when $3 then r.response end as "response?", r.failure_kind as "failure_kind?",
            r.failure_final as "failure_final?", r.erased_at as "erased_at?",
            n.node_id as "known_owner?", n.dead_at as "owner_dead_at?",
            (select first_seen from server_epoch
                where server_start = pg_postmaster_start_time()) as "epoch?", clock_timestamp() as "now!"
        from request_keys k
        left join request_records r
            on r.tenant_id = k.tenant_id and r.idempotency_key = k.idempotency_key and r.day = k.day
        left join nodes n on n.node_id = r.owner
        where k.tenant_id = $1 and k.idempotency_key = $2"#,
        tenant.as_str(),
        key,
        with_answer,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(KeyRow { record: row.record(tenant, key)? }))
}

/// Whom an API key belongs to, and the record under an idempotency key of that tenant's, in one
/// statement: what an arrival asks before anything else.
pub(super) async fn read_with_bearer(
    connection: &mut PgConnection,
    key_hash: &[u8],
    key: Uuid,
) -> Result<Option<Row>, StoreError> {
    Ok(sqlx::query_as!(
        Row,
        r#"/* record.read_with_bearer */
        select a.tenant_id as "bearer_tenant?", a.role as "bearer_role?", a.subject as "bearer_subject?",
            k.day as "key_day?", r.operation_id as "operation_id?", r.key_source as "key_source?",
            r.endpoint as "endpoint?", r.subject as "subject?", r.conversation_id as "conversation_id?",
            r.request_hash as "request_hash?", r.state as "state?", r.fence as "fence?",
            r.attempts as "attempts?", r.quota_hits as "quota_hits?", r.heartbeat_at as "heartbeat_at?",
            r.first_claimed_at as "first_claimed_at?", r.claimed_at as "claimed_at?",
            r.completed_at as "completed_at?", r.request_id as "request_id?",
            r.response_status as "response_status?",
            r.response as "response?", r.failure_kind as "failure_kind?",
            r.failure_final as "failure_final?", r.erased_at as "erased_at?",
            n.node_id as "known_owner?", n.dead_at as "owner_dead_at?",
            (select first_seen from server_epoch
                where server_start = pg_postmaster_start_time()) as "epoch?", clock_timestamp() as "now!"
        from api_keys a
        left join request_keys k on k.tenant_id = a.tenant_id and k.idempotency_key = $2
        left join request_records r
            on r.tenant_id = k.tenant_id and r.idempotency_key = k.idempotency_key and r.day = k.day
        left join nodes n on n.node_id = r.owner
        where a.key_hash = $1 and a.revoked_at is null"#,
        key_hash,
        key,
    )
    .fetch_optional(connection)
    .await?)
}

/// The same for many at once: whom each API key belongs to, and the record under the idempotency key at the
/// same place. A row for each, in order. (With `LIMIT` it is planned as what it is, a look at each key; as
/// joins the server might read whole indexes where it takes the tables for small.)
pub(super) async fn read_with_bearers(
    connection: &mut PgConnection,
    key_hashes: &[&[u8]],
    keys: &[Uuid],
) -> Result<Vec<Row>, StoreError> {
    Ok(sqlx::query_as!(
        Row,
        r#"/* record.read_with_bearers */
        select a.tenant_id as "bearer_tenant?", a.role as "bearer_role?", a.subject as "bearer_subject?",
            k.day as "key_day?", r.operation_id as "operation_id?", r.key_source as "key_source?",
            r.endpoint as "endpoint?", r.subject as "subject?", r.conversation_id as "conversation_id?",
            r.request_hash as "request_hash?", r.state as "state?", r.fence as "fence?",
            r.attempts as "attempts?", r.quota_hits as "quota_hits?", r.heartbeat_at as "heartbeat_at?",
            r.first_claimed_at as "first_claimed_at?", r.claimed_at as "claimed_at?",
            r.completed_at as "completed_at?", r.request_id as "request_id?",
            r.response_status as "response_status?",
            r.response as "response?", r.failure_kind as "failure_kind?",
            r.failure_final as "failure_final?", r.erased_at as "erased_at?",
            n.node_id as "known_owner?", n.dead_at as "owner_dead_at?",
            (select first_seen from server_epoch
                where server_start = pg_postmaster_start_time()) as "epoch?", clock_timestamp() as "now!"
        from unnest($1::bytea[], $2::uuid[]) with ordinality as asked (key_hash, idempotency_key, place)
        left join lateral (select * from api_keys a
            where a.key_hash = asked.key_hash and a.revoked_at is null limit 1) a on true
        left join lateral (select * from request_keys k
            where k.tenant_id = a.tenant_id and k.idempotency_key = asked.idempotency_key
            limit 1) k on true
        left join lateral (select * from request_records r
            where r.tenant_id = k.tenant_id and r.idempotency_key = k.idempotency_key
                and r.day = k.day limit 1) r on true
        left join lateral (select * from nodes n where n.node_id = r.owner limit 1) n on true
        order by asked.place"#,
        key_hashes as &[&[u8]],
        keys,
    )
    .fetch_all(connection)
    .await?)
}

impl Row {
    /// The record. `None`: there is none.
    pub fn record(self, tenant: &TenantId, key: Uuid) -> Result<Option<Record>, StoreError> {
        let row = self;
        let (Some(day), Some(operation_id)) = (row.key_day, row.operation_id) else {
            return Ok(None);
        };
        let corrupt = |column: &'static str| corrupt(column, key);
        let owner = Owner::of(row.known_owner, row.owner_dead_at);
        let answer = match (row.response_status, row.response) {
            (Some(status), Some(body)) => {
                let status =
                    status.try_into().map_err(|_| corrupt("response_status")("no status"))?;
                Some(StoredAnswer { status, body })
            }
            _ => None,
        };
        let state = match (row.state.as_deref(), row.failure_final) {
            (Some("in_progress"), _) => State::InProgress,
            (Some("committed"), _) => State::Committed(answer),
            (Some("failed"), Some(true)) => State::FailedFinal(answer),
            (Some("failed"), Some(false)) => State::FailedPassing,
            _ => return Err(corrupt("state")("unknown state")),
        };
        let hash: [u8; 32] = (row.request_hash.unwrap_or_default())
            .try_into()
            .map_err(|_| corrupt("request_hash")("not 32 bytes"))?;
        let time = |at: Option<DateTime<Utc>>, column| at.ok_or_else(|| corrupt(column)("missing"));
        let count = |count: Option<i32>, column| {
            count.and_then(|n| u32::try_from(n).ok()).ok_or_else(|| corrupt(column)("no count"))
        };
        let record = Record {
            at: RecordKey { tenant: tenant.clone(), key, day },
            guard: Guard {
                fence: Fence(row.fence.ok_or_else(|| corrupt("fence")("missing"))?),
                request_id: RequestId(
                    row.request_id.ok_or_else(|| corrupt("request_id")("missing"))?,
                ),
            },
            operation_id: OperationId(operation_id),
            endpoint: row.endpoint.ok_or_else(|| corrupt("endpoint")("missing"))?,
            key_source: row.key_source.ok_or_else(|| corrupt("key_source")("missing"))?,
            subject: row.subject.map(Subject::new),
            conversation_id: row.conversation_id.map(ConversationId::new),
            request_hash: RequestHash(hash),
            state,
            attempts: count(row.attempts, "attempts")?,
            quota_hits: count(row.quota_hits, "quota_hits")?,
            failure_kind: row.failure_kind,
            first_claimed_at: time(row.first_claimed_at, "first_claimed_at")?,
            claimed_at: time(row.claimed_at, "claimed_at")?,
            completed_at: row.completed_at,
            erased: row.erased_at.is_some(),
            liveness: LivenessFacts {
                now: row.now,
                heartbeat_at: time(row.heartbeat_at, "heartbeat_at")?,
                owner,
                epoch: row.epoch,
            },
        };
        Ok(Some(record))
    }
}

fn corrupt(column: &'static str, key: Uuid) -> impl Fn(&str) -> StoreError {
    move |problem| StoreError::Corrupt {
        table: "request_records",
        column,
        key: key.to_string(),
        problem: problem.to_owned(),
    }
}

/// Locks a record that is still as it was read. `false`: somebody else was faster.
pub(super) async fn lock(
    connection: &mut PgConnection,
    at: &RecordKey,
    guard: Guard,
) -> Result<bool, StoreError> {
    let found = sqlx::query_scalar!(
        r#"/* record.lock */
        select 1 as "one!" from request_records
        where tenant_id = $1 and idempotency_key = $2 and day = $3 and fence = $4 and request_id = $5
        for update"#,
        at.tenant.as_str(),
        at.key,
        at.day,
        guard.fence.0,
        guard.request_id.0,
    )
    .fetch_optional(connection)
    .await?;
    Ok(found.is_some())
}
