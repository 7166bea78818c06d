//! A database of its own for every test, on one private cluster per test binary.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use oncekey::postgres::{Cluster, ClusterSettings, start_or_attach};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use tokio::sync::OnceCell;

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(1);
const TEMPLATE: &str = "template_of_tests";

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
            let cluster = tokio::task::spawn_blocking(move || start_or_attach(&settings))
                .await
                .unwrap()
                .unwrap();
            make_template(&cluster).await;
            cluster
        })
        .await
}

async fn make_template(cluster: &Cluster) {
    let mut admin = PgConnection::connect(&cluster.connection_url()).await.unwrap();
    let old: Vec<String> = sqlx::query_scalar(
        "select datname::text from pg_database where datname like 'test_%' or datname = $1",
    )
    .bind(TEMPLATE)
    .fetch_all(&mut admin)
    .await
    .unwrap();
    for name in old {
        execute(&mut admin, &format!("drop database \"{name}\" with (force)")).await;
    }
    execute(&mut admin, &format!("create database {TEMPLATE}")).await;
    let options: PgConnectOptions = cluster.connection_url().parse().unwrap();
    let mut template = options.database(TEMPLATE).connect().await.unwrap();
    sqlx::migrate!().run(&mut template).await.unwrap();
    template.close().await.unwrap();
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

impl TestDatabase {
    pub async fn new() -> Self {
        let cluster = cluster().await;
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&cluster.connection_url()).await.unwrap();
        execute(&mut admin, &format!("create database {name} template {TEMPLATE}")).await;
        admin.close().await.unwrap();
        let url = url_of(&cluster.connection_url(), &name);
        let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
        Self { name, url, pool }
    }

    /// A server process of this database's own, for tests that kill it.
    pub async fn with_own_server(folder: &str) -> (Self, Cluster) {
        let cluster = own_server(folder, &[]).await;
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

    /// Runs statements.
    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap();
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

    /// Waits until no record is in progress.
    pub async fn until_settled(&self) {
        super::eventually("no record is in progress", || async {
            self.count("select count(*) from request_records where state = 'in_progress'").await
                == 0
        })
        .await;
    }
}

/// Starts a server in a folder of its own, again where it was stopped before.
pub async fn own_server(folder: &str, parameters: &[(&str, &str)]) -> Cluster {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let mut settings = ClusterSettings::new(folder).parameter("fsync", "off");
    for (name, value) in parameters {
        settings = settings.parameter(name, value);
    }
    tokio::task::spawn_blocking(move || start_or_attach(&settings)).await.unwrap().unwrap()
}

fn url_of(cluster_url: &str, name: &str) -> String {
    let options: PgConnectOptions = cluster_url.parse().unwrap();
    options.database(name).to_url_lossy().to_string()
}
