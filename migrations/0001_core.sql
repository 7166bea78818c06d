-- The record of every operation, and what a committed one leaves behind.
-- Every key of a table that grows with use starts with tenant_id. Times are timestamptz, days are UTC.

-- Who is alive. UNLOGGED on purpose: both are empty after a crash recovery and on a promoted standby,
-- which is how a node learns that free locks and old heartbeats say nothing yet.
create unlogged table nodes (
    node_id bigint primary key,
    advertised text not null,
    registered_at timestamptz not null default clock_timestamp(),
    suspected_at timestamptz,
    dead_at timestamptz
);

create unlogged table server_epoch (
    one boolean primary key default true check (one),
    first_seen timestamptz not null default clock_timestamp()
);

-- Logged, so that an id is never given twice; an integer, because advisory locks take one.
create sequence node_ids as integer;

create table api_keys (
    tenant_id text not null check (tenant_id <> ''),
    key_id uuid not null,
    key_hash bytea not null check (octet_length(key_hash) = 32),
    role text not null check (role in ('client', 'finance', 'operator')),
    subject text,
    created_at timestamptz not null default clock_timestamp(),
    revoked_at timestamptz,
    primary key (tenant_id, key_id)
);
-- The hash names the tenant, so it is looked up before the tenant is known.
create unique index api_keys_key_hash on api_keys (key_hash);

-- The race for a key is decided here, in one narrow table; `day` says in which partition its record lives.
create table request_keys (
    tenant_id text not null,
    idempotency_key uuid not null,
    day date not null,
    primary key (tenant_id, idempotency_key)
);

create table request_records (
    tenant_id text not null,
    idempotency_key uuid not null,
    day date not null,
    operation_id uuid not null,
    key_source text not null check (key_source in ('client', 'opaque', 'derived', 'absent')),
    key_text text,
    endpoint text not null,
    subject text,
    conversation_id text,
    request_hash bytea not null check (octet_length(request_hash) = 32),
    state text not null default 'in_progress' check (state in ('in_progress', 'committed', 'failed')),
    fence bigint not null default 1 check (fence >= 1),
    attempts integer not null default 1 check (attempts >= 0),
    quota_hits integer not null default 0 check (quota_hits >= 0),
    owner bigint not null,
    heartbeat_at timestamptz not null default clock_timestamp(),
    first_claimed_at timestamptz not null default clock_timestamp(),
    claimed_at timestamptz not null default clock_timestamp(),
    completed_at timestamptz,
    request_id uuid not null,
    turn_id uuid,
    response_status integer,
    response bytea,
    failure_kind text,
    failure_final boolean,
    erased_at timestamptz,
    primary key (tenant_id, idempotency_key, day),
    constraint in_progress_has_no_outcome check (
        state <> 'in_progress'
        or (completed_at is null and response_status is null and response is null
            and failure_kind is null and failure_final is null)
    ),
    constraint committed_has_its_answer check (
        state <> 'committed'
        or (completed_at is not null and response_status = 200 and failure_kind is null
            and failure_final is null and (response is not null or erased_at is not null))
    ),
    constraint final_failure_has_its_answer check (
        state <> 'failed' or failure_final is not true
        or (completed_at is not null and response_status is not null and failure_kind is not null
            and (response is not null or erased_at is not null))
    ),
    constraint passing_failure_has_nothing_to_replay check (
        state <> 'failed' or failure_final is true
        or (completed_at is not null and failure_final is false and failure_kind is not null
            and response_status is null and response is null)
    )
) partition by range (day);
-- What runs now, for the sweep, the keeper and the audit: never more entries than operations in flight.
-- heartbeat_at stands in no index, so that a beat stays a heap-only update.
create index request_records_in_progress on request_records (owner) where state = 'in_progress';

create table conversations (
    tenant_id text not null,
    conversation_id text not null,
    subject text,
    head_seq bigint not null default 0,
    -- A hint: the lease is live if and only if this key's record is in progress and live.
    active_key uuid,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, conversation_id)
) with (fillfactor = 70);

create table turns (
    tenant_id text not null,
    conversation_id text not null,
    seq bigint not null,
    turn_id uuid not null,
    role text not null check (role in ('user', 'assistant')),
    content text not null,
    based_on_seq bigint not null,
    operation_id uuid not null,
    request_id uuid not null,
    metadata jsonb,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, conversation_id, seq)
);

create table usage_receipts (
    tenant_id text not null,
    operation_id uuid not null,
    request_id uuid not null,
    idempotency_key uuid not null,
    endpoint text not null,
    subject text,
    model text not null,
    input_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    output_tokens bigint,
    reasoning_tokens bigint,
    usage_source text not null check (usage_source in ('provider', 'estimated', 'unknown')),
    cost_usd numeric(20, 9),
    provider_calls integer not null,
    event_id uuid not null,
    record_day date not null,
    created_at timestamptz not null default clock_timestamp(),
    -- The last guard against a second commit, in a table that is never dropped.
    primary key (tenant_id, operation_id)
);

create table provider_calls (
    tenant_id text not null,
    operation_id uuid not null,
    request_id uuid not null,
    call_no integer not null,
    counted boolean not null,
    provider text not null,
    model text not null,
    route text not null,
    status integer,
    failure_kind text,
    changed text,
    input_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    output_tokens bigint,
    reasoning_tokens bigint,
    cost_usd numeric(20, 9),
    started_at timestamptz not null,
    ended_at timestamptz not null,
    primary key (tenant_id, operation_id, request_id, call_no)
);

-- The columns are those of Debezium's outbox event router.
create table outbox (
    id uuid not null,
    tenant_id text not null,
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload jsonb not null,
    created_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0,
    next_attempt_at timestamptz,
    published_at timestamptz,
    dead_at timestamptz,
    last_error text,
    primary key (tenant_id, id)
);

-- One row per identity of requests that came without a key.
create table derived_keys (
    tenant_id text not null,
    identity bytea not null,
    first_at timestamptz not null,
    idempotency_key uuid not null,
    primary key (tenant_id, identity)
);

-- lz4 where this server was built with it: a replay then costs no more than reading an id.
do $$
begin
    alter table request_records alter column response set compression lz4;
    alter table turns alter column content set compression lz4;
exception when feature_not_supported then
    null;
end $$;

-- Called by the commit when the record was still ours and its conversation was not: undoes everything.
-- The name carries a version: nodes of two versions may meet on one database, so functions are only added.
create function lease_lost_v1() returns bigint language plpgsql as $$
begin
    raise exception 'the conversation belongs to another operation' using errcode = 'OK001';
end $$;
