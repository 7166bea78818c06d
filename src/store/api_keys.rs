//! API keys: only their hashes, their roles and whom they are bound to.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::error::StoreError;
use super::{Store, record};
use crate::domain::ids::{ApiKeyId, Subject, TenantId};
use crate::domain::record::Record;

/// A key to be kept.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    pub tenant: TenantId,
    pub id: ApiKeyId,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    pub role: String,
    pub subject: Option<String>,
}

/// What a valid key says of its bearer.
#[derive(Debug, Clone)]
pub struct KnownKey {
    pub tenant: TenantId,
    pub role: String,
    pub subject: Option<Subject>,
}

/// What an arrival asks before anything else: whose is this API key, and what stands under this
/// idempotency key of theirs?
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    /// SHA-256 of the API key.
    pub bearer: [u8; 32],
    pub key: Uuid,
}

/// A key as `oncekey key list` shows it.
#[derive(Debug, Clone)]
pub struct ApiKeyRow {
    pub tenant_id: String,
    pub key_id: Uuid,
    pub role: String,
    pub subject: Option<String>,
    pub created_at: DateTime<Utc>,
    pub revoked_at: Option<DateTime<Utc>>,
}

impl Store {
    /// The bearer of a key that is not revoked.
    pub async fn api_key(&self, hash: [u8; 32]) -> Result<Option<KnownKey>, StoreError> {
        self.database
            .run("api_keys.find", move |connection| {
                Box::pin(async move {
                    let row = sqlx::query!(
                        "/* api_keys.find */
                        select tenant_id, role, subject from api_keys
                        where key_hash = $1 and revoked_at is null",
                        &hash[..],
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(row.map(|row| KnownKey {
                        tenant: TenantId::new(row.tenant_id),
                        role: row.role,
                        subject: row.subject.map(Subject::new),
                    }))
                })
            })
            .await
    }

    /// The bearer of a key that is not revoked, and what stands under an idempotency key of the
    /// same tenant, in one round trip.
    pub async fn api_key_and_record(
        &self,
        hash: [u8; 32],
        key: Uuid,
    ) -> Result<Option<(KnownKey, Option<Record>)>, StoreError> {
        let asked = Arc::new(Asked { bearer: hash, key });
        match &self.coalescers {
            Some(coalescers) => coalescers.arrivals.submit(self, asked).await,
            None => self.look_up(asked).await,
        }
    }

    pub(super) async fn look_up(
        &self,
        asked: Arc<Asked>,
    ) -> Result<Option<(KnownKey, Option<Record>)>, StoreError> {
        self.database
            .run("api_keys.find_with_record", move |connection| {
                let asked = asked.clone();
                Box::pin(async move {
                    let row =
                        record::read_with_bearer(connection, &asked.bearer, asked.key).await?;
                    row.map_or(Ok(None), |row| known(row, asked.key))
                })
            })
            .await
    }

    /// Keeps a new key.
    pub async fn insert_api_key(&self, new: NewApiKey) -> Result<(), StoreError> {
        self.insert_key(new, false).await.map(|_| ())
    }

    /// Keeps a new key if there is none at all yet. `false`: there was one.
    pub async fn insert_first_api_key(&self, new: NewApiKey) -> Result<bool, StoreError> {
        self.insert_key(new, true).await
    }

    async fn insert_key(&self, new: NewApiKey, only_first: bool) -> Result<bool, StoreError> {
        self.database
            .run("api_keys.insert", move |connection| {
                let new = new.clone();
                Box::pin(async move {
                    let done = sqlx::query!(
                        "/* api_keys.insert */
                        insert into api_keys (tenant_id, key_id, key_hash, role, subject)
                        select $1, $2, $3, $4, $5
                        where not $6 or not exists (select from api_keys)",
                        new.tenant.as_str(),
                        new.id.0,
                        &new.hash[..],
                        new.role,
                        new.subject,
                        only_first,
                    )
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected() == 1)
                })
            })
            .await
    }

    /// All keys, revoked ones too.
    pub async fn api_keys(&self) -> Result<Vec<ApiKeyRow>, StoreError> {
        self.database
            .run("api_keys.list", |connection| {
                Box::pin(async move {
                    Ok(sqlx::query_as!(
                        ApiKeyRow,
                        "/* api_keys.list */
                        select tenant_id, key_id, role, subject, created_at, revoked_at
                        from api_keys order by tenant_id, created_at"
                    )
                    .fetch_all(connection)
                    .await?)
                })
            })
            .await
    }

    /// From now on this key is unknown. `false`: there is no such key, or it was revoked before.
    pub async fn revoke_api_key(&self, id: ApiKeyId) -> Result<bool, StoreError> {
        self.database
            .run("api_keys.revoke", move |connection| {
                Box::pin(async move {
                    let done = sqlx::query!(
                        "/* api_keys.revoke */
                        update api_keys set revoked_at = clock_timestamp()
                        where key_id = $1 and revoked_at is null",
                        id.0,
                    )
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected() == 1)
                })
            })
            .await
    }
}

/// The bearer of an API key that is valid, and the record under the idempotency key that it was looked up
/// with.
pub(super) fn known(
    mut row: record::Row,
    key: Uuid,
) -> Result<Option<(KnownKey, Option<Record>)>, StoreError> {
    let (tenant, role) = (row.bearer_tenant.take(), row.bearer_role.take());
    let (Some(tenant), Some(role)) = (tenant, role) else { return Ok(None) };
    let tenant = TenantId::new(tenant);
    let subject = row.bearer_subject.take().map(Subject::new);
    let record = row.record(&tenant, key)?;
    Ok(Some((KnownKey { tenant, role, subject }, record)))
}
