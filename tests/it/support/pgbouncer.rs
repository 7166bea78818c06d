//! PgBouncer before a test's database, in transaction mode with few connections, so that statements hop
//! from one to the other.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::process::Stdio;

use sqlx::postgres::PgConnectOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use super::database::TestDatabase;

/// Names the program; the system's may be too old.
const PROGRAM: &str = "ONCEKEY_TEST_PGBOUNCER";

/// A running one; killed when dropped.
pub struct PgBouncer {
    _server: Child,
    /// The database through it.
    pub url: String,
}

impl PgBouncer {
    /// Starts the program that the variable names.
    pub async fn before(database: &TestDatabase) -> Self {
        let program = std::env::var(PROGRAM).expect(PROGRAM);
        let options: PgConnectOptions = database.url.parse().unwrap();
        let user = options.get_username().to_owned();
        let sockets = options.get_socket().unwrap().clone();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        // It refuses to be root, as the server does: the user that may use the server's socket.
        let owner = fs::metadata(&sockets).unwrap();
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-pgbouncer", database.name));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir(&folder).unwrap();
        let users = format!("\"{user}\" \"\"\n");
        let settings = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}/users\n\
             pool_mode = transaction\nmax_prepared_statements = 500\ndefault_pool_size = 3\n\
             max_client_conn = 200\nignore_startup_parameters = extra_float_digits\n",
            sockets.display(),
            options.get_port(),
            folder.display(),
        );
        for (name, text) in [("users", users), ("settings.ini", settings)] {
            fs::write(folder.join(name), text).unwrap();
            chown(folder.join(name), Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        let log = fs::File::create(folder.join("log")).unwrap();
        let server = Command::new(program)
            .arg(folder.join("settings.ini"))
            .uid(owner.uid())
            .gid(owner.gid())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        super::eventually("it listens", || async {
            TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
        Self { _server: server, url: database.url_through(port) }
    }
}
