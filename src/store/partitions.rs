//! Daily partitions of the records: made days ahead, as a table that is then attached, so that no
//! claim waits for it.
//!
//! Which days have one is read from the bounds, which are dates, and not from names: a partition
//! that somebody made by hand counts as well. One that is being detached does not, since statements
//! no longer see it.

use chrono::{DateTime, Days, NaiveDate, Utc};
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::Store;
use super::error::StoreError;

/// Advisory lock of making partitions, so that one node at a time does it.
const MAKING_LOCK: i64 = 0x6F6B_7061_7274;
/// The comment on a partition that was judged and may go: where dropping it is interrupted after it
/// was detached, the next round knows it for one of ours, and not for one that was detached by hand.
pub(super) const RETIRED: &str = "oncekey: retired, to be dropped";
/// Days ahead of today that `ensure` makes.
pub const DAYS_AHEAD: u64 = 3;

/// Days that are looked at ahead of today.
const LONGEST_RUNWAY: usize = 366;

/// The name of a day's partition.
pub fn partition_name(day: NaiveDate) -> String {
    format!("request_records_{}", day.format("%Y%m%d"))
}

/// The day that such a name is of.
fn day_of(table: &str) -> Option<NaiveDate> {
    NaiveDate::parse_from_str(table.strip_prefix("request_records_")?, "%Y%m%d").ok()
}

/// What stands for today and the days ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runway {
    pub today: bool,
    /// Days after today that have a partition, without a hole.
    pub days_ahead: u32,
}

/// How a partition stands to its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Attached,
    /// A detaching that waits or was interrupted: invisible to statements, and in the way of the next
    /// one.
    Detaching,
    /// Detached, and still to be dropped.
    Detached,
}

/// A partition, or what was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// As SQL takes it: quoted and qualified where that is needed.
    pub table: String,
    /// The days that it is for: from the first, not including the second. `None`: other bounds.
    pub days: Option<(NaiveDate, NaiveDate)>,
    pub standing: Standing,
    /// Whether it was judged and may go.
    pub retired: bool,
}

impl Partition {
    /// The day, where it is for one. Once detached only its name tells.
    pub fn day(&self) -> Option<NaiveDate> {
        match self.standing {
            Standing::Attached | Standing::Detaching => {
                self.days.filter(|(day, until)| day.succ_opt() == Some(*until)).map(|(day, _)| day)
            }
            Standing::Detached => day_of(&self.table),
        }
    }

    pub(super) fn covers(&self, day: NaiveDate) -> bool {
        self.standing == Standing::Attached
            && self.days.is_some_and(|(from, until)| from <= day && day < until)
    }
}

impl Store {
    /// Makes the partitions of today and of the days ahead where they are missing, each for itself:
    /// what stands in the way of one does not hinder the others. Returns the days that were made, or
    /// the first error.
    pub async fn ensure_partitions(&self) -> Result<Vec<NaiveDate>, StoreError> {
        let (mut made, mut failed) = (Vec::new(), None);
        for ahead in 0..=DAYS_AHEAD {
            match self.ensure_day(ahead).await {
                Ok(day) => made.extend(day),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(made), Err)
    }

    /// Makes today's partition, for a claim that found none. Whatever is in the way, the client can
    /// only ask again: `PartitionMissing`, and an operator has to look.
    pub(super) async fn ensure_partition_of_today(&self) -> Result<(), StoreError> {
        match self.ensure_day(0).await {
            Ok(made) => {
                tracing::warn!(
                    event = "partition_missing",
                    ?made,
                    "a claim found no partition for today"
                );
                Ok(())
            }
            Err(error) => {
                tracing::error!(event = "partitions_failed", %error, "today has no partition, and a claim could not make it");
                Err(StoreError::PartitionMissing)
            }
        }
    }

    async fn ensure_day(&self, ahead: u64) -> Result<Option<NaiveDate>, StoreError> {
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
                        MAKING_LOCK,
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    let today = now(&mut transaction, offset).await?.date_naive();
                    let day = today.checked_add_days(Days::new(ahead)).ok_or_else(calendar)?;
                    let known = attached(&mut transaction).await?;
                    if known.iter().any(|partition| partition.covers(day)) {
                        return Ok(None);
                    }
                    make(&mut transaction, day, &known).await?;
                    transaction.commit().await?;
                    Ok(Some(day))
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
                    let today = now(connection, offset).await?.date_naive();
                    let known = attached(connection).await?;
                    let unbroken = today
                        .iter_days()
                        .take(LONGEST_RUNWAY)
                        .take_while(|day| known.iter().any(|partition| partition.covers(*day)))
                        .count();
                    Ok(Runway {
                        today: unbroken > 0,
                        days_ahead: u32::try_from(unbroken.saturating_sub(1)).unwrap_or(u32::MAX),
                    })
                })
            })
            .await
    }
}

