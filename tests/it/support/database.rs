//! A database of its own for every test, on one private cluster per test binary.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncekey::clock::Clock;
use oncekey::domain::liveness::LivenessRules;
use oncekey::postgres::{Cluster, ClusterSettings, start_or_attach};
use oncekey::store::{Store, StoreSettings};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// The first half of a node's advisory lock, as operators find it in `pg_locks`.
const NODE_LOCK: u32 = 0x6F6B_6E64;

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(1);

/// An empty, migrated database.
pub struct TestDatabase {
    pub name: String,
    /// Straight to the server.
    pub url: String,
    /// For looking at what the product did, and for breaking it.
    pub pool: PgPool,
}

/// Tests give durability up: they restart the server, never the machine.
async fn cluster() -> &'static Cluster {
    CLUSTER
        .get_or_init(|| async {
            let name = format!("postgres-{}", env!("CARGO_CRATE_NAME"));
            let settings =
                ClusterSettings::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
                    .parameter("fsync", "off")
                    .parameter("full_page_writes", "off")
                    .parameter("max_connections", "400");
            let cluster = tokio::task::spawn_blocking(move || start_empty(&settings)).await;
            let cluster = cluster.unwrap();
            make_template(&cluster).await;
            cluster
        })
        .await
}

/// Making a cluster takes a second; dropping the databases of an earlier run takes longer than the
/// tests, so its cluster is put aside and cleared away beside them. Where another test process has it
/// already, it is shared as it is.
fn start_empty(settings: &ClusterSettings) -> Cluster {
    let cluster = start_or_attach(settings).unwrap();
    if cluster.fresh() || !cluster.owned() {
        return cluster;
    }
    let home = cluster.data_dir().to_owned();
    cluster.stop().unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::rename(home, folder.join(format!("trash-{}", std::process::id()))).unwrap();
    // What this process does not come to the end of, the next one does.
    std::thread::spawn(move || {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("trash-") {
                drop(std::fs::remove_dir_all(entry.path()));
            }
        }
    });
    start_or_attach(settings).unwrap()
}

fn template() -> String {
    format!("template_{}", std::process::id())
}

