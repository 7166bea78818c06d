//! The private cluster: made once, owned by one process, private, and gone with its owner.
//!
//! The tests run the real binaries of the machine, as root or as an ordinary user. A second
//! process is this test binary once more, started at [`entry_of_another_process`].

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use oncekey::postgres::{Cluster, ClusterSettings, PostgresError, start_or_attach};
use sqlx::{Connection, PgConnection};

/// Names the data directory for the other process; without it the entry does nothing.
const DATA_DIR: &str = "ONCEKEY_TEST_PRIVATE_DATA_DIR";

/// A folder of one test, which every user may pass through. Gone at the end.
struct Ground(PathBuf);

impl Ground {
    fn new(test: &str) -> Self {
        let dir = PathBuf::from(format!("/tmp/oncekey-it-{}-{test}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn settings(&self) -> ClusterSettings {
        settings(&self.0.join("data"))
    }

    /// The folder that the cluster of [`Ground::settings`] takes.
    fn home(&self) -> PathBuf {
        self.0.join("data/postgres")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A small and quick cluster; the state root lies beside the data directory.
fn settings(data_dir: &Path) -> ClusterSettings {
    let mut settings = ClusterSettings::new(data_dir)
        .parameter("fsync", "off")
        .parameter("shared_buffers", "16MB");
    settings.state_root = data_dir.with_file_name("state");
    settings
}

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Runs statements over the cluster's URL; the answer is the single value of the last one.
fn ask(cluster: &Cluster, statements: &[&'static str]) -> String {
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

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// This test binary once more, which starts or attaches to the cluster and says what it has, then
/// waits for the end of its input.
struct Other {
    child: Child,
    owned: bool,
    postmaster: i32,
}

impl Other {
    fn start(data_dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["postgres_private::entry_of_another_process", "--exact", "--ignored"])
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

    fn end(mut self) {
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

#[test]
fn a_cluster_is_made_once_and_found_again() {
    let ground = Ground::new("again");
    // What a shell, a server's list of folders or a URL could trip over.
    let settings = settings(&ground.0.join("it's, \"there\" 100%"))
        .parameter("max_connections", "17")
        .parameter("listen_addresses", "localhost");

    let cluster = start_or_attach(&settings).unwrap();
    assert!(cluster.owned() && cluster.fresh());
    assert_eq!(
        ask(&cluster, &["CREATE TABLE kept AS SELECT 'here' AS what", "TABLE kept"]),
        "here"
    );
    assert_eq!(ask(&cluster, &["SHOW max_connections"]), "17");
    assert_eq!(ask(&cluster, &["SHOW listen_addresses"]), "", "on no network, whoever asks");
    assert_eq!(ask(&cluster, &["SHOW server_encoding"]), "UTF8");

    let home = cluster.data_dir().to_owned();
    assert_eq!(mode(&home.join("data")), 0o700);
    assert_eq!(mode(cluster.socket_dir()), 0o700);
    assert_eq!(mode(&home.join("log")), 0o600);
    let owner = fs::metadata(home.join("data")).unwrap().uid();
    assert_ne!(owner, 0, "PostgreSQL refuses to be root");
    // SAFETY: no memory is involved.
    let (its, ours) = unsafe { (libc::getpgid(cluster.postmaster()), libc::getpgrp()) };
    assert_ne!(its, ours, "Ctrl-C at the terminal is not for the server");

    let socket = cluster.socket_dir().join(".s.PGSQL.5432");
    assert!(socket.exists());
    cluster.stop().unwrap();
    assert!(!socket.exists(), "stop waits for the end");

    let cluster = start_or_attach(&settings).unwrap();
    assert!(cluster.owned() && !cluster.fresh());
    assert_eq!(ask(&cluster, &["TABLE kept"]), "here");
    drop(cluster);
    assert!(!socket.exists(), "a drop stops the server too");
}

#[test]
fn a_second_process_attaches_and_the_next_owns() {
    let ground = Ground::new("attach");
    let cluster = start_or_attach(&ground.settings()).unwrap();
    let second = Other::start(&ground.0.join("data"));
    assert!(!second.owned);
    assert_eq!(second.postmaster, cluster.postmaster());
    second.end();
    // In one process it is the same.
    let attached = start_or_attach(&ground.settings()).unwrap();
    assert!(!attached.owned() && !attached.fresh());
    assert_eq!(ask(&attached, &["SELECT current_database()::text"]), "oncekey");
    attached.stop().unwrap();
    assert_eq!(ask(&cluster, &["SELECT 'still served'"]), "still served");

    cluster.stop().unwrap();
    let next = Other::start(&ground.0.join("data"));
    assert!(next.owned);
    next.end();
}

#[cfg(target_os = "linux")]
#[test]
fn the_server_ends_with_an_owner_that_is_killed() {
    let ground = Ground::new("killed");
    let mut owner = Other::start(&ground.0.join("data"));
    assert!(owner.owned);
    let attached = start_or_attach(&ground.settings()).unwrap();
    assert_eq!(
        ask(&attached, &["CREATE TABLE kept AS SELECT 'here' AS what", "TABLE kept"]),
        "here"
    );

    let postmaster = Watch::of(owner.postmaster);
    owner.child.kill().unwrap();
    owner.child.wait().unwrap();
    assert!(postmaster.ends(), "the server outlived its owner");
    assert!(!ground.home().join("data/postmaster.pid").exists(), "it ended in good order");

    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert!(cluster.owned() && !cluster.fresh());
    assert_eq!(ask(&cluster, &["TABLE kept"]), "here");
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_owner_can_be_followed_at_once() {
    let ground = Ground::new("followed");
    let mut owner = Other::start(&ground.0.join("data"));
    let postmaster = Watch::of(owner.postmaster);
    owner.child.kill().unwrap();
    // Not reaped yet, and its server may still be about to end.
    let next = Other::start(&ground.0.join("data"));
    assert!(next.owned && next.postmaster != owner.postmaster);
    assert!(postmaster.ends());
    next.end();
    owner.child.wait().unwrap();
}

#[test]
fn a_server_that_nobody_owns_is_ended() {
    let ground = Ground::new("nobodys");
    start_or_attach(&ground.settings()).unwrap().stop().unwrap();
    let data = ground.home().join("data");
    let mut server = as_owner_of(&data, &postgres_of(&data))
        .arg("-D")
        .arg(&data)
        .args(["-c", "listen_addresses=", "-k"])
        .arg(ground.home().join("run"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut lines = log.by_ref().lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("ready to accept connections")));

    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert!(cluster.owned());
    assert!(server.wait().unwrap().success(), "it was shut down, not killed");
    assert_eq!(ask(&cluster, &["SELECT 'served'"]), "served");
}

#[test]
fn a_process_that_has_the_number_of_a_dead_server_is_left_alone() {
    let ground = Ground::new("number");
    start_or_attach(&ground.settings()).unwrap().stop().unwrap();
    let data = ground.home().join("data");
    // As the server's own user, or PostgreSQL would see through it by itself.
    let mut stranger = as_owner_of(&data, Path::new("cat")).stdin(Stdio::piped()).spawn().unwrap();
    let left = format!("{}\n{}\n1764467184\n5432\n", stranger.id(), data.display());
    fs::write(data.join("postmaster.pid"), &left).unwrap();
    fs::write(ground.home().join("run/.s.PGSQL.5432.lock"), &left).unwrap();

    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert_eq!(ask(&cluster, &["SELECT 'served'"]), "served");
    assert!(stranger.try_wait().unwrap().is_none(), "it still runs");
    drop(stranger.stdin.take());
    assert!(stranger.wait().unwrap().success());
}

#[test]
fn a_server_that_was_killed_is_followed_by_another() {
    let ground = Ground::new("crashed");
    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert_eq!(
        ask(&cluster, &["CREATE TABLE kept AS SELECT 'here' AS what", "TABLE kept"]),
        "here"
    );
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::kill(cluster.postmaster(), libc::SIGKILL) }, 0);
    cluster.stop().unwrap();
    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert_eq!(ask(&cluster, &["TABLE kept"]), "here");
}

#[test]
fn what_a_cut_attempt_left_is_no_cluster() {
    let ground = Ground::new("cut");
    let half = ground.home().join("data.unfinished-1");
    fs::create_dir_all(half.join("base")).unwrap();
    fs::write(half.join("PG_VERSION"), "15\n").unwrap();
    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert!(cluster.fresh());
    assert_eq!(ask(&cluster, &["SELECT 'whole'"]), "whole");
    assert!(!half.exists());
    assert_eq!(mode(&ground.home()) & 0o066, 0, "nobody else looks into the folder");
}

#[test]
fn a_path_too_long_for_a_socket_serves_too() {
    let ground = Ground::new("long");
    let settings = settings(&ground.0.join("long".repeat(40)));
    let cluster = start_or_attach(&settings).unwrap();
    let socket_dir = cluster.socket_dir().to_owned();
    assert!(!socket_dir.starts_with(&ground.0));
    assert_eq!(mode(&socket_dir), 0o700);
    assert_eq!(ask(&cluster, &["SELECT 'served'"]), "served");
    cluster.stop().unwrap();
    assert!(!socket_dir.exists());

    // Whoever plants something at that name serves nobody.
    std::os::unix::fs::symlink(&ground.0, &socket_dir).unwrap();
    let error = start_or_attach(&settings).unwrap_err();
    fs::remove_file(&socket_dir).unwrap();
    assert!(matches!(&error, PostgresError::Folder { path, .. } if *path == socket_dir), "{error}");
}

#[test]
fn a_folder_that_cannot_be_used_is_replaced_for_root_and_named_for_others() {
    let ground = Ground::new("closed");
    let closed = ground.0.join("closed");
    fs::create_dir(&closed).unwrap();
    let mut settings = settings(&closed.join("data"));
    settings.state_root = ground.0.join("state");
    if is_root() {
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let cluster = start_or_attach(&settings).unwrap();
        let home = cluster.data_dir().to_owned();
        assert_eq!(home.parent(), Some(settings.state_root.as_path()));
        assert!(!closed.join("data").exists(), "nothing is left where it was of no use");
        cluster.stop().unwrap();
        // Also when the folder has become usable: the data are where they are.
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
        let cluster = start_or_attach(&settings).unwrap();
        assert!(!cluster.fresh());
        assert_eq!(cluster.data_dir(), home);
    } else {
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
        let error = start_or_attach(&settings).unwrap_err().to_string();
        assert!(error.contains("closed/data") && error.contains("ONCEKEY_DATA_DIR"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn without_binaries_the_message_says_what_to_install() {
    let ground = Ground::new("none");
    let mut settings = ground.settings();
    settings.binaries = Some(ground.0.clone());
    let error = start_or_attach(&settings).unwrap_err();
    assert!(matches!(error, PostgresError::NoBinaries { .. }));
    for part in ["apt install postgresql", "postgresql-server", "brew install", "DATABASE_URL"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(error.to_string().lines().count(), 1);

    program(&ground.0.join("initdb"), "exit 1");
    program(&ground.0.join("postgres"), "echo 'postgres (PostgreSQL) 14.18'");
    let error = start_or_attach(&settings).unwrap_err();
    assert!(matches!(error, PostgresError::TooOld { major: 14, .. }), "{error}");

    program(&ground.0.join("postgres"), "echo 'postgres (PostgreSQL) 16.1'");
    program(&ground.0.join("initdb"), "echo 'the disk is on fire' >&2; exit 1");
    let error = start_or_attach(&settings).unwrap_err();
    assert!(
        matches!(&error, PostgresError::InitFailed { tail, .. } if tail == "the disk is on fire")
    );
}

#[test]
fn data_of_another_version_are_not_touched() {
    let ground = Ground::new("version");
    start_or_attach(&ground.settings()).unwrap().stop().unwrap();
    let version = ground.home().join("data/PG_VERSION");
    fs::write(&version, "9999\n").unwrap();
    let error = start_or_attach(&ground.settings()).unwrap_err();
    assert!(matches!(error, PostgresError::MajorMissing { major: 9999, .. }), "{error}");
    fs::remove_file(&version).unwrap();
    let error = start_or_attach(&ground.settings()).unwrap_err();
    assert!(matches!(error, PostgresError::NotACluster { .. }), "{error}");
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let ground = Ground::new("why");
    let settings = ground.settings().parameter("no_such_parameter", "1");
    let error = start_or_attach(&settings).unwrap_err();
    assert!(matches!(error, PostgresError::StartFailed { .. }));
    assert!(error.to_string().contains("no_such_parameter"), "{error}");
    assert!(start_or_attach(&ground.settings()).unwrap().owned(), "the next start is not hindered");
}

/// A program to be run as the user that the cluster belongs to.
fn as_owner_of(data: &Path, program: &Path) -> Command {
    let owner = fs::metadata(data).unwrap();
    let mut command = Command::new(program);
    command.current_dir("/");
    if is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command
}

/// The server program of the cluster's last start, from the file where it keeps that.
fn postgres_of(data: &Path) -> PathBuf {
    let started = fs::read_to_string(data.join("postmaster.opts")).unwrap();
    started.split_once(" \"-D\"").unwrap().0.into()
}

/// Writes a shell script. Through another process: a file that this one had open for writing while
/// another test forks could not be executed.
fn program(path: &Path, text: &str) {
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
struct Watch(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Watch {
    fn of(pid: i32) -> Self {
        use std::os::fd::FromRawFd;
        // SAFETY: the call takes numbers and gives a new descriptor, which is ours alone.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            Self(std::os::fd::OwnedFd::from_raw_fd(fd as i32))
        }
    }

    /// Whether it ends within a minute.
    fn ends(&self) -> bool {
        use std::os::fd::AsRawFd;
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut poll, 1, 60_000) == 1 }
    }
}
