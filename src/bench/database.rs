//! Databases that are made for a run and dropped after it, and what their server tells of itself.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::sync::Mutex;

use super::{BenchError, machine};
use crate::clock::Clock;
use crate::domain::liveness::LivenessRules;
use crate::store::{Store, StoreSettings};

/// The server to measure on.
pub struct Target {
    /// An address under which databases may be made.
    pub url: String,
    /// Whether the whole server goes away after the run, so that its settings may be changed.
    pub throw_away: bool,
}

/// A session at the server, and the databases that were made there.
pub struct Server {
    session: Mutex<PgConnection>,
    options: PgConnectOptions,
    made: Mutex<Vec<String>>,
    /// Where the server runs on this machine.
    pub postmaster: Option<i32>,
    pub version: String,
    throw_away: bool,
    /// A session that can read the write-ahead log, where the server lets one.
    reader: Mutex<Option<PgConnection>>,
}

impl Server {
    pub async fn connect(target: &Target) -> Result<Self, BenchError> {
        let options: PgConnectOptions = target.url.parse()?;
        let mut session = options.connect().await?;
        let (version, backend): (String, i32) =
            sqlx::query_as("select current_setting('server_version'), pg_backend_pid()")
                .fetch_one(&mut session)
                .await?;
        let postmaster = machine::postmaster_of(backend);
        let (session, made) = (Mutex::new(session), Mutex::default());
        let throw_away = target.throw_away;
        let reader = Mutex::default();
        let server = Self { session, options, made, postmaster, version, throw_away, reader };
        *server.reader.lock().await = server.log_reader().await?;
        Ok(server)
    }

    /// Makes an empty database of this run. Returns its address.
    pub async fn make(&self, name: &str) -> Result<String, BenchError> {
        let name = format!("oncekey_bench_{}_{name}", std::process::id());
        let mut session = self.session.lock().await;
        // Letters, digits and underscores alone.
        for statement in [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *session).await?;
        }
        self.made.lock().await.push(name.clone());
        Ok(self.options.clone().database(&name).to_url_lossy().to_string())
    }

    /// Reading the log takes an extension, which goes into a database of this run's own. None where
    /// the server does not have it or this role may not.
    async fn log_reader(&self) -> Result<Option<PgConnection>, BenchError> {
        let url = self.make("log").await?;
        let mut session = session(&url).await?;
        let made = sqlx::raw_sql("create extension pg_walinspect").execute(&mut session).await;
        Ok(made.is_ok().then_some(session))
    }

    /// Drops what was made.
    pub async fn clear(&self) -> Result<(), BenchError> {
        *self.reader.lock().await = None;
        let mut session = self.session.lock().await;
        for name in self.made.lock().await.drain(..) {
            let statement = format!("drop database if exists {name} with (force)");
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *session).await?;
        }
        Ok(())
    }

    /// Where the write-ahead log ends, in bytes since its beginning.
    pub async fn wal_bytes(&self) -> Result<i64, BenchError> {
        let mut session = self.session.lock().await;
        let bytes = sqlx::query_scalar("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
            .fetch_one(&mut *session)
            .await?;
        Ok(bytes)
    }

    /// How many bytes of the write-ahead log between two of its places are images of whole pages:
    /// the first change of a page after a checkpoint is written with all of the page.
    pub async fn page_image_bytes(&self, from: i64, to: i64) -> Option<i64> {
        let mut reader = self.reader.lock().await;
        let reader = reader.as_mut()?;
        // What was committed without waiting may not be in the file yet, which is what is read; a
        // commit that waits brings it there.
        sqlx::raw_sql("select pg_logical_emit_message(true, 'bench', '')")
            .execute(&mut *reader)
            .await
            .ok()?;
        sqlx::query_scalar(
            "select sum(fpi_size)::bigint
            from pg_get_wal_stats('0/0'::pg_lsn + $1::bigint, '0/0'::pg_lsn + $2::bigint)",
        )
        .bind(from)
        .bind(to)
        .fetch_one(reader)
        .await
        .ok()
        .flatten()
    }

    /// Lets a throw-away server leave page images out of its log, or write them again, from a
    /// checkpoint on. `false` on any other server, which stays as it is.
    pub async fn page_images(&self, written: bool) -> Result<bool, BenchError> {
        if !self.throw_away {
            return Ok(false);
        }
        let mut session = self.session.lock().await;
        let change = format!("alter system set full_page_writes = {written}");
        sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut *session).await?;
        sqlx::raw_sql("select pg_reload_conf()").execute(&mut *session).await?;
        // The process that makes checkpoints is the one that brings the setting to all others.
        sqlx::raw_sql("checkpoint").execute(&mut *session).await?;
        Ok(true)
    }

    /// When each session of the database last asked what became of the runs that are waited for.
    pub async fn polls(&self, url: &str) -> Result<Vec<(i32, DateTime<Utc>)>, BenchError> {
        let options: PgConnectOptions = url.parse()?;
        let mut session = self.session.lock().await;
        let polls = sqlx::query_as(
            "select pid, query_start from pg_stat_activity
            where datname = $1 and query like '/* watch */%' and query_start is not null",
        )
        .bind(options.get_database().unwrap_or_default().to_owned())
        .fetch_all(&mut *session)
        .await?;
        Ok(polls)
    }

    /// Writes everything out, so that no load pays for what was loaded before it. Without effect for
    /// a user who may not.
    pub async fn settle(&self) {
        let mut session = self.session.lock().await;
        drop(sqlx::raw_sql("checkpoint").execute(&mut *session).await);
    }
}

/// Opens a session at one of the databases.
pub async fn session(url: &str) -> Result<PgConnection, BenchError> {
    Ok(PgConnection::connect(url).await?)
}

/// How long the last so many calls to a provider took, in the middle, in milliseconds.
pub async fn median_of_last_calls(
    session: &mut PgConnection,
    count: usize,
) -> Result<f64, BenchError> {
    let median = sqlx::query_scalar(
        "select percentile_cont(0.5) within group (order by took)::float8 from (
            select 1000 * extract(epoch from ended_at - started_at) as took from provider_calls
            order by started_at desc limit $1) calls",
    )
    .bind(i64::try_from(count).unwrap_or(i64::MAX))
    .fetch_one(session)
    .await?;
    Ok(median)
}

/// A store of so many connections, for setting up a database and for what is measured without HTTP.
pub fn store(url: &str, clock: &Clock, pool_size: u32) -> Result<Store, BenchError> {
    let settings = StoreSettings {
        url: url.to_owned(),
        direct_url: None,
        pool_size,
        coalesce: true,
        liveness: LivenessRules {
            stale_after: Duration::from_secs(60),
            grace: Duration::from_secs(12),
        },
        clock_offset: Duration::ZERO,
    };
    Ok(Store::new(settings, clock.clone())?)
}
