-- What finance reads, and the price book that its numbers stand on.

-- What a model cost from when on: filled from the configuration at each start, one more row wherever that
-- says something else than the newest. The prices are US dollars per million tokens.
create table model_prices (
    price_id bigint generated always as identity primary key,
    model text not null,
    from_time timestamptz not null default clock_timestamp(),
    -- Whom the model was bought from, and by what name there: a provider's bill says that name.
    provider text not null,
    upstream text not null,
    input_usd_per_mtok numeric not null,
    output_usd_per_mtok numeric not null,
    cache_read_usd_per_mtok numeric not null,
    cache_write_usd_per_mtok numeric not null,
    source text not null,
    unique (model, from_time)
);

-- A receipt names the prices it was made with; so they may never become others.
create function model_prices_stay_v1() returns trigger language plpgsql as $$
begin
    raise exception 'a price that was used is never changed or deleted: the book only grows';
end $$;
create trigger model_prices_stay before update or delete or truncate on model_prices
    for each statement execute function model_prices_stay_v1();

-- The row of the book that a cost was counted with. NULL: from before there was a book; in a receipt also
-- where its calls were counted with several. No foreign key: checking it would lock the one row of a model in
-- every commit, and rows of the book stay.
alter table usage_receipts add column price_id bigint;
alter table provider_calls add column price_id bigint;

create schema finance;
comment on schema finance is 'what oncekey''s receipts and calls say, for people who do the accounts; no message text';

create view finance.prices with (security_barrier) as
select price_id, model, from_time, provider, upstream, input_usd_per_mtok, output_usd_per_mtok,
    cache_read_usd_per_mtok, cache_write_usd_per_mtok, source
from public.model_prices;

create view finance.receipts with (security_barrier) as
select u.tenant_id, u.operation_id, u.request_id, u.idempotency_key, u.created_at,
    (u.created_at at time zone 'UTC')::date as day, u.endpoint, u.subject, u.model, u.input_tokens,
    u.cache_read_tokens, u.cache_write_tokens, u.output_tokens, u.reasoning_tokens, u.usage_source,
    u.cost_usd, u.provider_calls, u.price_id, p.input_usd_per_mtok, p.output_usd_per_mtok,
    p.cache_read_usd_per_mtok, p.cache_write_usd_per_mtok
from public.usage_receipts u left join public.model_prices p on p.price_id = u.price_id;

-- Sums are over what is known: NULL where nothing is, and `unknown_usage` says of how many nothing is.
create view finance.daily_usage with (security_barrier) as
select tenant_id, (created_at at time zone 'UTC')::date as day, model, count(*) as operations,
    sum(input_tokens) as input_tokens, sum(cache_read_tokens) as cache_read_tokens,
    sum(cache_write_tokens) as cache_write_tokens, sum(output_tokens) as output_tokens,
    sum(cost_usd) as cost_usd, count(*) filter (where usage_source = 'unknown') as unknown_usage
from public.usage_receipts group by 1, 2, 3;

-- Calls whose output is in no answer: what was paid, or may have been, for nothing. `why` is the kind of
-- failure; `not_used`: it went well, and its operation ended (or is still to end) without it.
create view finance.wasted_calls with (security_barrier) as
select c.tenant_id, c.operation_id, c.request_id, c.call_no, c.started_at, c.ended_at,
    (c.started_at at time zone 'UTC')::date as day, c.provider, c.model, p.upstream, c.route, c.status,
    coalesce(c.failure_kind, 'not_used') as why, c.changed, c.waited_ms, c.input_tokens, c.cache_read_tokens,
    c.cache_write_tokens, c.output_tokens, c.reasoning_tokens, c.cost_usd,
    c.input_tokens is null or c.output_tokens is null as unknown_usage,
    exists (select from public.usage_receipts u where u.tenant_id = c.tenant_id
        and u.operation_id = c.operation_id) as operation_committed
from public.provider_calls c left join public.model_prices p on p.price_id = c.price_id
where not c.counted;

