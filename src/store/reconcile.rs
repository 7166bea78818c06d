//! Our calls as a provider's bill has them: summed by day, model and fate. And whether the receipts of a
//! time are what their calls say.
//!
//! Calls have no index on time; their operations are named by UUIDv7, so those of a time are a range of the
//! primary key, taken wider than an operation can last.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use sqlx::{Connection, PgConnection};

use super::Store;
use super::error::StoreError;
use super::retention::named_at;
use crate::domain::ids::TenantId;
use crate::domain::provider_bill::TokenSums;
use crate::domain::reconcile::{CallSums, OurCalls};

/// For one tenant.
const LIMIT: Duration = Duration::from_secs(610);
/// How far the clocks of nodes may be apart.
const SKEW: TimeDelta = TimeDelta::days(1);

/// A time, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from: DateTime<Utc>,
    /// Not included.
    pub to: DateTime<Utc>,
}

/// The receipts of a time beside the calls that they count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiptCheck {
    pub receipts: u64,
    /// Their calls are gone, by the retention.
    pub without_calls: u64,
    /// They say something else than their calls.
    pub differing: u64,
    /// Their usage was not told.
    pub unknown: u64,
}

impl Store {
    /// A tenant's calls that began in this time. `longest` is how long an operation may last over all its
    /// runs. A call from before there was a book of prices has no upstream: its own model's name stands there.
    pub async fn calls_by_day(
        &self,
        tenant: TenantId,
        span: Span,
        longest: Duration,
    ) -> Result<Vec<OurCalls>, StoreError> {
        let longest = TimeDelta::from_std(longest).unwrap_or(TimeDelta::MAX);
        let first = span.from.checked_sub_signed(longest);
        let first =
            first.and_then(|it| it.checked_sub_signed(SKEW)).unwrap_or(DateTime::UNIX_EPOCH);
        let last = span.to.checked_add_signed(SKEW).unwrap_or(span.to);
        self.database
            .run_within(LIMIT, "reconcile.calls", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    for_a_report(&mut transaction).await?;
                    let rows = sqlx::query!(
                        r#"/* reconcile.calls */
                        select (c.started_at at time zone 'UTC')::date as "day!", c.provider,
                            coalesce(p.upstream, c.model) as "upstream!",
                            case when not c.counted then coalesce(c.failure_kind, 'not_used') end as "wasted?",
                            count(*) as "calls!", coalesce(sum(c.input_tokens), 0) as "input!",
                            coalesce(sum(c.cache_read_tokens), 0) as "cache_read!",
                            coalesce(sum(c.cache_write_tokens), 0) as "cache_write!",
                            coalesce(sum(c.output_tokens), 0) as "output!",
                            coalesce(sum(c.cost_usd), 0) as "cost!",
                            count(*) filter (where (c.input_tokens is null or c.output_tokens is null)
                                and (c.status is null or c.status < 400)) as "unknown!"
                        from provider_calls c left join model_prices p on p.price_id = c.price_id
                        where c.tenant_id = $1 and c.operation_id >= $2 and c.operation_id < $3
                            and c.started_at >= $4 and c.started_at < $5
                        group by 1, 2, 3, 4 order by 1, 2, 3, 4"#,
                        tenant.as_str(),
                        named_at(first),
                        named_at(last),
                        span.from,
                        span.to,
                    )
                    .fetch_all(&mut *transaction)
                    .await?;
                    transaction.rollback().await?;
                    let number = |it: Decimal| it.to_i128().unwrap_or(i128::MAX);
                    let count = |it: i64| u64::try_from(it).unwrap_or(0);
                    Ok(rows
                        .into_iter()
                        .map(|row| OurCalls {
                            day: row.day,
                            provider: row.provider,
                            upstream: row.upstream,
                            wasted: row.wasted,
                            sums: CallSums {
                                calls: count(row.calls),
                                tokens: TokenSums {
                                    input: number(row.input),
                                    cache_read: number(row.cache_read),
                                    cache_write: number(row.cache_write),
                                    output: number(row.output),
                                },
                                cost: row.cost,
                                unknown: count(row.unknown),
                            },
                        })
                        .collect())
                })
            })
            .await
    }

    /// A tenant's receipts of this time beside their counted calls.
    pub async fn check_receipts(
        &self,
        tenant: TenantId,
        span: Span,
    ) -> Result<ReceiptCheck, StoreError> {
        self.database
            .run_within(LIMIT, "reconcile.receipts", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    for_a_report(&mut transaction).await?;
                    let row = sqlx::query!(
                        r#"/* reconcile.receipts */
                        select count(*) as "receipts!",
                            count(*) filter (where c.calls = 0 and u.provider_calls > 0) as "without_calls!",
                            count(*) filter (where c.calls > 0 and (c.calls <> u.provider_calls
                                or (u.usage_source <> 'estimated' and (c.input is distinct from u.input_tokens
                                    or c.cache_read is distinct from u.cache_read_tokens
                                    or c.cache_write is distinct from u.cache_write_tokens
                                    or c.output is distinct from u.output_tokens))
                                or (u.cost_usd is not null and c.cost is distinct from u.cost_usd)))
                                as "differing!",
                            count(*) filter (where u.usage_source = 'unknown') as "unknown!"
                        from usage_receipts u, lateral (
                            select count(*) as calls, sum(input_tokens) as input,
                                sum(cache_read_tokens) as cache_read,
                                sum(cache_write_tokens) as cache_write, sum(output_tokens) as output,
                                sum(cost_usd) as cost
                            from provider_calls p where p.tenant_id = u.tenant_id
                                and p.operation_id = u.operation_id and p.counted) c
                        where u.tenant_id = $1 and u.created_at >= $2 and u.created_at < $3"#,
                        tenant.as_str(),
                        span.from,
                        span.to,
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    transaction.rollback().await?;
                    let count = |it: i64| u64::try_from(it).unwrap_or(0);
                    Ok(ReceiptCheck {
                        receipts: count(row.receipts),
                        without_calls: count(row.without_calls),
                        differing: count(row.differing),
                        unknown: count(row.unknown),
                    })
                })
            })
            .await
    }

    /// Whoever made a call, in order. Each name is one look into an index.
    pub async fn calling_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        self.database
            .run_within(LIMIT, "reconcile.tenants", |connection| {
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    for_a_report(&mut transaction).await?;
                    let tenants = sqlx::query_scalar!(
                        r#"/* reconcile.tenants */
                        with recursive tenants as (
                            (select tenant_id from provider_calls order by tenant_id limit 1)
                            union all
                            select (select c.tenant_id from provider_calls c
                                where c.tenant_id > t.tenant_id order by c.tenant_id limit 1)
                            from tenants t where t.tenant_id is not null)
                        select tenant_id as "tenant_id!" from tenants where tenant_id is not null"#
                    )
                    .fetch_all(&mut *transaction)
                    .await?;
                    transaction.rollback().await?;
                    Ok(tenants.into_iter().map(TenantId::new).collect())
                })
            })
            .await
    }
}

/// As for any report: its own time, and its own plan.
async fn for_a_report(connection: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::raw_sql(
        "set local statement_timeout = '10min'; set local plan_cache_mode = force_custom_plan",
    )
    .execute(connection)
    .await?;
    Ok(())
}
