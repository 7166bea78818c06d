//! Where a run is, and what its node is asked with.

use super::Store;
use super::error::StoreError;
use crate::domain::ids::NodeId;
use crate::domain::peer::ClusterSecret;
use crate::domain::record::{Guard, RecordKey};

/// The node whose run holds, or held, a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOwner {
    pub node: NodeId,
    /// How other nodes reach it.
    pub advertised: String,
}

impl Store {
    /// The living node of this run. `None`: the record is another run's, or the node is not in
    /// `nodes` or dead.
    pub async fn owner_of(
        &self,
        at: RecordKey,
        guard: Guard,
    ) -> Result<Option<RunOwner>, StoreError> {
        self.database
            .run("owner.read", move |connection| {
                let at = at.clone();
                Box::pin(async move {
                    let row = sqlx::query!(
                        r#"/* owner.read */
                        select n.node_id, n.advertised
                        from request_records r join nodes n on n.node_id = r.owner
                        where r.tenant_id = $1 and r.idempotency_key = $2 and r.day = $3
                            and r.fence = $4 and r.request_id = $5 and n.dead_at is null"#,
                        at.tenant.as_str(),
                        at.key,
                        at.day,
                        guard.fence.0,
                        guard.request_id.0,
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(row.and_then(|row| {
                        let node = NodeId(i32::try_from(row.node_id).ok()?);
                        Some(RunOwner { node, advertised: row.advertised })
                    }))
                })
            })
            .await
    }

    /// What the nodes on this database share; `fresh` where there is nothing yet.
    pub async fn cluster_secret(&self, fresh: [u8; 32]) -> Result<ClusterSecret, StoreError> {
        self.database
            .run("owner.secret", move |connection| {
                Box::pin(async move {
                    // Two statements, so that the second sees what another node was faster with.
                    sqlx::query!(
                        "/* owner.make_secret */
                        insert into cluster_secret (secret) values ($1) on conflict (one) do nothing",
                        fresh.as_slice(),
                    )
                    .execute(&mut *connection)
                    .await?;
                    let secret = sqlx::query_scalar!(
                        "/* owner.secret */ select secret from cluster_secret where one"
                    )
                    .fetch_one(&mut *connection)
                    .await?;
                    let secret: [u8; 32] = secret.try_into().map_err(|_| StoreError::Corrupt {
                        table: "cluster_secret",
                        column: "secret",
                        key: "true".to_owned(),
                        problem: "not 32 bytes".to_owned(),
                    })?;
                    Ok(ClusterSecret::new(secret))
                })
            })
            .await
    }
}
