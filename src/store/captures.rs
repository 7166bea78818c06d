//! Which uploads were stored, and where their bytes lie.

use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{OperationId, RequestId, Subject, TenantId};

/// One stored input of a parse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    pub id: Uuid,
    pub operation_id: OperationId,
    /// The run that stored it.
    pub request_id: RequestId,
    pub sha256: [u8; 32],
    pub content_type: String,
    pub bytes: i64,
    /// As the object store reads it.
    pub location: String,
}

impl Store {
    /// The input of an operation, where an earlier run stored it.
    pub async fn capture_of(
        &self,
        tenant: TenantId,
        operation: OperationId,
    ) -> Result<Option<Capture>, StoreError> {
        self.database
            .run("captures.of", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let row = sqlx::query_as!(
                        Row,
                        "/* captures.of */
                        select capture_id, operation_id, request_id, sha256, content_type, bytes, location
                        from captures where tenant_id = $1 and operation_id = $2",
                        tenant.as_str(),
                        operation.0,
                    )
                    .fetch_optional(connection)
                    .await?;
                    row.map(Capture::try_from).transpose()
                })
            })
            .await
    }

    /// A stored input by its id, as far as `subject` may see it; `None` for the subject sees all.
    pub async fn capture(
        &self,
        tenant: TenantId,
        id: Uuid,
        subject: Option<Subject>,
    ) -> Result<Option<Capture>, StoreError> {
        self.database
            .run("captures.get", move |connection| {
                let (tenant, subject) = (tenant.clone(), subject.clone());
                Box::pin(async move {
                    let row = sqlx::query_as!(
                        Row,
                        "/* captures.get */
                        select capture_id, operation_id, request_id, sha256, content_type, bytes, location
                        from captures
                        where tenant_id = $1 and capture_id = $2 and ($3::text is null or subject = $3)",
                        tenant.as_str(),
                        id,
                        subject.as_ref().map(Subject::as_str),
                    )
                    .fetch_optional(connection)
                    .await?;
                    row.map(Capture::try_from).transpose()
                })
            })
            .await
    }

    /// Writes down an input whose bytes are stored. One that is there already stays.
    pub async fn add_capture(
        &self,
        tenant: TenantId,
        subject: Option<Subject>,
        capture: Capture,
    ) -> Result<(), StoreError> {
        self.database
            .run("captures.add", move |connection| {
                let (tenant, subject, capture) = (tenant.clone(), subject.clone(), capture.clone());
                Box::pin(async move {
                    sqlx::query!(
                        "/* captures.add */
                        insert into captures (tenant_id, capture_id, operation_id, request_id, subject,
                            sha256, content_type, bytes, location)
                        values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                        on conflict do nothing",
                        tenant.as_str(),
                        capture.id,
                        capture.operation_id.0,
                        capture.request_id.0,
                        subject.as_ref().map(Subject::as_str),
                        &capture.sha256[..],
                        capture.content_type,
                        capture.bytes,
                        capture.location,
                    )
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }
}

struct Row {
    capture_id: Uuid,
    operation_id: Uuid,
    request_id: Uuid,
    sha256: Vec<u8>,
    content_type: String,
    bytes: i64,
    location: String,
}

impl TryFrom<Row> for Capture {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let sha256 = row.sha256.try_into().map_err(|_| StoreError::Corrupt {
            table: "captures",
            column: "sha256",
            key: row.capture_id.to_string(),
            problem: "not 32 bytes".to_owned(),
        })?;
        Ok(Capture {
            id: row.capture_id,
            operation_id: OperationId(row.operation_id),
            request_id: RequestId(row.request_id),
            sha256,
            content_type: row.content_type,
            bytes: row.bytes,
            location: row.location,
        })
    }
}
