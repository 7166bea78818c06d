//! Claims: winning a key before any work is done.
//!
//! Lock order, everywhere: key row → record → conversation; a first claim inserts its record last,
//! since nobody else can hold a row that does not exist yet.

use std::sync::Arc;

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::{Connection, PgConnection};

use super::Store;
use super::error::StoreError;
use super::lease::{Holder, Lease, Taken, WantedLease};
use crate::domain::hash::RequestHash;
use crate::domain::ids::{ConversationId, Fence, OperationId, RequestId, Subject, TenantId};
use crate::domain::key::IdempotencyKey;
use crate::domain::record::{Guard, Record, RecordKey, State};

/// Times that a claim starts anew because the key row vanished under it or a record appeared.
const ROUNDS: u32 = 8;

/// An arrival that wants to run.
#[derive(Debug, Clone)]
pub struct NewClaim {
    pub tenant: TenantId,
    pub key: IdempotencyKey,
    pub endpoint: &'static str,
    pub subject: Option<Subject>,
    /// The conversation that it runs in, whose lease is taken with the key.
    pub conversation_id: Option<ConversationId>,
    pub hash: RequestHash,
    pub operation_id: OperationId,
    pub request_id: RequestId,
}

/// A claim that was won: the right to run, until the fence moves on.
#[derive(Debug, Clone)]
pub struct Claim {
    pub at: RecordKey,
    pub guard: Guard,
    pub operation_id: OperationId,
    /// The last turn of the conversation that the run will build on.
    pub head_seq: i64,
    pub attempts: u32,
    pub quota_hits: u32,
    pub first_claimed_at: DateTime<Utc>,
    pub claimed_at: DateTime<Utc>,
    /// The kind with which the same input failed finally under other keys, and the model that it
    /// failed at. Looked up for an operation that is new and whose key and conversation were free.
    pub refused: Option<(String, String)>,
}

#[derive(Debug)]
pub enum ClaimOutcome {
    Won(Claim),
    /// The key is taken; what stands there, for the decision.
    Exists(Box<Record>),
    ConversationBusy(Holder),
    /// The conversation belongs to another subject.
    ConversationHidden,
}

/// What one statement, or what stands behind another's, says of a claim.
#[derive(Debug, Clone)]
pub(super) enum FirstSight {
    Won(Claim),
    /// The key is taken.
    Stands(Box<Record>),
    /// The key or the conversation is not free; which of them, and whose, is to be looked up.
    NotFree,
}

impl Store {
    /// Claims a key that may or may not be known. One round trip where it is new and its
    /// conversation free; a poll that finds the key taken or the conversation busy writes nothing.
    pub async fn claim(&self, new: NewClaim) -> Result<ClaimOutcome, StoreError> {
        let mut answer_lost = false;
        match self.claim_rounds(&Arc::new(new), &mut answer_lost).await {
            // Whatever was found out since: what the first statement did is not known.
            Err(error) if answer_lost && !error.is_in_doubt() => {
                Err(StoreError::unavailable(error.to_string()))
            }
            outcome => outcome,
        }
    }

    /// `answer_lost` is set where a statement was sent that nothing was heard of.
    async fn claim_rounds(
        &self,
        new: &Arc<NewClaim>,
        answer_lost: &mut bool,
    ) -> Result<ClaimOutcome, StoreError> {
        for _ in 0..ROUNDS {
            match self.claim_round(new).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(StoreError::PartitionMissing) => self.ensure_partition_of_today().await?,
                // Once, on another connection: a claim whose answer was lost must not stay behind
                // without a run.
                Err(error) if error.is_in_doubt() && !*answer_lost => *answer_lost = true,
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict("a claim was overtaken too often".into()))
    }

    /// `None`: somebody changed what this round had read; look again.
    async fn claim_round(&self, new: &Arc<NewClaim>) -> Result<Option<ClaimOutcome>, StoreError> {
        // A claim without a conversation is a parse's: its calls take seconds, its claim need not hurry.
        let together = self.coalescers.as_ref().filter(|_| new.conversation_id.is_some());
        let mut seen = match together {
            Some(coalescers) => coalescers.claims.submit(self, new.clone()).await?,
            None => self.claim_at_once(new.clone()).await?,
        };
        if matches!(seen, FirstSight::NotFree) {
            seen = self.what_stands(new).await?;
        }
        match seen {
            FirstSight::Won(claim) => return Ok(Some(ClaimOutcome::Won(claim))),
            FirstSight::Stands(record) => {
                return Ok(Some(match self.own_claim(&record, new.request_id).await? {
                    Some(claim) => ClaimOutcome::Won(claim),
                    None => ClaimOutcome::Exists(record),
                }));
            }
            FirstSight::NotFree => {}
        }
        if let Some(outcome) = self.look_at_conversation(new.clone()).await? {
            return Ok(Some(outcome));
        }
        self.claim_slowly(new.clone()).await
    }

    /// `None`: the conversation is free at first sight.
    async fn look_at_conversation(
        &self,
        new: Arc<NewClaim>,
    ) -> Result<Option<ClaimOutcome>, StoreError> {
        let rules = self.liveness;
        self.database
            .run("claim.look", move |connection| {
                let new = new.clone();
                Box::pin(async move {
                    let Some(wanted) = new.wanted() else { return Ok(None) };
                    let taken = wanted.look(connection, &rules).await?;
                    Ok(taken.map(ClaimOutcome::from))
                })
            })
            .await
    }

