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
}

/// A session at the server, and the databases that were made there.
pub struct Server {
    session: Mutex<PgConnection>,
    options: PgConnectOptions,
    made: Mutex<Vec<String>>,
    /// Where the server runs on this machine.
    pub postmaster: Option<i32>,
    pub version: String,
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
        Ok(Self { session, options, made, postmaster, version })
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

    /// Drops what was made.
    pub async fn clear(&self) -> Result<(), BenchError> {
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

/// A store of one connection, for setting up a database and for claims without HTTP.
pub fn store(url: &str, clock: &Clock) -> Result<Store, BenchError> {
    let settings = StoreSettings {
        url: url.to_owned(),
        direct_url: None,
        pool_size: 1,
        liveness: LivenessRules {
            stale_after: Duration::from_secs(60),
            grace: Duration::from_secs(12),
        },
        clock_offset: Duration::ZERO,
    };
    Ok(Store::new(settings, clock.clone())?)
}
