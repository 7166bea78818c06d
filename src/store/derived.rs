//! Keys made from the request where the client sent none: one row per identity, decided by one upsert.

use std::time::Duration;

use uuid::Uuid;

use super::error::StoreError;
use super::{Store, interval};
use crate::domain::ids::TenantId;

impl Store {
    /// The key of an identity: the one of its last arrival-that-began, while that is younger than
    /// `window`, else `candidate`. Exact over a window's edge, whoever arrives at once: two windows
    /// probed one after the other would let both sides win.
    pub async fn derived_key(
        &self,
        tenant: TenantId,
        identity: [u8; 32],
        candidate: Uuid,
        window: Duration,
    ) -> Result<Uuid, StoreError> {
        let (window, offset) = (interval(window), self.clock_offset);
        self.database
            .run("derived.key", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let begun = sqlx::query_scalar!(
                        "/* derived.begin */
                        insert into derived_keys as d (tenant_id, identity, first_at, idempotency_key)
                        values ($1, $2, clock_timestamp() + $5::interval, $3)
                        on conflict (tenant_id, identity) do update
                            set first_at = excluded.first_at, idempotency_key = excluded.idempotency_key
                            where d.first_at <= excluded.first_at - $4::interval
                        returning idempotency_key",
                        tenant.as_str(),
                        &identity[..],
                        candidate,
                        window,
                        offset,
                    )
                    .fetch_optional(&mut *connection)
                    .await?;
                    if let Some(key) = begun {
                        return Ok(key);
                    }
                    let standing = sqlx::query_scalar!(
                        "/* derived.read */
                        select idempotency_key from derived_keys where tenant_id = $1 and identity = $2",
                        tenant.as_str(),
                        &identity[..],
                    )
                    .fetch_optional(connection)
                    .await?;
                    // Cleared away between the two statements: old enough for that, so this one is new.
                    Ok(standing.unwrap_or(candidate))
                })
            })
            .await
    }
}
