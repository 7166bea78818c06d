//! The outbox as the relay sees it: what waits, what a sink has taken, what is given up.
//!
//! Rows are marked. There is no "highest id seen", since an event that is committed late would be
//! skipped by it. Which of the waiting events of an aggregate is next is the one with the lowest
//! `ordinal`: the number comes from a sequence in the commit, and two events of one conversation are
//! never committed at once. Every statement is its own transaction, and none is open while a sink is
//! called.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::error::StoreError;
use super::{Store, interval};
use crate::domain::ids::{EventId, TenantId};
use crate::domain::outbox::Event;

/// What a relay asks for.
#[derive(Debug, Clone)]
pub struct EventsAsked {
    /// The sink that is to get them.
    pub sink: String,
    /// Shares of the asking relay.
    pub shares: Vec<i16>,
    /// Aggregates that are being dealt with, as [`crate::domain::outbox::Aggregate::text`] writes them.
    pub without: Vec<String>,
    /// Rows of one share, and in all.
    pub per_share: i64,
    pub limit: i64,
}

/// An event that a sink has not got.
#[derive(Debug, Clone)]
pub struct WaitingEvent {
    pub event: Arc<Event>,
    pub share: i16,
    /// Refusals so far, where this sink is among those that refused it.
    pub attempts: u32,
    /// Since the first of them, by the database's clock.
    pub refused_for: Duration,
    /// Time until the next attempt; zero where it is due.
    pub due_in: Duration,
}

/// A refusal that counts.
#[derive(Debug, Clone)]
pub struct EventRefusal {
    pub sink: String,
    /// All sinks there are.
    pub sinks: Vec<String>,
    pub tenant: TenantId,
    pub id: EventId,
    pub why: String,
    /// When it is tried again. `None`: it is a dead letter.
    pub again_in: Option<Duration>,
}

/// How the outbox stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutboxStanding {
    /// Age of the oldest event that waits and is no dead letter; zero where none does.
    pub lag: Duration,
    /// Counted up to 10,000.
    pub dead: i64,
}

impl Store {
    /// The next events for a sink, those of one aggregate in their order, those that are not due yet
    /// among them, since what stands behind them must wait as well.
    pub async fn waiting_events(
        &self,
        asked: Arc<EventsAsked>,
    ) -> Result<Vec<WaitingEvent>, StoreError> {
        self.database
            .run("outbox.waiting", move |connection| {
                let asked = asked.clone();
                Box::pin(async move {
                    let rows = sqlx::query!(
                        r#"/* outbox.waiting */
                        select o.tenant_id as "tenant_id!", o.id as "id!", mine.share as "share!",
                            o.aggregatetype as "aggregatetype!", o.aggregateid as "aggregateid!",
                            o.type as "kind!", o.payload::text as "payload!",
                            o.created_at as "created_at!",
                            case when o.refusing @> array[$2::text] then o.attempts else 0 end
                                as "attempts!",
                            coalesce(extract(epoch from clock_timestamp() - case
                                when o.refusing @> array[$2::text] then o.refused_at end), 0)::float8
                                as "refused_for!",
                            greatest(coalesce(extract(epoch from case
                                when o.refusing @> array[$2::text] then o.next_attempt_at end
                                - clock_timestamp()), 0), 0)::float8 as "due_in!"
                        from unnest($1::smallint[]) as mine (share)
                        cross join lateral (
                            select * from outbox w
                            where (hashtextextended(w.tenant_id || chr(31) || w.aggregateid, 0)
                                    & 31)::smallint = mine.share
                                and w.published_at is null
                                and (w.dead_at is null or w.owed)
                                and not w.acked_by @> array[$2::text]
                                and (w.dead_at is null or not w.refused_by @> array[$2::text])
                                and w.tenant_id || chr(31) || w.aggregateid <> all ($3::text[])
                            order by w.ordinal limit $4) o
                        order by o.ordinal limit $5"#,
                        &asked.shares,
                        &asked.sink,
                        &asked.without,
                        asked.per_share,
                        asked.limit,
                    )
                    .fetch_all(connection)
                    .await?;
                    Ok(rows
                        .into_iter()
                        .map(|row| WaitingEvent {
                            event: Arc::new(Event {
                                tenant: TenantId::new(row.tenant_id),
                                id: EventId(row.id),
                                aggregate_type: row.aggregatetype,
                                aggregate_id: row.aggregateid,
                                kind: row.kind,
                                payload: row.payload,
                                created_at: row.created_at,
                            }),
                            share: row.share,
                            attempts: u32::try_from(row.attempts).unwrap_or(0),
                            refused_for: seconds(row.refused_for),
                            due_in: seconds(row.due_in),
                        })
                        .collect())
                })
            })
            .await
    }

