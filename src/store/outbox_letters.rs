//! The outbox as people see it: what waits in line, what was given up, and a letter that is sent after
//! all.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{EventId, TenantId};

/// An event for people.
#[derive(Debug, Clone)]
pub struct EventRow {
    pub tenant_id: String,
    pub id: Uuid,
    pub aggregatetype: String,
    pub aggregateid: String,
    pub kind: String,
    pub created_at: DateTime<Utc>,
    pub attempts: i32,
    pub next_attempt_at: Option<DateTime<Utc>>,
    pub dead_at: Option<DateTime<Utc>>,
    /// Sinks that it is dead for.
    pub refused_by: Vec<String>,
    pub last_error: Option<String>,
}

/// What becomes of an id that was to be redriven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redriven {
    Waits,
    /// No dead letter has this id.
    NotDead,
    /// Dead letters of several tenants do, and none of them was named.
    Ambiguous,
}

impl Store {
    /// Dead letters, the oldest first.
    pub async fn dead_events(
        &self,
        tenant: Option<TenantId>,
        at_most: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.database
            .run("outbox.list_dead", move |connection| {
                let tenant = tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        EventRow,
                        "/* outbox.list_dead */
                        select tenant_id, id, aggregatetype, aggregateid, type as kind, created_at,
                            attempts, next_attempt_at, dead_at, refused_by, last_error
                        from outbox
                        where dead_at is not null and ($1::text is null or tenant_id = $1)
                        order by ordinal limit $2",
                        tenant as _,
                        at_most,
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(rows)
                })
            })
            .await
    }

    /// Events that wait for delivery and are no dead letters, the oldest first.
    pub async fn events_in_line(
        &self,
        tenant: Option<TenantId>,
        at_most: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.database
            .run("outbox.list_waiting", move |connection| {
                let tenant = tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
                Box::pin(async move {
                    let rows = sqlx::query_as!(
                        EventRow,
                        "/* outbox.list_waiting */
                        select tenant_id, id, aggregatetype, aggregateid, type as kind, created_at,
                            attempts, next_attempt_at, dead_at, refused_by, last_error
                        from outbox
                        where published_at is null and (dead_at is null or owed) and dead_at is null
                            and ($1::text is null or tenant_id = $1)
                        order by ordinal limit $2",
                        tenant as _,
                        at_most,
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(rows)
                })
            })
            .await
    }

    /// Makes a dead letter wait for delivery again, as if nothing had been tried; sinks that have it
    /// do not get it again.
    pub async fn redrive_event(
        &self,
        id: EventId,
        tenant: Option<TenantId>,
    ) -> Result<Redriven, StoreError> {
        self.database
            .run("outbox.redrive", move |connection| {
                let tenant = tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
                Box::pin(async move {
                    let row = sqlx::query!(
                        r#"/* outbox.redrive */
                        with meant as materialized (
                            select tenant_id, id from outbox
                            where dead_at is not null and id = $1
                                and ($2::text is null or tenant_id = $2)
                            order by tenant_id for update),
                        redriven as (
                            update outbox o set dead_at = null, refused_by = '{}', refusing = '{}', owed = false,
                                attempts = 0, refused_at = null, next_attempt_at = null
                            from meant where o.tenant_id = meant.tenant_id and o.id = meant.id
                                and (select count(*) from meant) = 1
                            returning o.id)
                        select (select count(*) from meant) as "meant!",
                            (select count(*) from redriven) as "redriven!""#,
                        id.0,
                        tenant as _,
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(match (row.meant, row.redriven) {
                        (0, _) => Redriven::NotDead,
                        (_, 0) => Redriven::Ambiguous,
                        _ => Redriven::Waits,
                    })
                })
            })
            .await
    }
}
