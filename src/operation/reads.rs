//! What can be asked without running anything.

use std::time::Duration;

use uuid::Uuid;

use super::parse::input_of;
use super::{Operations, database_problem};
use crate::captures::CapturesError;
use crate::domain::api_key::{ApiKey, ApiRole, Bearer};
use crate::domain::chat;
use crate::domain::failure::FailureKind;
use crate::domain::ids::{ConversationId, OperationId, RequestId, Subject, TenantId};
use crate::domain::parse::Input;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::record::{Record, State};
use crate::domain::usage_report::{UsageQuery, UsageRow};
use crate::domain::verdict::detail_of;
use crate::store::{DAYS_AHEAD, Deletion, KeptCall, KnownKey, StoreError, TurnPage};

/// Whether this node should get traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// With what an operator should look at before it is too late.
    Ready {
        warnings: Vec<String>,
    },
    Draining,
    NoDatabase,
    NoPartition,
}

/// How the deletion of a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Removed,
    Missing,
    /// An operation runs in it.
    Busy {
        retry_after: Duration,
    },
}

impl Operations {
    /// The bearer of an API key. `None`: unknown or revoked.
    pub async fn bearer(&self, key: &ApiKey) -> Result<Option<Bearer>, StoreError> {
        self.0.store.api_key(key.hash()).await?.map(bearer).transpose()
    }

    /// The bearer of an API key and, where a verdict stands under the idempotency key of an arrival,
    /// that one as well: a retry of what is done costs one round trip.
    pub async fn bearer_and_verdict(
        &self,
        key: &ApiKey,
        operation: Uuid,
    ) -> Result<Option<(Bearer, Option<Box<Record>>)>, StoreError> {
        let known = self.0.store.api_key_and_record(key.hash(), operation).await?;
        let Some((known, record)) = known else { return Ok(None) };
        let verdict = record.filter(|record| {
            // Anything else may change until it is acted upon, and is read again by the claim.
            matches!(record.state, State::Committed(_) | State::FailedFinal(_))
        });
        Ok(Some((bearer(known)?, verdict.map(Box::new))))
    }

    /// The provider calls of an operation, over all its runs.
    pub async fn calls(
        &self,
        tenant: TenantId,
        operation: OperationId,
    ) -> Result<Vec<KeptCall>, StoreError> {
        self.0.store.calls_of(tenant, operation).await
    }

    /// The record under a key, as far as `subject` may see it; `None` for the subject sees all.
    pub async fn record(
        &self,
        tenant: TenantId,
        key: Uuid,
        subject: Option<&Subject>,
    ) -> Result<Option<Record>, StoreError> {
        let record = self.0.store.record(tenant, key).await?;
        Ok(record.filter(|record| subject.is_none() || record.subject.as_ref() == subject))
    }

    /// Ends a run in progress as a passing failure, at whatever node; otherwise changes nothing.
    /// Returns the record as it is then. `None`: there is none that `subject` may see.
    pub async fn cancel(
        &self,
        tenant: TenantId,
        key: Uuid,
        subject: Option<Subject>,
    ) -> Result<Option<Record>, StoreError> {
        let kind = FailureKind::Cancelled.as_str();
        if self.0.store.cancel(tenant.clone(), key, subject.clone(), kind).await? {
            // A run at another node learns it from its next beat; it cannot write meanwhile.
            self.0.runs.cancel(&tenant, key);
            self.0.waiting.wake(&tenant, key, None);
            tracing::info!(event = "cancelled", tenant_id = %tenant, "a run was cancelled");
        }
        self.record(tenant, key, subject.as_ref()).await
    }

    /// Deletes a conversation; its receipts stay.
    pub async fn delete_conversation(
        &self,
        tenant: TenantId,
        conversation: ConversationId,
        subject: Option<Subject>,
    ) -> Result<Removal, StoreError> {
        let deletion = self.0.store.delete_conversation(tenant, conversation, subject).await?;
        Ok(match deletion {
            Deletion::Deleted => Removal::Removed,
            Deletion::Missing => Removal::Missing,
            Deletion::Busy(holder) => {
                let so_far = (holder.now - holder.claimed_at).to_std().unwrap_or_default();
                Removal::Busy { retry_after: self.0.pace(chat::ENDPOINT).retry_after(so_far) }
            }
        })
    }

    /// A page of a conversation.
    pub async fn turns(
        &self,
        tenant: TenantId,
        conversation: ConversationId,
        subject: Option<Subject>,
        after: i64,
        limit: i64,
    ) -> Result<Option<TurnPage>, StoreError> {
        self.0.store.turns(tenant, conversation, subject, after, limit).await
    }

    /// The receipts of a tenant, or of one end user, summed.
    pub async fn usage(
        &self,
        tenant: TenantId,
        subject: Option<Subject>,
        query: UsageQuery,
    ) -> Result<Vec<UsageRow>, StoreError> {
        self.0.store.usage(tenant, subject, query).await
    }

    /// A stored input of a tenant, or of one end user, to be parsed once more.
    pub async fn stored_input(
        &self,
        id: RequestId,
        tenant: TenantId,
        subject: Option<Subject>,
        capture: Uuid,
    ) -> Result<Input, Problem> {
        let found = self.0.store.capture(tenant, capture, subject).await;
        let found = found.map_err(|error| database_problem(id, &error))?;
        let missing = || {
            let detail = "There is no stored input with this capture_id.";
            Problem::new(ErrorCode::NotFound, id, detail)
        };
        let capture = found.ok_or_else(missing)?;
        let bytes = self.0.parsing.captures.get(&capture.location).await.map_err(|error| {
            tracing::error!(event = "capture_failed", request_id = %id, capture_id = %capture.id, %error, "a stored input could not be read");
            match error {
                // Deleted behind our back; asking again brings nothing back.
                CapturesError::Missing { .. } => missing(),
                error if error.is_passing() => {
                    let detail = "The stored input cannot be read just now; send the same request again.";
                    Problem::new(ErrorCode::DatabaseUnavailable, id, detail)
                }
                CapturesError::Location { .. } | CapturesError::Store { .. } => {
                    Problem::new(ErrorCode::Internal, id, detail_of(FailureKind::Internal))
                }
            }
        })?;
        Ok(input_of(&capture.content_type, bytes))
    }

    /// Asks the database and the lifecycle.
    pub async fn readiness(&self) -> Readiness {
        if self.0.lifecycle.is_draining() {
            return Readiness::Draining;
        }
        match self.0.store.runway().await {
            Err(error) => {
                tracing::warn!(event = "not_ready", %error, "not ready");
                Readiness::NoDatabase
            }
            Ok(runway) if !runway.today => Readiness::NoPartition,
            Ok(runway) if runway.days_ahead == 0 => Readiness::Ready {
                warnings: vec![format!(
                    "there is no partition for tomorrow; {DAYS_AHEAD} days ahead are made by the keeper, or by `oncekey partitions ensure`"
                )],
            },
            Ok(_) => Readiness::Ready { warnings: Vec::new() },
        }
    }
}

fn bearer(known: KnownKey) -> Result<Bearer, StoreError> {
    let role = ApiRole::parse(&known.role).ok_or_else(|| StoreError::Corrupt {
        table: "api_keys",
        column: "role",
        key: known.tenant.to_string(),
        problem: format!("unknown role {}", known.role),
    })?;
    Ok(Bearer { tenant: known.tenant, role, subject: known.subject })
}
