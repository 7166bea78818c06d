//! A streaming replica of a test's own server, to be promoted when that is killed.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use oncekey::postgres::Cluster;
use sqlx::postgres::PgPoolOptions;
use tokio::process::{Child, Command};

use super::database::TestDatabase;
use super::provider::patiently;

const NAME: &str = "standby";

/// A server that follows another one; killed when dropped.
pub struct Standby {
    server: Child,
    /// It lies beside the primary's.
    socket: PathBuf,
    port: u16,
    user: String,
}

impl Standby {
    /// Copies the server of this database and follows it. When this returns, every commit of the
    /// primary waits until it is on the standby's disk, but for those that ask not to.
    pub async fn of(primary: &Cluster, database: &TestDatabase) -> Self {
        let programs = fs::read_link(format!("/proc/{}/exe", primary.postmaster())).unwrap();
        let programs = programs.parent().unwrap();
        let owner = fs::metadata(primary.data_dir().join("data")).unwrap();
        let (uid, gid) = (owner.uid(), owner.gid());
        let data = primary.data_dir().join(NAME);
        fs::DirBuilder::new().mode(0o700).create(&data).unwrap();
        chown(&data, Some(uid), Some(gid)).unwrap();
        let program = |name: &str| {
            let mut command = Command::new(programs.join(name));
            command.env_clear().env("LC_ALL", "C").current_dir("/").uid(uid).gid(gid);
            command.stdin(Stdio::null()).arg("-D").arg(&data);
            command
        };
        let sockets = primary.socket_dir().display();
        let mut copying = program("pg_basebackup");
        copying.args(["--no-sync", "-R", "-X", "stream", "-c", "fast", "-d"]).arg(format!(
            "host={sockets} port={} user={} application_name={NAME}",
            primary.port(),
            primary.user()
        ));
        let copied = patiently("the copy", copying.output()).await.unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));

        let port = primary.port() + 1;
        let mut command = program("postgres");
        for parameter in [
            format!("port={port}"),
            format!("unix_socket_directories={sockets}"),
            "listen_addresses=".to_owned(),
            // A standby needs room for what its primary has.
            "max_connections=200".to_owned(),
            "fsync=off".to_owned(),
        ] {
            command.args(["-c", &parameter]);
        }
        let log = fs::File::create(primary.data_dir().join("standby.log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true);
        let server = command.spawn().unwrap();
        let socket = primary.socket_dir().join(format!(".s.PGSQL.{port}"));
        let standby = Self { server, socket, port, user: primary.user().to_owned() };

        let followers = "select count(*) from pg_stat_replication where state = 'streaming'";
        super::eventually("it follows", || async { database.count(followers).await == 1 }).await;
        for waiting in [
            &format!("alter system set synchronous_standby_names = '{NAME}'"),
            "select pg_reload_conf()",
        ] {
            database.execute(waiting).await;
        }
        let sync = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        super::eventually("commits wait for it", || async { database.count(sync).await == 1 })
            .await;
        standby
    }

    /// Where it takes connections.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The same database on it.
    pub async fn database(&self, name: &str) -> TestDatabase {
        let folder = self.socket.parent().unwrap().to_str().unwrap();
        let host: String = folder.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let url = format!("postgres://{}@{host}:{}/{name}", self.user, self.port);
        let pool = PgPoolOptions::new().max_connections(4).connect(&url).await.unwrap();
        TestDatabase { name: name.to_owned(), url, pool }
    }

    /// What the primary writes from now on does not reach it.
    pub async fn follow_no_more(&self, primary: &TestDatabase) {
        let database = self.database("postgres").await;
        database.execute("alter system set primary_conninfo = ''").await;
        database.execute("select pg_reload_conf()").await;
        let followers = "select count(*) from pg_stat_replication";
        super::eventually("nobody follows", || async { primary.count(followers).await == 0 }).await;
        database.pool.close().await;
    }

    /// Makes it a primary.
    pub async fn promote(&self) {
        let database = self.database("postgres").await;
        let promoted = database.text("select pg_promote(true, 60)::text").await;
        assert_eq!(promoted, "true");
        database.pool.close().await;
    }

    /// Ends it in good order.
    pub async fn stop(mut self) {
        let pid = self.server.id().unwrap().to_string();
        let told = Command::new("kill").args(["-INT", &pid]).status().await.unwrap();
        assert!(told.success());
        patiently("the standby to end", self.server.wait()).await.unwrap();
    }
}