create view finance.daily_waste with (security_barrier) as
select tenant_id, (started_at at time zone 'UTC')::date as day, provider, model,
    coalesce(failure_kind, 'not_used') as why, count(*) as calls, sum(input_tokens) as input_tokens,
    sum(cache_read_tokens) as cache_read_tokens, sum(cache_write_tokens) as cache_write_tokens,
    sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd,
    count(*) filter (where input_tokens is null or output_tokens is null) as unknown_usage
from public.provider_calls where not counted group by 1, 2, 3, 4, 5;

-- Each receipt beside its counted calls, and beside what its operation left: two turns or one parse result.
-- `gone`: the retention or an erasure took them; `differ`: they do not belong together, which is a fault.
create view finance.reconciliation with (security_barrier) as
select u.tenant_id, u.operation_id, u.created_at, (u.created_at at time zone 'UTC')::date as day, u.endpoint,
    u.model, u.usage_source, u.provider_calls as receipt_calls, coalesce(c.calls, 0) as counted_calls,
    u.input_tokens as receipt_input_tokens, c.input_tokens as calls_input_tokens,
    u.cache_read_tokens as receipt_cache_read_tokens, c.cache_read_tokens as calls_cache_read_tokens,
    u.cache_write_tokens as receipt_cache_write_tokens, c.cache_write_tokens as calls_cache_write_tokens,
    u.output_tokens as receipt_output_tokens, c.output_tokens as calls_output_tokens,
    u.cost_usd as receipt_cost_usd, c.cost_usd as calls_cost_usd,
    case when c.calls is null then case when u.provider_calls = 0 then 'match' else 'gone' end
        when c.calls <> u.provider_calls
            or (u.usage_source <> 'estimated' and (c.input_tokens is distinct from u.input_tokens
                or c.cache_read_tokens is distinct from u.cache_read_tokens
                or c.cache_write_tokens is distinct from u.cache_write_tokens
                or c.output_tokens is distinct from u.output_tokens
                or (u.cost_usd is not null and c.cost_usd is distinct from u.cost_usd)))
            then 'differ' else 'match' end as calls,
    coalesce(t.turns, 0) as turns, coalesce(r.results, 0) as parse_results,
    case when coalesce(t.turns, 0) + coalesce(r.results, 0) = 0 then 'gone'
        when u.endpoint = 'chat' and t.turns = 2 and r.results is null then 'match'
        when u.endpoint = 'parse' and r.results = 1 and t.turns is null then 'match'
        else 'differ' end as effect
from public.usage_receipts u
left join (select tenant_id, operation_id, count(*) as calls, sum(input_tokens) as input_tokens,
        sum(cache_read_tokens) as cache_read_tokens, sum(cache_write_tokens) as cache_write_tokens,
        sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd
    from public.provider_calls where counted group by 1, 2) c
    on c.tenant_id = u.tenant_id and c.operation_id = u.operation_id
left join (select tenant_id, operation_id, count(*) as turns from public.turns group by 1, 2) t
    on t.tenant_id = u.tenant_id and t.operation_id = u.operation_id
left join (select tenant_id, operation_id, count(*) as results from public.parse_results group by 1, 2) r
    on r.tenant_id = u.tenant_id and r.operation_id = u.operation_id;

-- A role to be granted to people; nobody logs in as it. Roles belong to the whole server, so another database
-- of it may have made this one already, just now too. Where the owner of these tables may make none, an
-- administrator does; `oncekey migrate` says how, and docs/finance.md.
do $$
begin
    create role oncekey_finance nologin;
exception
    when duplicate_object or unique_violation then null;
    when insufficient_privilege then
        raise notice 'the role oncekey_finance is missing, and this one may not make it: see docs/finance.md';
end $$;
do $$
begin
    if exists (select from pg_roles where rolname = 'oncekey_finance') then
        grant usage on schema finance to oncekey_finance;
        grant select on all tables in schema finance to oncekey_finance;
    end if;
end $$;
