//! Dropping a day: judged, marked, detached without blocking anybody, then dropped.
//!
//! `DETACH … CONCURRENTLY` and not `DROP`: behind one open reader of the records a plain `DROP` or
//! `DETACH` waits in line for the exclusive lock of the parent, and every claim waits behind it. The
//! concurrent form is refused inside a transaction and leaves its half behind where it is interrupted
//! or has waited too long; so it has a session of its own, a short lock time-out, and a second form of
//! the statement that finishes what an earlier one began. Each call makes one attempt; who calls
//! decides how often.
//!
//! Between judging and detaching nobody may begin a run in the partition. New claims go to today's;
//! claiming a record again and giving one up take the day's lock shared, which is held here.

use std::time::Duration;

use chrono::{DateTime, Datelike, NaiveDate, Utc};
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::Store;
use super::error::StoreError;
use super::partitions::{Partition, RETIRED, Standing, attached, execute, finalize, now};
use super::session;
use crate::domain::partition::{Contents, DropRule, Stays};

/// Session lock of dropping and cleaning, so that one node at a time does it. Not that of making:
/// who waits for a reader must not keep others from making today's partition.
const DROPPING_LOCK: i64 = 0x6F6B_6472_6F70;
/// First half of the two-part lock of a day; the second is the day's number.
const DAY_LOCK: i32 = 0x6F6B_6461;
/// Longer than `deadlock_timeout` (1 s), after which an autovacuum makes way; shorter than what
/// making a partition waits for (2 s), which may have to wait for this.
const LOCK_TIMEOUT: &str = "1500ms";
/// Of one statement: counting what a partition holds reads all of it.
const STATEMENT_TIMEOUT: &str = "15min";
/// A server that takes a connection and says nothing is none of ours.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Transactions that are named where one waits for them.
const NAMED: i64 = 5;

/// A session for work on partitions.
pub struct PartitionSession {
    pub(super) connection: PgConnection,
    pub(super) clock_offset: PgInterval,
}

/// What became of one attempt to drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dropping {
    /// Now or, meanwhile, by somebody else.
    Dropped,
    /// It was half detached, so the detaching was finished; what it holds is kept as a table.
    Detached(Stays),
    Stays(Stays),
    /// Somebody is in the way: ask again, after looking at the partitions again.
    Waits(Vec<Reader>),
}

/// Why an attempt did not come to its end.
enum Hindrance {
    /// Somebody holds what it needs for longer than it waits.
    Locked,
    /// Somebody else has dropped or detached it meanwhile.
    Gone,
    Failed(StoreError),
}

impl From<StoreError> for Hindrance {
    fn from(error: StoreError) -> Self {
        Hindrance::Failed(error)
    }
}

impl From<sqlx::Error> for Hindrance {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|refusal| refusal.code());
        match code.as_deref() {
            Some("55P03") => Hindrance::Locked,
            Some("42P01") => Hindrance::Gone,
            _ => Hindrance::Failed(error.into()),
        }
    }
}

/// A transaction that has touched the records and is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    pub pid: i32,
    pub application: String,
    pub since: Option<DateTime<Utc>>,
}

impl Store {
    /// Opens a session, outside the pool and straight to the server: it waits for long, and what it
    /// does passes no pooler.
    pub async fn partition_session(&self) -> Result<PartitionSession, StoreError> {
        let opening = open(&self.direct);
        let connection = self.clock.timeout(CONNECT_LIMIT, opening).await;
        Ok(PartitionSession {
            connection: connection
                .map_err(|_| StoreError::unavailable("it did not answer in time"))??,
            clock_offset: self.clock_offset,
        })
    }
}

async fn open(options: &sqlx::postgres::PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = session::open(options).await?;
    let settings = format!(
        "set lock_timeout = '{LOCK_TIMEOUT}'; set statement_timeout = '{STATEMENT_TIMEOUT}'"
    );
    execute(&mut connection, settings).await?;
    Ok(connection)
}