/// The database's time, as days and retentions see it.
pub(super) async fn now(
    connection: &mut PgConnection,
    offset: PgInterval,
) -> Result<DateTime<Utc>, StoreError> {
    let now = sqlx::query_scalar!(
        r#"/* partitions.now */ select clock_timestamp() + $1::interval as "now!""#,
        offset,
    )
    .fetch_one(connection)
    .await?;
    Ok(now)
}

/// All partitions of the records, also those that are being detached, in the order of their days.
pub(super) async fn attached(connection: &mut PgConnection) -> Result<Vec<Partition>, StoreError> {
    let rows = sqlx::query!(
        r#"/* partitions.attached */
        select i.inhrelid::regclass::text as "table!", b.days[1]::date as "from?",
            b.days[2]::date as "until?", i.inhdetachpending as "detaching!",
            coalesce(obj_description(i.inhrelid, 'pg_class') = $1, false) as "retired!"
        from pg_inherits i join pg_class p on p.oid = i.inhrelid
        left join lateral regexp_match(pg_get_expr(p.relpartbound, p.oid),
            '^FOR VALUES FROM \(''(\d{4}-\d\d-\d\d)''\) TO \(''(\d{4}-\d\d-\d\d)''\)$') b (days) on true
        where i.inhparent = 'request_records'::regclass
        order by 2, 1"#,
        RETIRED,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Partition {
            table: row.table,
            days: row.from.zip(row.until),
            standing: if row.detaching { Standing::Detaching } else { Standing::Attached },
            retired: row.retired,
        })
        .collect())
}

/// `CREATE … PARTITION OF` would wait for every reader of the parent, and claims behind it.
async fn make(
    connection: &mut PgConnection,
    day: NaiveDate,
    known: &[Partition],
) -> Result<(), StoreError> {
    let name = partition_name(day);
    let next = day.succ_opt().ok_or_else(calendar)?;
    // Half detached by somebody: its bounds are taken until that is done.
    for partition in known.iter().filter(|partition| partition.standing == Standing::Detaching) {
        if partition.days.is_some_and(|(from, until)| from <= day && day < until) {
            execute(connection, finalize(&partition.table)).await?;
        }
    }
    // Built from a date alone: digits and hyphens.
    let ddl = format!(
        "create table if not exists {name} (like request_records including all) with (fillfactor = 70); \
         alter table request_records attach partition {name} for values from ('{day}') to ('{next}')"
    );
    execute(connection, ddl).await?;
    Ok(())
}

/// The statement that ends an interrupted detaching.
pub(super) fn finalize(table: &str) -> String {
    format!("alter table request_records detach partition {table} finalize")
}

/// Runs DDL, whose names come from the catalog, quoted, or from dates.
pub(super) async fn execute(connection: &mut PgConnection, ddl: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(ddl)).execute(connection).await.map(|_| ())
}

fn calendar() -> StoreError {
    StoreError::Bug("the calendar has ended".into())
}
