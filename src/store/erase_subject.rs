//! Erasing what an end user said, sent and was answered. Receipts, calls and records stay, without text.
//!
//! Nothing here is found by an index on the subject, since that would cost every claim: records are read in
//! ranges of blocks, results by the key of their operation with its receipt, conversations and captures by
//! their key. Each step is a transaction of its own and finds only what is still there; so the whole may be
//! interrupted anywhere and is then simply done again.

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

use super::Store;
use super::erase::Deletion;
use super::error::StoreError;
use super::lease::live_holder;
use super::partitions::Partition;
use super::retention::OldCapture;
use super::retire::PartitionSession;
use crate::domain::ids::{ConversationId, OperationId, Subject, TenantId};

/// Blocks of records in one transaction: 2 MB.
const BLOCKS: i64 = 256;
/// Results, captures or conversations in one step.
const ROWS: i64 = 200;

/// Whose things are erased.
#[derive(Debug, Clone)]
pub struct Erasing {
    pub tenant: TenantId,
    pub subject: Subject,
}

/// An operation of the end user that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningOperation {
    pub key: Uuid,
    pub endpoint: String,
    pub since: DateTime<Utc>,
}

/// What a step over the records found and erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordsStep {
    pub answers: u64,
    pub chunks: u64,
    pub refused_inputs: u64,
    /// Parses of this user, whose uploads may be stored without a row that says so.
    pub parses: Vec<OperationId>,
    /// The first block of the next step; `None`: this was the last.
    pub next_block: Option<i64>,
}

/// A conversation that was erased.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErasedConversation {
    pub turns: u64,
    pub answers: u64,
}

impl PartitionSession {
    /// The operations of an end user that are in progress, whoever owns them.
    pub async fn running_of(
        &mut self,
        whose: &Erasing,
    ) -> Result<Vec<RunningOperation>, StoreError> {
        Ok(sqlx::query_as!(
            RunningOperation,
            "/* erase.running */
            select idempotency_key as key, endpoint, claimed_at as since from request_records
            where state = 'in_progress' and tenant_id = $1 and subject = $2
            order by claimed_at",
            whose.tenant.as_str(),
            whose.subject.as_str(),
        )
        .fetch_all(&mut self.connection)
        .await?)
    }

    /// Erases the stored answers in a range of a partition's blocks, and what only the records lead to:
    /// chunks that are kept for a later run, and inputs that are remembered as refused. A partition that
    /// is gone meanwhile holds nothing.
    pub async fn erase_records(
        &mut self,
        whose: &Erasing,
        partition: &Partition,
        from_block: i64,
    ) -> Result<RecordsStep, StoreError> {
        match self.try_erase_records(whose, partition, from_block).await {
            Err(sqlx::Error::Database(refusal)) if refusal.code().as_deref() == Some("42P01") => {
                Ok(RecordsStep::default())
            }
            outcome => Ok(outcome?),
        }
    }

