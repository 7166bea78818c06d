//! Ending a run by request, at whatever node it runs: its guard no longer holds, so it cannot write.

use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{Subject, TenantId};

impl Store {
    /// Ends the run under a key as a passing failure of this kind and frees its conversation, as far
    /// as `subject` may see it (`None`: all). `false`: nothing ran.
    pub async fn cancel(
        &self,
        tenant: TenantId,
        key: Uuid,
        subject: Option<Subject>,
        kind: &'static str,
    ) -> Result<bool, StoreError> {
        self.database
            .run("cancel", move |connection| {
                let (tenant, subject) = (tenant.clone(), subject.clone());
                Box::pin(async move {
                    let ended = sqlx::query_scalar!(
                        r#"/* cancel */
                        with ended as (
                            update request_records r set state = 'failed', failure_kind = $4,
                                failure_final = false, completed_at = clock_timestamp()
                            from request_keys k
                            where k.tenant_id = $1 and k.idempotency_key = $2
                                and r.tenant_id = k.tenant_id and r.idempotency_key = k.idempotency_key
                                and r.day = k.day and r.state = 'in_progress'
                                and ($3::text is null or r.subject = $3)
                            returning r.tenant_id, r.idempotency_key, r.conversation_id),
                        freed as (
                            update conversations c set active_key = null
                            where c.tenant_id = $1
                                and c.conversation_id = (select conversation_id from ended)
                                and c.active_key = $2)
                        select count(*) as "ended!" from ended"#,
                        tenant.as_str(),
                        key,
                        subject.as_ref().map(Subject::as_str),
                        kind,
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(ended > 0)
                })
            })
            .await
    }
}
