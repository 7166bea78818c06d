//! Reading conversations: the history that a prompt is built from, and pages for clients.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{ConversationId, Subject, TenantId};
use crate::domain::prompt::{Message, Role};

/// One turn as clients see it.
#[derive(Debug, Clone)]
pub struct TurnRow {
    pub seq: i64,
    pub role: String,
    pub content: String,
    pub turn_id: Uuid,
    pub request_id: Uuid,
    pub created_at: DateTime<Utc>,
}

/// A page of turns.
#[derive(Debug, Clone)]
pub struct TurnPage {
    pub turns: Vec<TurnRow>,
    /// The last `seq` of this page, where more follow.
    pub next: Option<i64>,
}

impl Store {
    /// The turns up to `head`, at most the last `limit`, oldest first.
    pub async fn history(
        &self,
        tenant: TenantId,
        conversation: ConversationId,
        head: i64,
        limit: i64,
    ) -> Result<Vec<Message>, StoreError> {
        if head == 0 {
            return Ok(Vec::new()); // a conversation that begins has nothing to read
        }
        self.database
            .run("conversation.history", move |connection| {
                let (tenant, conversation) = (tenant.clone(), conversation.clone());
                Box::pin(async move {
                    let rows = sqlx::query!(
                        "/* conversation.history */
                        select role, content from turns
                        where tenant_id = $1 and conversation_id = $2 and seq <= $3 and seq > $3 - $4
                        order by seq",
                        tenant.as_str(),
                        conversation.as_str(),
                        head,
                        limit,
                    )
                    .fetch_all(connection)
                    .await?;
                    rows.into_iter()
                        .map(|row| {
                            let role = match row.role.as_str() {
                                "user" => Role::User,
                                "assistant" => Role::Assistant,
                                other => {
                                    return Err(StoreError::Corrupt {
                                        table: "turns",
                                        column: "role",
                                        key: conversation.as_str().to_owned(),
                                        problem: format!("unknown role {other}"),
                                    });
                                }
                            };
                            Ok(Message { role, content: row.content.into() })
                        })
                        .collect()
                })
            })
            .await
    }

    /// A page of a conversation after `after`. `None`: there is no such conversation for this
    /// subject; `subject: None` asks for the whole tenant.
    pub async fn turns(
        &self,
        tenant: TenantId,
        conversation: ConversationId,
        subject: Option<Subject>,
        after: i64,
        limit: i64,
    ) -> Result<Option<TurnPage>, StoreError> {
        self.database
            .run("conversation.turns", move |connection| {
                let (tenant, conversation, subject) =
                    (tenant.clone(), conversation.clone(), subject.clone());
                Box::pin(async move {
                    let known = sqlx::query_scalar!(
                        r#"/* conversation.known */
                        select head_seq from conversations
                        where tenant_id = $1 and conversation_id = $2 and head_seq > 0
                            and ($3::text is null or subject = $3)"#,
                        tenant.as_str(),
                        conversation.as_str(),
                        subject.as_ref().map(Subject::as_str),
                    )
                    .fetch_optional(&mut *connection)
                    .await?;
                    if known.is_none() {
                        return Ok(None);
                    }
                    let mut turns = sqlx::query_as!(
                        TurnRow,
                        "/* conversation.turns */
                        select seq, role, content, turn_id, request_id, created_at from turns
                        where tenant_id = $1 and conversation_id = $2 and seq > $3
                        order by seq limit $4",
                        tenant.as_str(),
                        conversation.as_str(),
                        after,
                        limit.saturating_add(1),
                    )
                    .fetch_all(connection)
                    .await?;
                    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
                    let more = turns.len() > wanted;
                    turns.truncate(wanted);
                    let next = turns.last().filter(|_| more).map(|turn| turn.seq);
                    Ok(Some(TurnPage { turns, next }))
                })
            })
            .await
    }
}