    async fn try_erase_records(
        &mut self,
        whose: &Erasing,
        partition: &Partition,
        from_block: i64,
    ) -> Result<RecordsStep, sqlx::Error> {
        let mut transaction = self.connection.begin().await?;
        let (tenant, subject) = (whose.tenant.as_str(), whose.subject.as_str());
        let until = from_block.saturating_add(BLOCKS);
        let range = [from_block, until].map(|block| format!("({block},0)"));
        // A name from the catalog, quoted there.
        let table = &partition.table;
        let sql = format!(
            "/* erase.records */
            with theirs as (
                select ctid, operation_id, endpoint, request_hash, erased_at is null
                    and (state = 'committed' or (state = 'failed' and failure_final)) as answered
                from {table}
                where ctid >= $1::text::tid and ctid < $2::text::tid and tenant_id = $3 and subject = $4),
            erased as (
                update {table} r set response = null, erased_at = clock_timestamp()
                from theirs where r.ctid = theirs.ctid and theirs.answered
                    and r.tenant_id = $3 and r.subject = $4 and r.erased_at is null
                returning 1),
            chunks as (
                delete from parse_chunks k using theirs where k.tenant_id = $3
                    and k.operation_id = theirs.operation_id and theirs.endpoint = 'parse' returning 1),
            refused as (
                delete from refused_inputs i using theirs where i.tenant_id = $3
                    and i.endpoint = theirs.endpoint and i.request_hash = theirs.request_hash returning 1)
            select (select count(*) from erased) as answers, (select count(*) from chunks) as chunks,
                (select count(*) from refused) as refused,
                array(select operation_id from theirs where endpoint = 'parse') as parses,
                pg_relation_size($5::text::regclass) / current_setting('block_size')::bigint as blocks"
        );
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(&range[0])
            .bind(&range[1])
            .bind(tenant)
            .bind(subject)
            .bind(table)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let count =
            |name: &str| row.try_get::<i64, _>(name).map(|it| u64::try_from(it).unwrap_or(0));
        let parses: Vec<Uuid> = row.try_get("parses")?;
        let blocks: i64 = row.try_get("blocks")?;
        Ok(RecordsStep {
            answers: count("answers")?,
            chunks: count("chunks")?,
            refused_inputs: count("refused")?,
            parses: parses.into_iter().map(OperationId).collect(),
            next_block: (until < blocks).then_some(until),
        })
    }

    /// Looks at the next parse results of the tenant after this one, and deletes those whose receipt is
    /// the end user's. Returns how many went, and the last that was looked at; `None`: there are no more.
    pub async fn erase_results(
        &mut self,
        whose: &Erasing,
        after: Option<OperationId>,
    ) -> Result<(u64, Option<OperationId>), StoreError> {
        let row = sqlx::query!(
            r#"/* erase.results */
            with looked as (
                select operation_id from parse_results where tenant_id = $1 and operation_id > $3
                order by operation_id limit $4),
            gone as (
                delete from parse_results p where p.tenant_id = $1 and p.operation_id = any (array(
                    select l.operation_id from looked l
                    where (select count(*) from usage_receipts u where u.tenant_id = $1
                        and u.operation_id = l.operation_id and u.subject = $2) > 0))
                returning 1)
            select (select count(*) from gone) as "gone!",
                (select operation_id from looked order by operation_id desc limit 1) as "last?""#,
            whose.tenant.as_str(),
            whose.subject.as_str(),
            after.map_or(Uuid::nil(), |operation| operation.0),
            ROWS,
        )
        .fetch_one(&mut self.connection)
        .await?;
        Ok((u64::try_from(row.gone).unwrap_or(0), row.last.map(OperationId)))
    }

    /// The next captures of the end user after this one.
    pub async fn captures_of(
        &mut self,
        whose: &Erasing,
        after: Option<Uuid>,
    ) -> Result<Vec<OldCapture>, StoreError> {
        let rows = sqlx::query!(
            "/* erase.captures */
            select capture_id, operation_id, location, bytes from captures
            where tenant_id = $1 and subject = $2 and capture_id > $3 order by capture_id limit $4",
            whose.tenant.as_str(),
            whose.subject.as_str(),
            after.unwrap_or_default(),
            ROWS,
        )
        .fetch_all(&mut self.connection)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| OldCapture {
                tenant: whose.tenant.clone(),
                id: row.capture_id,
                operation: OperationId(row.operation_id),
                location: row.location,
                bytes: row.bytes,
            })
            .collect())
    }

    /// The next conversations of the end user after this one.
    pub async fn conversations_of(
        &mut self,
        whose: &Erasing,
        after: Option<&ConversationId>,
    ) -> Result<Vec<ConversationId>, StoreError> {
        let found = sqlx::query_scalar!(
            "/* erase.conversations */
            select conversation_id from conversations
            where tenant_id = $1 and subject = $2 and conversation_id > $3
            order by conversation_id limit $4",
            whose.tenant.as_str(),
            whose.subject.as_str(),
            after.map_or("", ConversationId::as_str),
            ROWS,
        )
        .fetch_all(&mut self.connection)
        .await?;
        Ok(found.into_iter().map(ConversationId::new).collect())
    }

    /// Receipts of the end user, which stay.
    pub async fn receipts_of(&mut self, whose: &Erasing) -> Result<u64, StoreError> {
        let receipts = sqlx::query_scalar!(
            r#"/* erase.receipts */
            select count(*) as "receipts!" from usage_receipts where tenant_id = $1 and subject = $2"#,
            whose.tenant.as_str(),
            whose.subject.as_str(),
        )
        .fetch_one(&mut self.connection)
        .await?;
        Ok(u64::try_from(receipts).unwrap_or(0))
    }
}

