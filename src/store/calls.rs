//! The calls of an operation, as they were kept: the way that it took.

use chrono::{DateTime, Utc};
use sqlx::types::Decimal;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{OperationId, RequestId, TenantId};
use crate::domain::usage::Usage;

/// One call that was kept.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptCall {
    /// The run that made it.
    pub request_id: RequestId,
    /// From 1 within its run.
    pub call_no: i32,
    pub counted: bool,
    pub provider: String,
    pub model: String,
    pub route: String,
    /// NULL where no response came.
    pub status: Option<i32>,
    pub failure_kind: Option<String>,
    pub changed: Option<String>,
    /// Milliseconds between calls and for a slot.
    pub waited_ms: i64,
    pub usage: Usage,
    pub cost: Option<Decimal>,
    pub started_at: DateTime<Utc>,
    pub ended_at: DateTime<Utc>,
}

impl Store {
    /// All calls of an operation over all its runs, in the order of their start.
    pub async fn calls_of(
        &self,
        tenant: TenantId,
        operation: OperationId,
    ) -> Result<Vec<KeptCall>, StoreError> {
        self.database
            .run("calls.of", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let rows = sqlx::query!(
                        "/* calls.of */
                        select request_id, call_no, counted, provider, model, route, status, failure_kind,
                            changed, waited_ms, input_tokens, cache_read_tokens, cache_write_tokens,
                            output_tokens, reasoning_tokens, cost_usd, started_at, ended_at
                        from provider_calls where tenant_id = $1 and operation_id = $2
                        order by started_at, request_id, call_no",
                        tenant.as_str(),
                        operation.0,
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(rows
                        .into_iter()
                        .map(|row| KeptCall {
                            request_id: RequestId(row.request_id),
                            call_no: row.call_no,
                            counted: row.counted,
                            provider: row.provider,
                            model: row.model,
                            route: row.route,
                            status: row.status,
                            failure_kind: row.failure_kind,
                            changed: row.changed,
                            waited_ms: row.waited_ms,
                            usage: Usage {
                                input_tokens: row.input_tokens,
                                cache_read_tokens: row.cache_read_tokens,
                                cache_write_tokens: row.cache_write_tokens,
                                output_tokens: row.output_tokens,
                                reasoning_tokens: row.reasoning_tokens,
                            },
                            cost: row.cost_usd,
                            started_at: row.started_at,
                            ended_at: row.ended_at,
                        })
                        .collect())
                })
            })
            .await
    }
}