    /// A key row without a record, or a conversation with a leftover lease: every row is locked and
    /// then looked at again before anything is written.
    async fn claim_slowly(&self, new: Arc<NewClaim>) -> Result<Option<ClaimOutcome>, StoreError> {
        let (rules, node, offset) = (self.liveness, self.node(), self.clock_offset);
        self.database
            .run("claim.slowly", move |connection| {
                let new = new.clone();
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    let Some(day) = lock_key(&mut transaction, &new, offset).await? else {
                        transaction.rollback().await?;
                        return Ok(None);
                    };
                    let mut head_seq = 0;
                    if let Some(wanted) = new.wanted() {
                        match wanted.take(&mut transaction, &rules).await? {
                            Lease::Free { head_seq: head } => head_seq = head,
                            Lease::Taken(taken) => {
                                transaction.rollback().await?;
                                return Ok(Some(taken.into()));
                            }
                        }
                    }
                    let claimed_at = sqlx::query_scalar!(
                        "/* claim.insert */
                        insert into request_records (tenant_id, idempotency_key, day, operation_id,
                            key_source, key_text, endpoint, subject, conversation_id, request_hash,
                            owner, request_id)
                        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
                        returning claimed_at",
                        new.tenant.as_str(),
                        new.key.id,
                        day,
                        new.operation_id.0,
                        new.key.source.as_str(),
                        new.key.text.as_deref(),
                        new.endpoint,
                        new.subject.as_ref().map(Subject::as_str),
                        new.conversation_id.as_ref().map(ConversationId::as_str),
                        &new.hash.0[..],
                        i64::from(node.0),
                        new.request_id.0,
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    transaction.commit().await?;
                    Ok(Some(ClaimOutcome::Won(new.won(day, claimed_at, head_seq))))
                })
            })
            .await
    }

    /// The claim that a record stands for, if this very arrival made it: the answer to it was lost
    /// on the way, and what it won is still ours.
    pub(super) async fn own_claim(
        &self,
        record: &Record,
        arrival: RequestId,
    ) -> Result<Option<Claim>, StoreError> {
        if record.guard.request_id != arrival || record.state != State::InProgress {
            return Ok(None);
        }
        Ok(Some(Claim {
            at: record.at.clone(),
            guard: record.guard,
            operation_id: record.operation_id,
            head_seq: self.head_of(&record.at).await?,
            attempts: record.attempts,
            quota_hits: record.quota_hits,
            first_claimed_at: record.first_claimed_at,
            claimed_at: record.claimed_at,
            refused: None,
        }))
    }

    async fn head_of(&self, at: &RecordKey) -> Result<i64, StoreError> {
        let at = at.clone();
        self.database
            .run("claim.head", move |connection| {
                let at = at.clone();
                Box::pin(async move {
                    let head = sqlx::query_scalar!(
                        "/* claim.head */
                        select head_seq from conversations
                        where tenant_id = $1 and conversation_id = (select conversation_id
                            from request_records
                            where tenant_id = $1 and idempotency_key = $2 and day = $3)",
                        at.tenant.as_str(),
                        at.key,
                        at.day,
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(head.unwrap_or(0))
                })
            })
            .await
    }
}

impl From<Taken> for ClaimOutcome {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Busy(holder) => Self::ConversationBusy(holder),
            Taken::Hidden => Self::ConversationHidden,
        }
    }
}

impl NewClaim {
    /// The lease that it needs; a parse needs none.
    fn wanted(&self) -> Option<WantedLease<'_>> {
        self.conversation_id.as_ref().map(|conversation| WantedLease {
            tenant: &self.tenant,
            conversation,
            subject: self.subject.as_ref(),
            key: self.key.id,
        })
    }

    pub(super) fn won(&self, day: NaiveDate, claimed_at: DateTime<Utc>, head_seq: i64) -> Claim {
        Claim {
            at: RecordKey { tenant: self.tenant.clone(), key: self.key.id, day },
            guard: Guard { fence: Fence(1), request_id: self.request_id },
            operation_id: self.operation_id,
            head_seq,
            attempts: 1,
            quota_hits: 0,
            first_claimed_at: claimed_at,
            claimed_at,
            refused: None,
        }
    }
}

/// Takes the row of a key that has no record, and moves it to today. `None`: the row vanished, or a
/// record has appeared meanwhile. The record is looked for in a statement after the lock: moving with
/// a condition in one statement lets both sides of midnight win.
async fn lock_key(
    connection: &mut PgConnection,
    new: &NewClaim,
    offset: sqlx::postgres::types::PgInterval,
) -> Result<Option<NaiveDate>, StoreError> {
    let held = sqlx::query_scalar!(
        "/* claim.lock_key */
        select day from request_keys where tenant_id = $1 and idempotency_key = $2 for update",
        new.tenant.as_str(),
        new.key.id,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(held) = held else { return Ok(None) };
    let appeared = sqlx::query_scalar!(
        r#"/* claim.look_again */
        select 1 as "one!" from request_records where tenant_id = $1 and idempotency_key = $2 and day = $3"#,
        new.tenant.as_str(),
        new.key.id,
        held,
    )
    .fetch_optional(&mut *connection)
    .await?;
    if appeared.is_some() {
        return Ok(None);
    }
    let day = sqlx::query_scalar!(
        r#"/* claim.move_key */
        update request_keys set day = ((clock_timestamp() + $3::interval) at time zone 'UTC')::date
        where tenant_id = $1 and idempotency_key = $2 returning day"#,
        new.tenant.as_str(),
        new.key.id,
        offset,
    )
    .fetch_one(connection)
    .await?;
    Ok(Some(day))
}
