//! The PostgreSQL server of one lane of histories: stopped, killed and aged on command, and looked at
//! patiently where it is just coming back.

use std::future::Future;
use std::time::Duration;

use oncekey::postgres::Cluster;
use sqlx::types::Uuid;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::TestDatabase;
use crate::support::database::start_server;

/// One history after the other has it to itself.
pub struct Server {
    folder: String,
    cluster: Option<Cluster>,
}

/// What tests give up (durability over the machine's end), and what they want: claims that are
/// forgotten in a crash, which a server that flushes five times a second hardly does.
const PARAMETERS: [(&str, &str); 4] = [
    ("wal_writer_delay", "10s"),
    ("wal_writer_flush_after", "1GB"),
    ("full_page_writes", "off"),
    ("max_connections", "300"),
];

impl Server {
    pub fn new(folder: String) -> Self {
        Self { folder, cluster: None }
    }

    /// The running server; started where it is not.
    pub async fn up(&mut self) -> &Cluster {
        if self.cluster.is_none() {
            self.cluster = Some(start_server(&self.folder, &PARAMETERS).await);
        }
        self.cluster.as_ref().unwrap()
    }

    /// Clears a database away.
    pub async fn forget(&mut self, name: &str) {
        let mut admin = PgConnection::connect(&self.up().await.connection_url()).await.unwrap();
        let sql = format!("drop database if exists {name} with (force)");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    }

    /// Ends it in good order.
    pub async fn down(&mut self) {
        if let Some(cluster) = self.cluster.take() {
            tokio::task::spawn_blocking(move || cluster.stop()).await.unwrap().unwrap();
        }
    }
}

/// Sessions of nodes on this database.
const SESSIONS: &str = "from pg_stat_activity where datname = current_database() \
    and application_name = 'oncekey' and pid <> pg_backend_pid()";

/// A look that fails while the server is away is taken again.
pub async fn patiently<T, F, R>(what: &str, look: F) -> T
where
    F: Fn() -> R,
    R: Future<Output = Result<T, sqlx::Error>>,
{
    let tries = async {
        loop {
            match look().await {
                Ok(found) => return found,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    match tokio::time::timeout(crate::support::PATIENCE, tries).await {
        Ok(found) => found,
        Err(_) => panic!("the database did not come back: {what}"),
    }
}

/// Waits until the server answers.
pub async fn answers(database: &TestDatabase) {
    patiently("a look", || sqlx::query("select 1").execute(&database.pool)).await;
}

/// The process of the n-th session, counted round.
fn nth(session: usize) -> String {
    format!(
        "(select pid from (select pid, row_number() over (order by pid) as n, count(*) over () as \
         sessions {SESSIONS}) numbered where n = 1 + {session} % sessions)"
    )
}

/// Ends one session in good order.
pub async fn terminate(database: &TestDatabase, session: usize) {
    let sql = format!("select pg_terminate_backend(pid) from {} one", nth(session));
    drop(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&database.pool).await);
}

/// Kills the process of one session, which the server answers with a recovery.
pub async fn crash(database: &TestDatabase, session: usize) {
    let pid: Result<Option<i32>, _> =
        sqlx::query_scalar(AssertSqlSafe(nth(session))).fetch_optional(&database.pool).await;
    if let Ok(Some(pid)) = pid {
        let kill = tokio::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        drop(kill.await);
    }
}

/// Every run in progress has been silent for an hour, and the server is older than that.
pub async fn age(database: &TestDatabase) {
    let sql = "set lock_timeout = '300ms'; \
        update server_epoch set first_seen = first_seen - interval '1 hour'; \
        update request_records set heartbeat_at = heartbeat_at - interval '1 hour' \
            where state = 'in_progress'";
    drop(sqlx::raw_sql(sql).execute(&database.pool).await);
}

/// Drops the partition of the day that is `days` ahead, unless something runs in it or somebody is
/// in the way. Returns the keys that are forgotten by it.
pub async fn drop_day(database: &TestDatabase, days: i64) -> Vec<(String, Uuid)> {
    let name = patiently("a day", || async {
        sqlx::query_scalar::<_, String>(
            "select 'request_records_' || to_char((clock_timestamp() at time zone 'UTC')::date \
             + $1::int, 'YYYYMMDD')",
        )
        .bind(i32::try_from(days).unwrap())
        .fetch_one(&database.pool)
        .await
    })
    .await;
    let mut keys = Vec::new();
    if try_drop(database, &name, &mut keys).await.is_ok() {
        return keys;
    }
    // The server may have gone away with the drop done and its answer not sent.
    let stands = patiently("a partition", || async {
        sqlx::query_scalar::<_, bool>("select to_regclass($1) is not null")
            .bind(&name)
            .fetch_one(&database.pool)
            .await
    })
    .await;
    if stands { Vec::new() } else { keys }
}

async fn try_drop(
    database: &TestDatabase,
    name: &str,
    keys: &mut Vec<(String, Uuid)>,
) -> Result<(), sqlx::Error> {
    let mut transaction = database.pool.begin().await?;
    let lock = format!("set local lock_timeout = '500ms'; lock table {name}");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await?;
    let running = format!("select count(*) from {name} where state = 'in_progress'");
    let running: i64 =
        sqlx::query_scalar(AssertSqlSafe(running)).fetch_one(&mut *transaction).await?;
    if running > 0 {
        return Ok(());
    }
    let all = format!("select tenant_id, idempotency_key from {name}");
    let found = sqlx::query_as(AssertSqlSafe(all)).fetch_all(&mut *transaction).await?;
    let drop = format!("drop table {name}");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut *transaction).await?;
    *keys = found;
    transaction.commit().await
}
