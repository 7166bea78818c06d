//! Clearing away what no longer means anything: keys whose partition is gone, by us or by hand, and
//! keys that were made from requests, once they are too old to be asked for.
//!
//! Neither table has an index for it, since that would cost every claim; they are read in ranges of
//! blocks instead, a transaction each. A row is judged as it is under its lock: a claim may just have
//! moved a key to today, and then it is no longer old. A row that a claim holds is left for the next
//! round.

use std::time::Duration;

use chrono::NaiveDate;

use super::error::StoreError;
use super::interval;
use super::partitions::{Partition, Standing, attached};
use super::retire::PartitionSession;

/// Blocks of a table in one transaction: 1 MB, some ten thousand keys.
const BLOCKS: i64 = 128;

/// A table that is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleaned {
    /// `request_keys`: those of a day before today that has no partition.
    Keys,
    /// `derived_keys`: those that are older than this.
    Derived { older_than: Duration },
}

/// Where a round of cleaning stands.
#[derive(Debug, Clone)]
pub struct Cleaning {
    what: Cleaned,
    /// The day that this round takes for today: at midnight it only deletes less.
    today: NaiveDate,
    /// Days before it that have a partition.
    kept: Vec<NaiveDate>,
    next_block: i64,
    /// Blocks of the table when the round began; what is written behind them is new.
    blocks: i64,
    /// Rows deleted so far.
    pub deleted: u64,
}

impl PartitionSession {
    /// Begins a round. Needs [`PartitionSession::alone`].
    pub async fn begin_cleaning(&mut self, what: Cleaned) -> Result<Cleaning, StoreError> {
        let today = self.now().await?.date_naive();
        let table = match what {
            Cleaned::Keys => "request_keys",
            Cleaned::Derived { .. } => "derived_keys",
        };
        let blocks = sqlx::query_scalar!(
            r#"/* cleaning.blocks */
            select pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint as "blocks!""#,
            table,
        )
        .fetch_one(&mut self.connection)
        .await?;
        let days = self.days_of_keys(today).await?;
        Ok(Cleaning { what, today, kept: days, next_block: 0, blocks, deleted: 0 })
    }

    /// Cleans the next range. `false`: the round is done.
    pub async fn clean(&mut self, cleaning: &mut Cleaning) -> Result<bool, StoreError> {
        if cleaning.next_block >= cleaning.blocks {
            return Ok(false);
        }
        let from = format!("({},0)", cleaning.next_block);
        let until = format!("({},0)", cleaning.next_block.saturating_add(BLOCKS));
        cleaning.deleted += match cleaning.what {
            Cleaned::Keys => self.clean_keys(&from, &until, cleaning).await?,
            Cleaned::Derived { older_than } => {
                self.clean_derived(&from, &until, older_than).await?
            }
        };
        cleaning.next_block += BLOCKS;
        Ok(cleaning.next_block < cleaning.blocks)
    }

    /// The subquery is a second guard, for records in a partition with unusual bounds; it is asked for
    /// the few keys that the days let through, and counts so that it is asked row by row.
    async fn clean_keys(
        &mut self,
        from: &str,
        until: &str,
        cleaning: &Cleaning,
    ) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "/* cleaning.keys */
            delete from request_keys where ctid = any (array(
                select k.ctid from request_keys k
                where k.ctid >= $1::text::tid and k.ctid < $2::text::tid
                    and k.day < $3 and k.day <> all ($4)
                    and (select count(*) from request_records r where r.tenant_id = k.tenant_id
                        and r.idempotency_key = k.idempotency_key and r.day = k.day) = 0
                for update skip locked))",
            from,
            until,
            cleaning.today,
            &cleaning.kept,
        )
        .execute(&mut self.connection)
        .await?;
        Ok(done.rows_affected())
    }

    async fn clean_derived(
        &mut self,
        from: &str,
        until: &str,
        older_than: Duration,
    ) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "/* cleaning.derived */
            delete from derived_keys where ctid = any (array(
                select ctid from derived_keys
                where ctid >= $1::text::tid and ctid < $2::text::tid
                    and first_at < clock_timestamp() + $3::interval - $4::interval
                for update skip locked))",
            from,
            until,
            self.clock_offset,
            interval(older_than),
        )
        .execute(&mut self.connection)
        .await?;
        Ok(done.rows_affected())
    }

    /// Days before today whose keys may have a record.
    async fn days_of_keys(&mut self, today: NaiveDate) -> Result<Vec<NaiveDate>, StoreError> {
        let mut known = attached(&mut self.connection).await?;
        known.retain(|partition| partition.standing == Standing::Attached);
        Ok(known.iter().filter_map(Partition::day).filter(|day| *day < today).collect())
    }
}