async fn make_template(cluster: &Cluster) {
    let mut admin = PgConnection::connect(&cluster.connection_url()).await.unwrap();
    execute(&mut admin, &format!("create database {}", template())).await;
    let options: PgConnectOptions = cluster.connection_url().parse().unwrap();
    let mut template = options.database(&template()).connect().await.unwrap();
    sqlx::migrate!().run(&mut template).await.unwrap();
    template.close().await.unwrap();
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

/// Starts a server of a test's own in this folder; also once more, after its end.
pub async fn start_server(folder: &str, parameters: &[(&str, &str)]) -> Cluster {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let mut settings = ClusterSettings::new(home).parameter("fsync", "off");
    for (name, value) in parameters {
        settings = settings.parameter(name, value);
    }
    tokio::task::spawn_blocking(move || start_or_attach(&settings)).await.unwrap().unwrap()
}

impl TestDatabase {
    pub async fn new() -> Self {
        let cluster = cluster().await;
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&cluster.connection_url()).await.unwrap();
        execute(&mut admin, &format!("create database {name} template {}", template())).await;
        admin.close().await.unwrap();
        let url = url_of(&cluster.connection_url(), &name);
        let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
        Self { name, url, pool }
    }

    /// A server process of this database's own, for tests that kill it.
    pub async fn with_own_server(folder: &str) -> (Self, Cluster) {
        let cluster = start_server(folder, &[]).await;
        (Self::empty_on(&cluster).await, cluster)
    }

    /// The same on a server that was made just now: nothing of an earlier run is on it.
    pub async fn with_fresh_server(folder: &str) -> (Self, Cluster) {
        let mut cluster = start_server(folder, &[]).await;
        if !cluster.fresh() {
            let home = cluster.data_dir().to_owned();
            tokio::task::spawn_blocking(move || cluster.stop()).await.unwrap().unwrap();
            std::fs::remove_dir_all(home).unwrap();
            cluster = start_server(folder, &[]).await;
        }
        (Self::empty_on(&cluster).await, cluster)
    }

    /// An empty database on a server that writes nothing of its own accord, so that its WAL tells
    /// what a statement wrote.
    pub async fn quiet(folder: &str) -> (Self, Cluster) {
        let quiet = [
            ("autovacuum", "off"),
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
            ("checkpoint_timeout", "1h"),
        ];
        let cluster = start_server(folder, &quiet).await;
        (Self::empty_on(&cluster).await, cluster)
    }

    /// A new database without tables on such a server.
    pub async fn empty_on(cluster: &Cluster) -> Self {
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&cluster.connection_url()).await.unwrap();
        execute(&mut admin, &format!("drop database if exists {name} with (force)")).await;
        execute(&mut admin, &format!("create database {name}")).await;
        admin.close().await.unwrap();
        let url = url_of(&cluster.connection_url(), &name);
        let pool = PgPoolOptions::new().max_connections(4).connect(&url).await.unwrap();
        Self { name, url, pool }
    }

    /// The socket that a proxy puts itself before.
    pub fn socket(&self) -> PathBuf {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let folder = options.get_socket().unwrap();
        folder.join(format!(".s.PGSQL.{}", options.get_port()))
    }

    /// The address of this database through a proxy on loopback.
    pub fn url_through(&self, port: u16) -> String {
        let options: PgConnectOptions = self.url.parse().unwrap();
        format!(
            "postgres://{}@127.0.0.1:{port}/{}?sslmode=disable",
            options.get_username(),
            self.name
        )
    }

    /// One number of a statement.
    pub async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }

    /// One text of a statement.
    pub async fn text(&self, sql: &str) -> String {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }

    /// Runs statements.
    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap();
    }

    /// A store of the test's own, for making API keys and checking invariants.
    pub fn store(&self) -> Store {
        let settings = StoreSettings {
            url: self.url.clone(),
            direct_url: None,
            pool_size: 2,
            coalesce: coalesces(),
            liveness: LivenessRules {
                stale_after: Duration::from_secs(60),
                grace: Duration::from_secs(12),
            },
            clock_offset: Duration::ZERO,
        };
        Store::new(settings, Clock::system()).unwrap()
    }

    /// Makes this incarnation of the database a day old, so that silence, free locks and unknown
    /// owners count.
    pub async fn age_epoch(&self) {
        self.execute(
            "insert into server_epoch (first_seen) values (clock_timestamp() - interval '1 day')
            on conflict (one) do update set first_seen = excluded.first_seen",
        )
        .await;
    }

    /// Makes every run silent for longer than `stale_after`.
    pub async fn age_heartbeats(&self) {
        self.execute(
            "update request_records set heartbeat_at = clock_timestamp() - interval '1 day'
            where state = 'in_progress'",
        )
        .await;
    }

    /// Committed operations, receipts and events.
    pub async fn outcomes(&self) -> (i64, i64, i64) {
        let turns = self.count("select count(*) from turns").await;
        assert_eq!(turns % 2, 0, "an operation leaves two turns");
        (
            turns / 2,
            self.count("select count(*) from usage_receipts").await,
            self.count("select count(*) from outbox").await,
        )
    }

    /// As if the run under this key had not beaten for ten minutes.
    pub async fn silence(&self, key: Uuid) {
        let aged = "update request_records
            set heartbeat_at = clock_timestamp() - interval '10 minutes'
            where state = 'in_progress' and idempotency_key = $1";
        let aged = sqlx::query(aged).bind(key).execute(&self.pool).await.unwrap();
        assert_eq!(aged.rows_affected(), 1, "{key} runs");
    }

    /// Fence, attempts, state and kind of failure of the one record under a key.
    pub async fn standing(&self, key: Uuid) -> (i64, i32, String, Option<String>) {
        let sql = "select fence, attempts, state, failure_kind from request_records
            where idempotency_key = $1";
        sqlx::query_as(sql).bind(key).fetch_one(&self.pool).await.unwrap()
    }

    /// The id under which the node at this address is registered.
    pub async fn node_at(&self, address: SocketAddr) -> i64 {
        let sql = format!("select max(node_id) from nodes where advertised = 'http://{address}'");
        self.count(&sql).await
    }

    /// The session that holds this node's lock; 0 where nobody does.
    pub async fn lock_session(&self, node: i64) -> i64 {
        let sql = format!(
            "select coalesce(max(pid), 0)::bigint from pg_locks
            where locktype = 'advisory' and classid = {NODE_LOCK} and objid = {node} and granted
                and mode = 'ExclusiveLock' and objsubid = 2
                and database = (select oid from pg_database where datname = current_database())"
        );
        self.count(&sql).await
    }

    /// Waits until a statement that begins with this comment waits for a lock; its session.
    pub async fn until_waits_for_lock(&self, statement: &str) -> i64 {
        let sql = format!(
            "select coalesce(max(pid), 0)::bigint from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'
                and starts_with(query, '/* {statement} */')"
        );
        super::eventually(&format!("{statement} waits for a lock"), || async {
            self.count(&sql).await != 0
        })
        .await;
        self.count(&sql).await
    }

    /// Waits until so many sessions wait for a lock.
    pub async fn until_waiting(&self, sessions: i64) {
        super::eventually("a session waits for a lock", || async {
            let waiting = "select count(*) from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock'";
            self.count(waiting).await == sessions
        })
        .await;
    }

    /// Closes these stores, so that their sessions have told what they met, and counts the
    /// deadlocks: the store itself repeats such a transaction and says nothing.
    pub async fn deadlocks_once_closed(&self, stores: impl IntoIterator<Item = Store>) -> i64 {
        for store in stores {
            store.close().await;
        }
        super::eventually("the product's sessions are closed", || async {
            let open = "select count(*) from pg_stat_activity
                where datname = current_database() and application_name = 'oncekey'";
            self.count(open).await == 0
        })
        .await;
        self.count("select deadlocks from pg_stat_database where datname = current_database()")
            .await
    }

    /// Waits until no record is in progress.
    pub async fn until_settled(&self) {
        super::eventually("no record is in progress", || async {
            self.count("select count(*) from request_records where state = 'in_progress'").await
                == 0
        })
        .await;
    }
}

fn url_of(cluster_url: &str, name: &str) -> String {
    let options: PgConnectOptions = cluster_url.parse().unwrap();
    options.database(name).to_url_lossy().to_string()
}

/// Whether nodes and stores of tests coalesce their statements; `ONCEKEY_TEST_COALESCE=off` runs the same
/// tests without.
pub fn coalesces() -> bool {
    std::env::var("ONCEKEY_TEST_COALESCE").as_deref() != Ok("off")
}
