//! The private cluster: made once, owned by one process, private, and clear about what it lacks.
//!
//! The tests run the real binaries of the machine, as root or as an ordinary user.

#![expect(unsafe_code, reason = "processes of the system are looked at and signalled through libc")]

mod left_behind;
pub(crate) mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use oncekey::postgres::{PostgresError, start_or_attach};

use support::{Ground, Other, ask, is_root, mode, program, settings};

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
