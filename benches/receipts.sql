-- A month of two million receipts, and what the daily report over it takes. In a scratch database with
-- oncekey's schema (`oncekey migrate`), since the rows stay there:
--
--   psql -X -v ON_ERROR_STOP=1 "$SCRATCH_URL" -f benches/receipts.sql
--
-- One tenant has them all, in the order of time, as commits write them.
\set receipts 2000000
insert into usage_receipts (tenant_id, operation_id, request_id, idempotency_key, endpoint, subject, model,
    input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, usage_source, cost_usd,
    provider_calls, event_id, record_day, created_at, price_id)
select 'bench', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'chat', 'user-' || n % 50000,
    'model-' || n % 5, t.input, n % 300, 0, t.output, 0, case when t.input is null then 'unknown' else 'provider' end,
    t.input * 0.000001 + t.output * 0.000005, 1, gen_random_uuid(), (timestamp '2026-08-01' + t.after)::date,
    timestamptz '2026-08-01T00:00:00Z' + t.after, 1
from generate_series(0, :receipts - 1) n,
    lateral (select n * interval '31 days' / :receipts as after,
        case when n % 1000 <> 0 then 100 + n % 4000 end as input,
        case when n % 1000 <> 0 then 10 + n % 900 end as output) t;
vacuum (analyze) usage_receipts;

-- As a node's session is set for a report, and as src/store/usage.rs asks.
set plan_cache_mode = force_custom_plan; set enable_seqscan = off; set jit = off; set timezone = 'UTC';
prepare report (text, text, timestamptz, timestamptz, bool, bool) as
select case when $5 then days.day end as day, case when $6 then sums.model end as model,
    sum(operations)::bigint as operations, sum(input_tokens) as input_tokens,
    sum(cache_read_tokens) as cache_read_tokens, sum(cache_write_tokens) as cache_write_tokens,
    sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd, sum(unknown_usage)::bigint as unknown_usage
from (select (first at time zone 'UTC')::date + n as day
    from (select greatest($3, oldest) as first, least($4, newest) as last
        from (select (select created_at from usage_receipts where tenant_id = $1
                    order by created_at limit 1) as oldest,
                (select created_at from usage_receipts where tenant_id = $1
                    order by created_at desc limit 1) as newest) receipts
        where oldest is not null) span,
        generate_series(0, (last at time zone 'UTC')::date - (first at time zone 'UTC')::date) n) days,
    lateral (select model, count(*) as operations, sum(input_tokens) as input_tokens,
            sum(cache_read_tokens) as cache_read_tokens, sum(cache_write_tokens) as cache_write_tokens,
            sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd,
            count(*) filter (where usage_source = 'unknown') as unknown_usage
        from usage_receipts
        where tenant_id = $1 and ($2::text is null or subject = $2)
            and created_at >= greatest($3, days.day::timestamp at time zone 'UTC')
            and created_at < least($4, (days.day + 1)::timestamp at time zone 'UTC')
        group by model) sums
group by 1, 2 order by 1, 2;
\timing on
\o /dev/null
\echo the month
execute report ('bench', null, '2026-08-01', '2026-09-01', true, true);
execute report ('bench', null, '2026-08-01', '2026-09-01', true, true);
execute report ('bench', null, '2026-08-01', '2026-09-01', true, true);
execute report ('bench', null, '2026-08-01', '2026-09-01', true, true);
execute report ('bench', null, '2026-08-01', '2026-09-01', true, true);
\echo all of the calendar
execute report ('bench', null, '0001-01-01', '9999-12-31', true, true);
\echo a day
execute report ('bench', null, '2026-08-15', '2026-08-16', true, true);
\echo a tenant that has none
execute report ('nobody', null, '0001-01-01', '9999-12-31', true, true);
\o
\timing off
explain (analyze, buffers, costs off) execute report ('bench', null, '2026-08-01', '2026-09-01', true, true);
select pg_size_pretty(pg_relation_size('usage_receipts')) as receipts,
    pg_size_pretty(pg_relation_size('usage_receipts_by_time')) as by_time;
