//! Whatever a killed owner, a killed server or a cut attempt leaves behind, the next start serves.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oncekey::postgres::{PostgresError, start_or_attach};

use super::support::*;

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
    let namesake = ground.0.join("postgres");
    std::os::unix::fs::symlink("/bin/sh", &namesake).unwrap();
    // In the server's folder under another name, and with its name in another folder; both as the
    // server's own user, or PostgreSQL would see through it by itself.
    for (program, dir) in [(Path::new("/bin/sh"), data.as_path()), (&namesake, Path::new("/"))] {
        let mut stranger = as_owner_of(&data, program)
            .args(["-c", "echo here; read line"])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        stranger.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let left = format!("{}\n{}\n1764467184\n5432\n", stranger.id(), data.display());
        fs::write(data.join("postmaster.pid"), &left).unwrap();
        fs::write(ground.home().join("run/.s.PGSQL.5432.lock"), &left).unwrap();

        let cluster = start_or_attach(&ground.settings()).unwrap();
        assert_eq!(ask(&cluster, &["SELECT 'served'"]), "served");
        cluster.stop().unwrap();
        assert!(stranger.try_wait().unwrap().is_none(), "it still runs");
        stranger.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(stranger.wait().unwrap().success());
    }
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
fn a_server_that_refuses_us_is_not_left_running() {
    let ground = Ground::new("refused");
    let rules = ground.0.join("rules");
    fs::write(&rules, "local all all reject\n").unwrap();
    let settings = ground.settings().parameter("hba_file", rules.to_str().unwrap());
    let error = start_or_attach(&settings).unwrap_err();
    assert!(matches!(error, PostgresError::Session { .. }), "{error}");
    assert!(!ground.home().join("data/postmaster.pid").exists());
    let cluster = start_or_attach(&ground.settings()).unwrap();
    assert_eq!(ask(&cluster, &["SELECT 'served'"]), "served", "the database was still to be made");
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