impl Store {
    /// Erases a conversation and the answers of its operations, which its turns lead to by their receipts.
    /// One that is gone already counts as nothing.
    pub async fn erase_conversation(
        &self,
        whose: Erasing,
        conversation: ConversationId,
    ) -> Result<(Deletion, ErasedConversation), StoreError> {
        let rules = self.liveness;
        self.database
            .run("erase.conversation", move |connection| {
                let (whose, conversation) = (whose.clone(), conversation.clone());
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    let row = sqlx::query!(
                        "/* erase.lock */
                        select active_key from conversations
                        where tenant_id = $1 and conversation_id = $2 and subject = $3 for update",
                        whose.tenant.as_str(),
                        conversation.as_str(),
                        whose.subject.as_str(),
                    )
                    .fetch_optional(&mut *transaction)
                    .await?;
                    let nothing = ErasedConversation::default();
                    let Some(row) = row else { return Ok((Deletion::Missing, nothing)) };
                    let holder =
                        live_holder(&mut transaction, &rules, &whose.tenant, row.active_key)
                            .await?;
                    if let Some(holder) = holder {
                        transaction.rollback().await?;
                        return Ok((Deletion::Busy(holder), nothing));
                    }
                    let erased = erase_locked(&mut transaction, &whose, &conversation).await?;
                    transaction.commit().await?;
                    Ok((Deletion::Deleted, erased))
                })
            })
            .await
    }
}

/// Each step by the keys that the one before found.
async fn erase_locked(
    connection: &mut PgConnection,
    whose: &Erasing,
    conversation: &ConversationId,
) -> Result<ErasedConversation, StoreError> {
    let tenant = whose.tenant.as_str();
    let operations = sqlx::query_scalar!(
        "/* erase.turns */
        delete from turns where tenant_id = $1 and conversation_id = $2 returning operation_id",
        tenant,
        conversation.as_str(),
    )
    .fetch_all(&mut *connection)
    .await?;
    let turns = operations.len() as u64;
    let receipts = sqlx::query!(
        "/* erase.keys */
        select idempotency_key, record_day from usage_receipts
        where tenant_id = $1 and operation_id = any ($2)",
        tenant,
        &operations,
    )
    .fetch_all(&mut *connection)
    .await?;
    let (keys, days): (Vec<Uuid>, Vec<NaiveDate>) =
        receipts.into_iter().map(|receipt| (receipt.idempotency_key, receipt.record_day)).unzip();
    let answers = sqlx::query!(
        "/* erase.answers */
        update request_records set response = null, erased_at = clock_timestamp()
        where tenant_id = $1 and idempotency_key = any ($2) and day = any ($3)
            and operation_id = any ($4) and state = 'committed' and erased_at is null",
        tenant,
        &keys,
        &days,
        &operations,
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "/* erase.conversation */
        delete from conversations where tenant_id = $1 and conversation_id = $2",
        tenant,
        conversation.as_str(),
    )
    .execute(connection)
    .await?;
    Ok(ErasedConversation { turns, answers: answers.rows_affected() })
}