impl PartitionSession {
    /// Takes the right to drop and to clean, until the session ends. `false`: another one still had
    /// it after 1.5 s.
    pub async fn alone(&mut self) -> Result<bool, StoreError> {
        let taken = sqlx::query!(
            r#"/* partitions.alone */ select pg_advisory_lock($1) as "locked!""#,
            DROPPING_LOCK,
        )
        .fetch_one(&mut self.connection)
        .await;
        match taken.map_err(Hindrance::from) {
            Ok(_) => Ok(true),
            Err(Hindrance::Locked) => Ok(false),
            Err(Hindrance::Gone) => Err(StoreError::Bug("a lock cannot be gone".into())),
            Err(Hindrance::Failed(error)) => Err(error),
        }
    }

    /// The database's time, as days and retentions see it.
    pub async fn now(&mut self) -> Result<DateTime<Utc>, StoreError> {
        now(&mut self.connection, self.clock_offset).await
    }

    /// What dropping has to do with, in the order in which it must: first what was left half done,
    /// since it blocks the rest, then the days in their order.
    pub async fn partitions(&mut self) -> Result<Vec<Partition>, StoreError> {
        let mut partitions = attached(&mut self.connection).await?;
        let left = sqlx::query_scalar!(
            r#"/* partitions.left */
            select d.objoid::regclass::text as "table!" from pg_description d
            join pg_class p on p.oid = d.objoid
            where d.classoid = 'pg_class'::regclass and d.objsubid = 0 and d.description = $1
                and p.relkind = 'r' and not exists (select from pg_inherits where inhrelid = p.oid)
            order by 1"#,
            RETIRED,
        )
        .fetch_all(&mut self.connection)
        .await?;
        partitions.extend(left.into_iter().map(|table| Partition {
            table,
            days: None,
            standing: Standing::Detached,
            retired: true,
        }));
        partitions.sort_by_key(|partition| match partition.standing {
            Standing::Detaching => 0,
            Standing::Detached => 1,
            Standing::Attached => 2,
        });
        Ok(partitions)
    }

