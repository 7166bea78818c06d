//! Daily partitions of the records: made days ahead, as a table that is then attached, so that no
//! claim waits for it.

use chrono::{Days, NaiveDate};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::Store;
use super::error::StoreError;

/// Advisory lock of all partition work, so that one node at a time does it.
const PARTITION_LOCK: i64 = 0x6F6B_7061_7274;
/// Days ahead of today that `ensure` makes.
pub const DAYS_AHEAD: u64 = 3;

/// The name of a day's partition.
pub fn partition_name(day: NaiveDate) -> String {
    format!("request_records_{}", day.format("%Y%m%d"))
}

/// What stands for today and the days ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runway {
    pub today: bool,
    /// Days after today that have a partition, without a hole.
    pub days_ahead: u32,
}

impl Store {
    /// Makes the partitions of today and of the days ahead where they are missing. Returns the days
    /// that were made.
    pub async fn ensure_partitions(&self) -> Result<Vec<NaiveDate>, StoreError> {
        self.ensure_days(DAYS_AHEAD).await
    }

    /// Makes today's partition, for a claim that found none. Whatever is in the way, the client can
    /// only ask again: `PartitionMissing`, and an operator has to look.
    pub(super) async fn ensure_partition_of_today(&self) -> Result<(), StoreError> {
        match self.ensure_days(0).await {
            Ok(made) => {
                tracing::warn!(?made, "a claim found no partition for today");
                Ok(())
            }
            Err(error) => {
                tracing::error!(event = "partitions_failed", %error, "today has no partition, and a claim could not make it");
                Err(StoreError::PartitionMissing)
            }
        }
    }

    async fn ensure_days(&self, ahead: u64) -> Result<Vec<NaiveDate>, StoreError> {
        let offset = self.clock_offset;
        self.database
            .run("partitions.ensure", move |connection| {
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    // Short: a claim that meets this DDL must not wait behind what it waits for.
                    sqlx::query!(
                        r#"/* partitions.lock */
                        select set_config('lock_timeout', '2s', true) as "setting!",
                            pg_advisory_xact_lock($1) as "locked!""#,
                        PARTITION_LOCK,
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    let today = sqlx::query_scalar!(
                        r#"/* partitions.today */
                        select ((clock_timestamp() + $1::interval) at time zone 'UTC')::date as "day!""#,
                        offset,
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    let mut made = Vec::new();
                    for day in (0..=ahead).filter_map(|days| today.checked_add_days(Days::new(days)))
                    {
                        if !is_attached(&mut transaction, day).await? {
                            make(&mut transaction, day).await?;
                            made.push(day);
                        }
                    }
                    transaction.commit().await?;
                    Ok(made)
                })
            })
            .await
    }

    /// Whether today has a partition, and how far ahead they reach.
    pub async fn runway(&self) -> Result<Runway, StoreError> {
        let offset = self.clock_offset;
        self.database
            .run("partitions.runway", move |connection| {
                Box::pin(async move {
                    let days = sqlx::query!(
                        r#"/* partitions.runway */
                        select d.ahead as "ahead!", i.inhrelid is not null as "there!"
                        from generate_series(0, 31) as d (ahead)
                        left join pg_class p on p.relname = 'request_records_' || to_char(
                            ((clock_timestamp() + $1::interval) at time zone 'UTC')::date + d.ahead, 'YYYYMMDD')
                        left join pg_inherits i
                            on i.inhrelid = p.oid and i.inhparent = 'request_records'::regclass
                        order by d.ahead"#,
                        offset,
                    )
                    .fetch_all(connection)
                    .await?;
                    let unbroken = days.iter().take_while(|day| day.there).count();
                    Ok(Runway {
                        today: unbroken > 0,
                        days_ahead: u32::try_from(unbroken.saturating_sub(1)).unwrap_or(0),
                    })
                })
            })
            .await
    }
}

async fn is_attached(connection: &mut PgConnection, day: NaiveDate) -> Result<bool, StoreError> {
    let found = sqlx::query_scalar!(
        r#"/* partitions.attached */
        select 1 as "one!" from pg_inherits i join pg_class p on p.oid = i.inhrelid
        where i.inhparent = 'request_records'::regclass and p.relname = $1"#,
        partition_name(day),
    )
    .fetch_optional(connection)
    .await?;
    Ok(found.is_some())
}

/// `CREATE … PARTITION OF` would wait for every reader of the parent, and claims behind it.
async fn make(connection: &mut PgConnection, day: NaiveDate) -> Result<(), StoreError> {
    let name = partition_name(day);
    let next = day.succ_opt().ok_or_else(|| StoreError::Bug("the calendar has ended".into()))?;
    // Built from a date alone: digits and hyphens.
    let ddl = format!(
        "create table if not exists {name} (like request_records including all) with (fillfactor = 70); \
         alter table request_records attach partition {name} for values from ('{day}') to ('{next}')"
    );
    sqlx::raw_sql(AssertSqlSafe(ddl)).execute(connection).await?;
    Ok(())
}
