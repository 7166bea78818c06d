-- Inputs of a parse, stored before the first call; the bytes lie at `location`, in an object store.
-- An operation has one, over all its runs.
create table captures (
    tenant_id text not null,
    capture_id uuid not null,
    operation_id uuid not null,
    -- Of the run that stored it.
    request_id uuid not null,
    -- Whose it is, for whoever may see or erase the inputs of one end user alone.
    subject text,
    sha256 bytea not null check (octet_length(sha256) = 32),
    -- By the bytes, whatever the upload was called; text that was pasted bears its character set.
    content_type text not null,
    bytes bigint not null check (bytes >= 0),
    location text not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, capture_id)
);
create unique index captures_by_operation on captures (tenant_id, operation_id);
create index captures_by_time on captures (created_at);

-- What a committed parse found.
create table parse_results (
    tenant_id text not null,
    operation_id uuid not null,
    request_id uuid not null,
    capture_id uuid not null,
    profile text not null,
    result jsonb not null,
    gaps jsonb not null,
    -- The client's own words about its request.
    metadata jsonb,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, operation_id)
);

-- Chunks that are done, for the run after this one: what was paid for once is not paid for again. Gone
-- with the commit; what an operation that never ended well leaves behind goes after the retention.
create table parse_chunks (
    tenant_id text not null,
    operation_id uuid not null,
    -- SHA-256 over everything that the answer depends on: profile, model, text, speaker.
    asked bytea not null check (octet_length(asked) = 32),
    -- The call that gave it, in provider_calls.
    request_id uuid not null,
    call_no integer not null,
    -- JSON, as it is merged.
    value text not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, operation_id, asked)
);
create index parse_chunks_by_time on parse_chunks (created_at);

do $$
begin
    alter table parse_results alter column result set compression lz4;
    alter table parse_chunks alter column value set compression lz4;
exception when feature_not_supported then
    null;
end $$;
