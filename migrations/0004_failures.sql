-- How long a call was waited for: between calls and for a slot, so that the way of an operation can be seen.
alter table provider_calls add column waited_ms bigint not null default 0;

-- Inputs that failed finally for a reason of their own. From the second key on they are answered from here,
-- before anything is spent, until `until`, and only while the model is what it was.
create table refused_inputs (
    tenant_id text not null,
    endpoint text not null,
    request_hash bytea not null check (octet_length(request_hash) = 32),
    -- What was asked: another upstream, system prompt or ladder under the same name is another model.
    model text not null,
    failure_kind text not null,
    -- Keys under which it failed.
    failures integer not null default 1 check (failures >= 1),
    created_at timestamptz not null default clock_timestamp(),
    until timestamptz not null,
    primary key (tenant_id, endpoint, request_hash)
);
create index refused_inputs_until on refused_inputs (until);
