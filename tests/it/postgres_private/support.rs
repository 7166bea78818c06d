//! What the tests of the private cluster share: a folder each, a second process, a question to the
//! server, and the end of a process as an event.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use oncekey::postgres::{Cluster, ClusterSettings, start_or_attach};
use sqlx::{Connection, PgConnection};

/// Names the data directory for the other process; without it the entry does nothing.
const DATA_DIR: &str = "ONCEKEY_TEST_PRIVATE_DATA_DIR";

/// A folder of one test, which every user may pass through. Gone at the end.
pub(crate) struct Ground(pub(crate) PathBuf);

impl Ground {
    pub(crate) fn new(test: &str) -> Self {
        let dir = PathBuf::from(format!("/tmp/oncekey-it-{}-{test}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    pub(crate) fn settings(&self) -> ClusterSettings {
        settings(&self.0.join("data"))
    }

    /// The folder that the cluster of [`Ground::settings`] takes.
    pub(crate) fn home(&self) -> PathBuf {
        self.0.join("data/postgres")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A small and quick cluster; the state root lies beside the data directory.
pub(crate) fn settings(data_dir: &Path) -> ClusterSettings {
    let mut settings = ClusterSettings::new(data_dir)
        .parameter("fsync", "off")
        .parameter("shared_buffers", "16MB");
    settings.state_root = data_dir.with_file_name("state");
    settings
}

pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Runs statements over the cluster's URL; the answer is the single value of the last one.
pub(crate) fn ask(cluster: &Cluster, statements: &[&'static str]) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut session = PgConnection::connect(&cluster.connection_url()).await.unwrap();
        let (last, before) = statements.split_last().unwrap();
        for statement in before {
            sqlx::raw_sql(*statement).execute(&mut session).await.unwrap();
        }
        let answer = sqlx::query_scalar(*last).fetch_one(&mut session).await.unwrap();
        session.close().await.unwrap();
        answer
    })
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// This test binary once more, which starts or attaches to the cluster and says what it has, then
/// waits for the end of its input.
pub(crate) struct Other {
    pub(crate) child: Child,
    pub(crate) owned: bool,
    pub(crate) postmaster: i32,
}

impl Other {
    pub(crate) fn start(data_dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["postgres_private::support::entry_of_another_process", "--exact", "--ignored"])
            .arg("--nocapture")
            .env(DATA_DIR, data_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
        let line = lines.filter_map(|line| Some(line.split_once("cluster: ")?.1.to_owned()));
        let line = { line }.next().expect("the other process has a cluster");
        let (owned, postmaster) = line.split_once(' ').unwrap();
        Self { child, owned: owned.parse().unwrap(), postmaster: postmaster.parse().unwrap() }
    }

    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
#[ignore = "no test: what another process does in the tests of this file"]
fn entry_of_another_process() {
    let Some(data_dir) = std::env::var_os(DATA_DIR) else { return };
    let cluster = start_or_attach(&settings(Path::new(&data_dir))).unwrap();
    println!("cluster: {} {}", cluster.owned(), cluster.postmaster());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    cluster.stop().unwrap();
}

/// Writes a shell script. Through another process: a file that this one had open for writing while
/// another test forks could not be executed.
pub(crate) fn program(path: &Path, text: &str) {
    let mut shell = Command::new("/bin/sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let script = format!("#!/bin/sh\n{text}\n");
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// A process whose end is waited for as an event, whoever its parent is.
#[cfg(target_os = "linux")]
pub(crate) struct Watch(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Watch {
    pub(crate) fn of(pid: i32) -> Self {
        use std::os::fd::FromRawFd;
        // SAFETY: the call takes numbers and gives a new descriptor, which is ours alone.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            Self(std::os::fd::OwnedFd::from_raw_fd(fd as i32))
        }
    }

    /// Whether it ends within a minute.
    pub(crate) fn ends(&self) -> bool {
        use std::os::fd::AsRawFd;
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut poll, 1, 60_000) == 1 }
    }
}
