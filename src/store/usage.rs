//! Sums of receipts, for finance.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{Subject, TenantId};
use crate::domain::usage_report::{UsageQuery, UsageRow};

/// A report over years of a busy tenant takes longer than any other statement may.
const LIMIT: Duration = Duration::from_secs(310);

impl Store {
    /// The receipts of a tenant, summed; of one end user, or of all for `None`. In the order of days
    /// and models; no row where there is no receipt. Days are those of the commit, in UTC.
    pub async fn usage(
        &self,
        tenant: TenantId,
        subject: Option<Subject>,
        query: UsageQuery,
    ) -> Result<Vec<UsageRow>, StoreError> {
        self.database
            .run_within(LIMIT, "usage.sum", move |connection| {
                let (tenant, subject) = (tenant.clone(), subject.clone());
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    for_a_report(&mut transaction).await?;
                    let rows = sum(&mut transaction, &tenant, subject.as_ref(), query).await?;
                    transaction.rollback().await?;
                    Ok(rows)
                })
            })
            .await
    }

    /// Whoever has a receipt, in order. Each name is one look into an index, however many receipts bear it.
    pub async fn billed_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        self.database
            .run_within(LIMIT, "usage.tenants", |connection| {
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    for_a_report(&mut transaction).await?;
                    let tenants = sqlx::query_scalar!(
                        r#"/* usage.tenants */
                        with recursive tenants as (
                            (select tenant_id from usage_receipts order by tenant_id limit 1)
                            union all
                            select (select u.tenant_id from usage_receipts u
                                where u.tenant_id > t.tenant_id order by u.tenant_id limit 1)
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

/// A report has its own time, and its own plan: one that was made while there were few receipts would be
/// kept when there are many.
async fn for_a_report(connection: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::raw_sql(
        "set local statement_timeout = '5min'; set local plan_cache_mode = force_custom_plan",
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Day by day, each a range of the index and a handful of models: so nothing has to be sorted, and the
/// memory does not grow with the receipts. Days
/// without a receipt at either end are not looked at, so a range may be as wide as the calendar.
async fn sum(
    connection: &mut PgConnection,
    tenant: &TenantId,
    subject: Option<&Subject>,
    query: UsageQuery,
) -> Result<Vec<UsageRow>, StoreError> {
    let rows = sqlx::query_as!(
        UsageRow,
        r#"/* usage.sum */
        select case when $5 then days.day end as "day?", case when $6 then sums.model end as "model?",
            sum(operations)::bigint as "operations!", sum(input_tokens) as input_tokens,
            sum(cache_read_tokens) as cache_read_tokens, sum(cache_write_tokens) as cache_write_tokens,
            sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd,
            sum(unknown_usage)::bigint as "unknown_usage!"
        from (select (first at time zone 'UTC')::date + n as day
            from (select greatest($3, oldest) as first, least($4, newest) as last
                from (select (select created_at from usage_receipts where tenant_id = $1
                            order by created_at limit 1) as oldest,
                        (select created_at from usage_receipts where tenant_id = $1
                            order by created_at desc limit 1) as newest) receipts
                where oldest is not null) span,
                generate_series(0, (last at time zone 'UTC')::date - (first at time zone 'UTC')::date) n) days,
            lateral (select model, count(*) as operations, sum(input_tokens) as input_tokens,
                    sum(cache_read_tokens) as cache_read_tokens,
                    sum(cache_write_tokens) as cache_write_tokens,
                    sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd,
                    count(*) filter (where usage_source = 'unknown') as unknown_usage
                from usage_receipts
                where tenant_id = $1 and ($2::text is null or subject = $2)
                    and created_at >= greatest($3, days.day::timestamp at time zone 'UTC')
                    and created_at < least($4, (days.day + 1)::timestamp at time zone 'UTC')
                group by model) sums
        group by 1, 2 order by 1, 2"#,
        tenant.as_str(),
        subject.map(Subject::as_str),
        query.from.start(),
        query.to.start(),
        query.by_day,
        query.by_model,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}
