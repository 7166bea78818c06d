//! The PostgreSQL server of one lane of histories: stopped, killed and aged on command, and looked at
//! patiently where it is just coming back.

use std::future::Future;
use std::time::Duration;

use oncekey::background::{clear_keys, drop_old};
use oncekey::clock::Clock;
use oncekey::domain::partition::DropRule;
use oncekey::postgres::Cluster;
use oncekey::store::StoreError;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::journal::Journal;
use super::world::store_ahead;
use crate::support::TestDatabase;
use crate::support::database::start_server;

/// One history after the other has it to itself.
pub struct Server {
    folder: String,
    cluster: Option<Cluster>,
}

/// What tests give up (durability over the machine's end), and what they want: claims that are
/// forgotten in a crash, which a server that flushes five times a second hardly does. A recovery
/// waits for connections that have not yet said who they are; here they stand behind frozen lines.
const PARAMETERS: [(&str, &str); 5] = [
    ("authentication_timeout", "1s"),
    ("wal_writer_delay", "10s"),
    ("wal_writer_flush_after", "1GB"),
    ("full_page_writes", "off"),
    ("max_connections", "300"),
];

/// How long a drop waits for a transaction that is in its way.
const PATIENCE_OF_A_DROP: Duration = Duration::from_secs(1);

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

/// Kills the process of one session, which the server answers with a recovery. Ready once it has
/// begun: a moment earlier the other sessions still answer.
pub async fn crash(database: &TestDatabase, session: usize) {
    let Ok(mut witness) = database.pool.acquire().await else { return };
    let pid: Result<Option<i32>, _> =
        sqlx::query_scalar(AssertSqlSafe(nth(session))).fetch_optional(&mut *witness).await;
    let Ok(Some(pid)) = pid else { return };
    let kill = tokio::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    drop(kill.await);
    let cut = async {
        while sqlx::query("select 1").execute(&mut *witness).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    drop(tokio::time::timeout(Duration::from_millis(500), cut).await);
}

/// Every run in progress has been silent for an hour, and the server is older than that.
pub async fn age(database: &TestDatabase) {
    let sql = "set lock_timeout = '300ms'; \
        update server_epoch set first_seen = first_seen - interval '1 hour'; \
        update request_records set heartbeat_at = heartbeat_at - interval '1 hour' \
            where state = 'in_progress'";
    drop(sqlx::raw_sql(sql).execute(&database.pool).await);
}

/// Watches every step from now on.
pub async fn watch(database: &TestDatabase, calm: bool) {
    database.execute(include_str!("watch.sql")).await;
    // As the nodes are configured: two beats of grace.
    let (stale_after, grace) = if calm { ("60s", "12s") } else { ("3s", "400ms") };
    database
        .execute(&format!("insert into sim_rules values ('{stale_after}', '{grace}', {calm})"))
        .await;
}

/// Drops the partition of the day that is `days` ahead by hand, unless something runs in it or
/// somebody is in the way.
pub async fn drop_day(database: &TestDatabase, days: i64) -> Result<(), sqlx::Error> {
    let name: String = sqlx::query_scalar(
        "select 'request_records_' || to_char((clock_timestamp() at time zone 'UTC')::date \
         + $1::int, 'YYYYMMDD')",
    )
    .bind(i32::try_from(days).unwrap())
    .fetch_one(&database.pool)
    .await?;
    let mut transaction = database.pool.begin().await?;
    let lock = format!("set local lock_timeout = '500ms'; lock table {name}");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await?;
    let running = format!("select count(*) from {name} where state = 'in_progress'");
    let running: i64 =
        sqlx::query_scalar(AssertSqlSafe(running)).fetch_one(&mut *transaction).await?;
    if running > 0 {
        return transaction.rollback().await;
    }
    let drop = format!("drop table {name}");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut *transaction).await?;
    transaction.commit().await
}

/// Lets the product drop everything up to that day, and clear away what then means nothing.
pub async fn retire(database: &TestDatabase, days: i64, journal: &Journal) -> Result<(), String> {
    let store = store_ahead(database, days + 1);
    let rule = DropRule { retention: Duration::ZERO, older_than: Duration::ZERO };
    let work = async {
        let mut session = store.partition_session().await?;
        if !session.alone().await? {
            return Ok(());
        }
        let tell = |what| journal.note(format!("{what:?}"));
        drop_old(&mut session, &rule, PATIENCE_OF_A_DROP, &Clock::system(), tell).await?;
        clear_keys(&mut session, Duration::from_secs(3_600)).await?;
        session.close().await
    };
    work.await.map_err(|error: StoreError| error.to_string())
}
