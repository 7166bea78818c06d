//! Sums of receipts, for finance.

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{Subject, TenantId};
use crate::domain::usage_report::{UsageQuery, UsageRow};

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
            .run("usage.sum", move |connection| {
                let (tenant, subject) = (tenant.clone(), subject.clone());
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        UsageRow,
                        r#"/* usage.sum */
                        select day as "day?", model as "model?", count(*) as "operations!",
                            sum(input_tokens) as input_tokens,
                            sum(cache_read_tokens) as cache_read_tokens,
                            sum(cache_write_tokens) as cache_write_tokens,
                            sum(output_tokens) as output_tokens, sum(cost_usd) as cost_usd,
                            count(*) filter (where usage_source = 'unknown') as "unknown_usage!"
                        from (select case when $5 then (created_at at time zone 'UTC')::date end as day,
                                case when $6 then model end as model, input_tokens, cache_read_tokens,
                                cache_write_tokens, output_tokens, cost_usd, usage_source
                            from usage_receipts
                            where tenant_id = $1 and created_at >= $3 and created_at < $4
                                and ($2::text is null or subject = $2)) receipts
                        group by day, model order by day, model"#,
                        tenant.as_str(),
                        subject.as_ref().map(Subject::as_str),
                        query.from.start(),
                        query.to.start(),
                        query.by_day,
                        query.by_model,
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(rows)
                })
            })
            .await
    }

    /// Whoever has a receipt, in order.
    pub async fn billed_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        self.database
            .run("usage.tenants", |connection| {
                Box::pin(async move {
                    let tenants = sqlx::query_scalar!(
                        "/* usage.tenants */
                        select distinct tenant_id from usage_receipts order by tenant_id"
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(tenants.into_iter().map(TenantId::new).collect())
                })
            })
            .await
    }
}