    /// What a partition holds, as far as it matters here. Reads all of it.
    async fn contents(&mut self, partition: &Partition) -> Result<Contents, Hindrance> {
        // A name from the catalog, quoted there.
        let sql = format!(
            "/* partitions.contents */
            select count(*) filter (where state = 'in_progress') as live, max(completed_at) as newest
            from {}",
            partition.table
        );
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut self.connection).await?;
        Ok(Contents {
            live_claims: row.try_get("live")?,
            newest_completion: row.try_get("newest")?,
        })
    }

    /// One attempt to drop a partition as it was listed, if the rule lets it go. Needs
    /// [`PartitionSession::alone`].
    pub async fn retire(
        &mut self,
        partition: &Partition,
        rule: &DropRule,
    ) -> Result<Dropping, StoreError> {
        let attempt = match partition.standing {
            Standing::Detached => self.drop_table(&partition.table).await,
            Standing::Detaching => self.finish(partition, rule).await,
            Standing::Attached => self.begin(partition, rule).await,
        };
        match attempt {
            Ok(dropping) => Ok(dropping),
            Err(Hindrance::Locked) => Ok(Dropping::Waits(self.readers().await?)),
            Err(Hindrance::Gone) => Ok(Dropping::Dropped),
            Err(Hindrance::Failed(error)) => Err(error),
        }
    }

    async fn begin(
        &mut self,
        partition: &Partition,
        rule: &DropRule,
    ) -> Result<Dropping, Hindrance> {
        let day = partition.day();
        let now = self.now().await?;
        let (Some(day), None) = (day, rule.by_age(day, now)) else {
            let stays = rule.by_age(day, now).unwrap_or(Stays::NotADay);
            return self.keep(partition, stays).await;
        };
        self.lock_day(day).await?;
        let detached = self.judge_and_detach(partition, rule).await;
        // Detached or half detached, nothing can be claimed in it any more.
        let unlocked = self.unlock_day(day).await;
        let stays = detached?;
        unlocked?;
        match stays {
            Some(stays) => self.keep(partition, stays).await,
            None => self.drop_table(&partition.table).await,
        }
    }

    async fn judge_and_detach(
        &mut self,
        partition: &Partition,
        rule: &DropRule,
    ) -> Result<Option<Stays>, Hindrance> {
        let contents = self.contents(partition).await?;
        let now = self.now().await?;
        if let Some(stays) = rule.judge(partition.day(), &contents, now) {
            return Ok(Some(stays));
        }
        self.mark(partition, true).await?;
        execute(&mut self.connection, detach(&partition.table)).await?;
        Ok(None)
    }

    /// Finishes a detaching that was begun here or by hand. Nobody sees its records any more, so they
    /// are judged as they are.
    async fn finish(
        &mut self,
        partition: &Partition,
        rule: &DropRule,
    ) -> Result<Dropping, Hindrance> {
        let contents = self.contents(partition).await?;
        let now = self.now().await?;
        let stays = rule.judge(partition.day(), &contents, now).filter(|_| !partition.retired);
        if stays.is_none() {
            self.mark(partition, true).await?;
        }
        execute(&mut self.connection, finalize(&partition.table)).await?;
        match stays {
            Some(stays) => Ok(Dropping::Detached(stays)),
            None => self.drop_table(&partition.table).await,
        }
    }

    async fn keep(&mut self, partition: &Partition, stays: Stays) -> Result<Dropping, Hindrance> {
        if partition.retired {
            self.mark(partition, false).await?;
        }
        Ok(Dropping::Stays(stays))
    }

    async fn drop_table(&mut self, table: &str) -> Result<Dropping, Hindrance> {
        execute(&mut self.connection, drop(table)).await?;
        Ok(Dropping::Dropped)
    }

    async fn mark(&mut self, partition: &Partition, retired: bool) -> Result<(), Hindrance> {
        let text = if retired { format!("'{RETIRED}'") } else { "null".to_owned() };
        let ddl = format!("comment on table {} is {text}", partition.table);
        Ok(execute(&mut self.connection, ddl).await?)
    }

    async fn lock_day(&mut self, day: NaiveDate) -> Result<(), Hindrance> {
        sqlx::query!(
            r#"/* partitions.lock_day */ select pg_advisory_lock($1, $2) as "locked!""#,
            DAY_LOCK,
            day.num_days_from_ce(),
        )
        .fetch_one(&mut self.connection)
        .await?;
        Ok(())
    }

    async fn unlock_day(&mut self, day: NaiveDate) -> Result<(), Hindrance> {
        sqlx::query!(
            r#"/* partitions.unlock_day */ select pg_advisory_unlock($1, $2) as "unlocked!""#,
            DAY_LOCK,
            day.num_days_from_ce(),
        )
        .fetch_one(&mut self.connection)
        .await?;
        Ok(())
    }

    /// The oldest transactions that are in the way.
    async fn readers(&mut self) -> Result<Vec<Reader>, StoreError> {
        let readers = sqlx::query_as!(
            Reader,
            r#"/* partitions.readers */
            select distinct a.pid as "pid!", coalesce(a.application_name, '') as "application!",
                a.xact_start as "since?"
            from pg_locks l join pg_stat_activity a on a.pid = l.pid
            join pg_class p on p.oid = l.relation
            where l.locktype = 'relation' and l.granted and l.pid <> pg_backend_pid()
                and l.database = (select oid from pg_database where datname = current_database())
                and p.relname ^@ 'request_records' and p.relkind in ('p', 'r')
            order by 3 nulls last limit $1"#,
            NAMED,
        )
        .fetch_all(&mut self.connection)
        .await?;
        Ok(readers)
    }

    /// Ends the session in order, which gives its locks back at once.
    pub async fn close(self) -> Result<(), StoreError> {
        Ok(self.connection.close().await?)
    }
}

/// Keeps the partition of a day from being judged and dropped until the transaction ends: for whoever
/// is about to begin something in it. Taken before any row is locked.
pub(super) async fn hold_day(
    connection: &mut PgConnection,
    day: NaiveDate,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"/* partitions.hold_day */ select pg_advisory_xact_lock_shared($1, $2) as "held!""#,
        DAY_LOCK,
        day.num_days_from_ce(),
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

fn detach(table: &str) -> String {
    format!("alter table request_records detach partition {table} concurrently")
}

fn drop(table: &str) -> String {
    format!("drop table {table}")
}

impl Partition {
    /// The statements that drop it, for somebody who wants to do so by hand.
    pub fn dropping_sql(&self) -> Vec<String> {
        let first = match self.standing {
            Standing::Attached => Some(detach(&self.table)),
            Standing::Detaching => Some(finalize(&self.table)),
            Standing::Detached => None,
        };
        first.into_iter().chain([drop(&self.table)]).collect()
    }
}