    /// Writes down that a sink has these events; one that every sink has is published. In the order of
    /// their keys, so that two sinks that took the same events do not block each other for ever.
    pub async fn acknowledge_events(
        &self,
        sink: String,
        sinks: Vec<String>,
        mut events: Vec<(TenantId, EventId)>,
    ) -> Result<u64, StoreError> {
        events.sort();
        let (tenants, ids): (Vec<String>, Vec<Uuid>) =
            events.into_iter().map(|(tenant, id)| (tenant.as_str().to_owned(), id.0)).unzip();
        let columns = Arc::new((sink, sinks, tenants, ids));
        self.database
            .run("outbox.acknowledge", move |connection| {
                let columns = columns.clone();
                Box::pin(async move {
                    let (sink, sinks, tenants, ids) = &*columns;
                    let done = sqlx::query!(
                        "/* outbox.acknowledge */
                        with taken as materialized (
                            select o.tenant_id, o.id from unnest($1::text[], $2::uuid[])
                                as n (tenant_id, id)
                            join outbox o on o.tenant_id = n.tenant_id and o.id = n.id
                            order by o.tenant_id, o.id for update of o)
                        update outbox o set
                            acked_by = array_append(o.acked_by, $3::text),
                            published_at = case when o.dead_at is null
                                and array_append(o.acked_by, $3::text) @> $4::text[]
                                then clock_timestamp() end,
                            owed = o.owed and not array_append(o.acked_by || o.refused_by, $3::text)
                                @> $4::text[]
                        from taken
                        where o.tenant_id = taken.tenant_id and o.id = taken.id
                            and o.published_at is null and not o.acked_by @> array[$3::text]",
                        tenants,
                        ids,
                        sink,
                        sinks,
                    )
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await
    }

    /// Counts a refusal: the event is tried again later, or is a dead letter from now on.
    pub async fn refuse_event(&self, refusal: EventRefusal) -> Result<(), StoreError> {
        let refusal = Arc::new(refusal);
        self.database
            .run("outbox.refuse", move |connection| {
                let refusal = refusal.clone();
                Box::pin(async move {
                    sqlx::query!(
                        "/* outbox.refuse */
                        update outbox o set attempts = o.attempts + 1, last_error = $3,
                            refused_at = coalesce(o.refused_at, clock_timestamp()),
                            refusing = case when o.refusing @> array[$5::text] then o.refusing
                                else array_append(o.refusing, $5::text) end,
                            next_attempt_at = clock_timestamp() + $4::interval,
                            dead_at = case when $4::interval is null
                                then coalesce(o.dead_at, clock_timestamp()) else o.dead_at end,
                            refused_by = case when $4::interval is null then array_append(case
                                when o.dead_at is null then '{}' else o.refused_by end, $5::text)
                                else o.refused_by end,
                            owed = case when $4::interval is null then not (array_append(o.acked_by
                                || case when o.dead_at is null then '{}' else o.refused_by end,
                                $5::text) @> $6::text[]) else o.owed end
                        where o.tenant_id = $1 and o.id = $2 and o.published_at is null
                            and not o.acked_by @> array[$5::text]
                            and (o.dead_at is null or not o.refused_by @> array[$5::text])",
                        refusal.tenant.as_str(),
                        refusal.id.0,
                        &refusal.why,
                        refusal.again_in.map(interval) as _,
                        &refusal.sink,
                        &refusal.sinks,
                    )
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Publishes what only sinks wait for that are no longer configured.
    pub async fn settle_events(
        &self,
        sinks: Vec<String>,
        shares: Vec<i16>,
    ) -> Result<u64, StoreError> {
        let asked = Arc::new((sinks, shares));
        self.database
            .run("outbox.settle", move |connection| {
                let asked = asked.clone();
                Box::pin(async move {
                    let done = sqlx::query!(
                        "/* outbox.settle */
                        update outbox o set owed = false,
                            published_at = case when o.dead_at is null then clock_timestamp() end
                        where (hashtextextended(o.tenant_id || chr(31) || o.aggregateid, 0) & 31)::smallint
                                = any ($2)
                            and o.published_at is null
                            and (o.dead_at is null or o.owed)
                            and o.acked_by || case when o.dead_at is null then '{}'
                                else o.refused_by end @> $1::text[]",
                        &asked.0,
                        &asked.1,
                    )
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await
    }

    /// How old the oldest waiting event is, and how many dead letters there are. Looks at the first
    /// entry of each share and at the dead letters alone.
    pub async fn outbox_standing(&self) -> Result<OutboxStanding, StoreError> {
        self.database
            .run("outbox.standing", |connection| {
                Box::pin(async move {
                    let row = sqlx::query!(
                        r#"/* outbox.standing */
                        select coalesce(extract(epoch from clock_timestamp() - min(o.created_at)),
                                0)::float8 as "lag!",
                            (select count(*) from (select from outbox d where d.dead_at is not null
                                limit 10000) as first_ones) as "dead!"
                        from generate_series(0, 31) as all_shares (share)
                        cross join lateral (
                            select w.created_at from outbox w
                            where (hashtextextended(w.tenant_id || chr(31) || w.aggregateid, 0)
                                    & 31)::smallint = all_shares.share::smallint
                                and w.published_at is null
                                and (w.dead_at is null or w.owed) and w.dead_at is null
                            order by w.ordinal limit 1) o"#
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(OutboxStanding { lag: seconds(row.lag), dead: row.dead })
                })
            })
            .await
    }

    /// Deletes up to `at_most` events that were published longer ago than this. A dead letter has
    /// never been published. Returns how many went. (The time is computed once, in a query of its own:
    /// compared with a clock that moves, every entry of the index would be looked at.)
    pub async fn sweep_events(
        &self,
        older_than: Duration,
        at_most: i64,
    ) -> Result<u64, StoreError> {
        let offset = self.clock_offset;
        self.database
            .run("outbox.sweep", move |connection| {
                Box::pin(async move {
                    let done = sqlx::query!(
                        "/* outbox.sweep */
                        delete from outbox where ctid = any (array(
                            select ctid from outbox
                            where published_at
                                < (select clock_timestamp() + $1::interval - $2::interval)
                            order by published_at limit $3 for update skip locked))",
                        offset,
                        interval(older_than),
                        at_most,
                    )
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}
