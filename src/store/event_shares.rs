//! Which relay works at which share of the outbox, by leases that end by themselves.
//!
//! A lease keeps two relays from sending the same events at once; it is not what the order rests on.
//! Each relay sends an aggregate's events from the oldest that waits, and the next one only when a sink
//! has the one before. So where a lease ended while its holder was still sending, a sink gets an event
//! twice, never one before its turn.
//!
//! A lease that ends later than any is given for was written before the database's clock was set back; whoever
//! wrote it and lives has renewed it since. It counts as over: else the share of one that died meanwhile would
//! be nobody's for as long as the clock went back.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;
use uuid::Uuid;

use super::error::StoreError;
use super::{Store, interval};
use crate::domain::outbox::fair_count;

/// How long a relay that is gone is remembered.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// What a relay holds after a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharesHeld {
    pub shares: Vec<i16>,
    /// Relays that live, this one included.
    pub living: usize,
}

impl Store {
    /// One round of a relay: it lives for another `lease`, gives back what it no longer wants, keeps
    /// what it holds, and takes what is free up to its fair part.
    pub async fn keep_shares(
        &self,
        relay: Uuid,
        lease: Duration,
        give_back: Vec<i16>,
    ) -> Result<SharesHeld, StoreError> {
        let give_back = Arc::new(give_back);
        let lease = interval(lease);
        self.database
            .run("outbox.shares", move |connection| {
                let give_back = give_back.clone();
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    let living = sqlx::query_scalar!(
                        r#"/* outbox.relays */
                        with me as (
                            insert into event_relays as r (relay_id, held_until)
                            values ($1, clock_timestamp() + $2::interval)
                            on conflict (relay_id) do update set held_until = excluded.held_until
                            returning r.relay_id),
                        gone as (delete from event_relays
                            where held_until < clock_timestamp() - $3::interval and relay_id <> $1)
                        select count(*) + 1 as "living!" from event_relays
                        where held_until > clock_timestamp() and relay_id <> $1
                            and held_until <= clock_timestamp() + 2 * $2::interval"#,
                        relay,
                        lease,
                        interval(FORGOTTEN_AFTER),
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    let mut shares = sqlx::query_scalar!(
                        "/* outbox.keep_shares */
                        with back as (delete from event_shares
                            where relay_id = $1 and share = any ($3) returning share)
                        update event_shares set held_until = clock_timestamp() + $2::interval
                        where relay_id = $1 and share <> all ($3) returning share",
                        relay,
                        lease,
                        &give_back,
                    )
                    .fetch_all(&mut *transaction)
                    .await?;
                    let living = usize::try_from(living).unwrap_or(1);
                    let lacking = fair_count(living).saturating_sub(shares.len());
                    if lacking > 0 {
                        let taken = sqlx::query_scalar!(
                            "/* outbox.take_shares */
                            insert into event_shares as s (share, relay_id, held_until)
                            select free.share, $1, clock_timestamp() + $2::interval from (
                                select n.share::smallint as share from generate_series(0, 31) as n (share)
                                where n.share <> all ($4::smallint[]) and not exists (
                                    select from event_shares o where o.share = n.share::smallint
                                        and o.held_until > clock_timestamp()
                                        and o.held_until <= clock_timestamp() + 2 * $2::interval)
                                order by random() limit $3) free
                            order by free.share
                            on conflict (share) do update
                                set relay_id = excluded.relay_id, held_until = excluded.held_until
                                where s.held_until <= clock_timestamp()
                                    or s.held_until > clock_timestamp() + 2 * $2::interval
                            returning s.share",
                            relay,
                            lease,
                            i64::try_from(lacking).unwrap_or(i64::MAX),
                            &give_back,
                        )
                        .fetch_all(&mut *transaction)
                        .await?;
                        shares.extend(taken);
                    }
                    transaction.commit().await?;
                    Ok(SharesHeld { shares, living })
                })
            })
            .await
    }

    /// A relay that ends in order gives everything back at once.
    pub async fn leave_shares(&self, relay: Uuid) -> Result<(), StoreError> {
        self.database
            .run("outbox.leave", move |connection| {
                Box::pin(async move {
                    sqlx::query!(
                        "/* outbox.leave */
                        with shares as (delete from event_shares where relay_id = $1)
                        delete from event_relays where relay_id = $1",
                        relay,
                    )
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }
}
