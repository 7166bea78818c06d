//! What arrivals wait for: many runs looked at in one statement.

use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::TenantId;
use crate::domain::liveness::{Liveness, LivenessFacts, Owner};

impl Store {
    /// Of these keys, those that are no longer in the hands of a living run.
    pub async fn no_longer_running(
        &self,
        keys: Vec<(TenantId, Uuid)>,
    ) -> Result<Vec<(TenantId, Uuid)>, StoreError> {
        let rules = self.liveness;
        let (tenants, ids): (Vec<String>, Vec<Uuid>) =
            keys.into_iter().map(|(tenant, key)| (tenant.as_str().to_owned(), key)).unzip();
        self.database
            .run("watch", move |connection| {
                let (tenants, ids) = (tenants.clone(), ids.clone());
                Box::pin(async move {
                    let rows = sqlx::query!(
                        r#"/* watch */
                        select w.tenant_id as "tenant_id!", w.idempotency_key as "idempotency_key!",
                            r.state as "state?", r.heartbeat_at as "heartbeat_at?",
                            n.node_id as "known_owner?", n.dead_at as "owner_dead_at?",
                            (select first_seen from server_epoch
                                where server_start = pg_postmaster_start_time()) as "epoch?",
                            clock_timestamp() as "now!"
                        from unnest($1::text[], $2::uuid[]) as w (tenant_id, idempotency_key)
                        left join lateral (
                            select r.state, r.heartbeat_at, r.owner from request_keys k
                            join request_records r on r.tenant_id = k.tenant_id
                                and r.idempotency_key = k.idempotency_key and r.day = k.day
                            where k.tenant_id = w.tenant_id and k.idempotency_key = w.idempotency_key
                            limit 1) r on true
                        left join nodes n on n.node_id = r.owner"#,
                        &tenants,
                        &ids,
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(rows
                        .into_iter()
                        .filter(|row| {
                            let (Some("in_progress"), Some(heartbeat_at)) =
                                (row.state.as_deref(), row.heartbeat_at)
                            else {
                                return true;
                            };
                            let owner = Owner::of(row.known_owner, row.owner_dead_at);
                            let (now, epoch) = (row.now, row.epoch);
                            let facts = LivenessFacts { now, heartbeat_at, owner, epoch };
                            rules.judge(&facts) != Liveness::Alive
                        })
                        .map(|row| (TenantId::new(row.tenant_id), row.idempotency_key))
                        .collect())
                })
            })
            .await
    }
}
