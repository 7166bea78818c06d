//! Deleting a conversation: its turns and the stored answers of its operations go, receipts stay.

use sqlx::{Connection, PgConnection};

use super::Store;
use super::error::StoreError;
use super::lease::{Holder, live_holder};
use crate::domain::ids::{ConversationId, Subject, TenantId};
use crate::domain::liveness::LivenessRules;

/// How a deletion ended.
#[derive(Debug)]
pub enum Deletion {
    Deleted,
    /// There is none that this subject may see.
    Missing,
    /// An operation runs in it; nothing was deleted.
    Busy(Holder),
}

impl Store {
    /// Deletes a conversation, as far as `subject` may see it (`None`: all).
    pub async fn delete_conversation(
        &self,
        tenant: TenantId,
        conversation: ConversationId,
        subject: Option<Subject>,
    ) -> Result<Deletion, StoreError> {
        let rules = self.liveness;
        self.database
            .run("conversation.delete", move |connection| {
                let (tenant, conversation, subject) =
                    (tenant.clone(), conversation.clone(), subject.clone());
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    let deletion =
                        delete(&mut transaction, &rules, &tenant, &conversation, subject.as_ref())
                            .await?;
                    match deletion {
                        Deletion::Deleted => transaction.commit().await?,
                        Deletion::Missing | Deletion::Busy(_) => transaction.rollback().await?,
                    }
                    Ok(deletion)
                })
            })
            .await
    }
}

/// Locks the conversation before the records, against the usual order: it touches only records that
/// are finished, which nobody holds while waiting for a conversation.
async fn delete(
    connection: &mut PgConnection,
    rules: &LivenessRules,
    tenant: &TenantId,
    conversation: &ConversationId,
    subject: Option<&Subject>,
) -> Result<Deletion, StoreError> {
    let row = sqlx::query!(
        "/* conversation.lock */
        select active_key from conversations
        where tenant_id = $1 and conversation_id = $2 and ($3::text is null or subject = $3)
        for update",
        tenant.as_str(),
        conversation.as_str(),
        subject.map(Subject::as_str),
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(Deletion::Missing) };
    if let Some(holder) = live_holder(connection, rules, tenant, row.active_key).await? {
        return Ok(Deletion::Busy(holder));
    }
    // Found by their own column: deleting is rare, and an index on it would cost every claim.
    sqlx::query!(
        "/* conversation.erase_answers */
        update request_records set response = null, erased_at = clock_timestamp()
        where tenant_id = $1 and conversation_id = $2 and erased_at is null
            and (state = 'committed' or (state = 'failed' and failure_final))",
        tenant.as_str(),
        conversation.as_str(),
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "/* conversation.erase_turns */
        delete from turns where tenant_id = $1 and conversation_id = $2",
        tenant.as_str(),
        conversation.as_str(),
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "/* conversation.erase */
        delete from conversations where tenant_id = $1 and conversation_id = $2",
        tenant.as_str(),
        conversation.as_str(),
    )
    .execute(connection)
    .await?;
    Ok(Deletion::Deleted)
}
