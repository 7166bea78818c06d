//! What can go wrong with the private cluster. Each message is one line that ends in what to do,
//! because it is all that somebody sees who has just tried the product for the first time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why there is no private cluster.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// No folder with `postgres` and `initdb`.
    #[error(
        "no PostgreSQL 15 or newer was found{}: {INSTALL}",
        searched.as_ref().map(|dir| format!(" in {}", dir.display())).unwrap_or_default()
    )]
    NoBinaries {
        /// The one folder that was searched, where the caller named it.
        searched: Option<PathBuf>,
    },

    /// Only versions that the product does not run on.
    #[error(
        "the PostgreSQL in {} is version {major}, 15 or newer is needed: {INSTALL}",
        dir.display()
    )]
    TooOld { dir: PathBuf, major: u32 },

    /// Binaries that the unprivileged user is not allowed to execute.
    #[error("user {user} cannot run {}: {INSTALL}", program.display())]
    CannotRun { user: String, program: PathBuf },

    /// The data is there, the version that wrote it is not.
    #[error(
        "the data in {} needs PostgreSQL {major}, which is not installed: install it (Debian, \
         Ubuntu: apt install postgresql-{major}), or move that folder away to begin with an empty database",
        data.display()
    )]
    MajorMissing { data: PathBuf, major: u32 },

    /// Root, and nobody else to run the server as.
    #[error(
        "PostgreSQL does not run as root and there is no user `postgres` or `nobody` to run it as: \
         start oncekey as an ordinary user, or name a database in DATABASE_URL"
    )]
    NoAccount,

    /// Root that may not become another user (some sandboxes).
    #[error(
        "PostgreSQL does not run as root and becoming user {user} was refused ({source}): \
         start oncekey as an ordinary user, or name a database in DATABASE_URL"
    )]
    CannotSwitch { user: String, source: io::Error },

    /// A folder or file that could not be made or used.
    #[error(
        "cannot {action} {} ({source}): start oncekey in a folder that you may write to, \
         choose another with ONCEKEY_DATA_DIR, or name a database in DATABASE_URL",
        path.display()
    )]
    Folder { action: &'static str, path: PathBuf, source: io::Error },

    /// The data belongs to somebody else.
    #[error(
        "{} belongs to user id {owner}: start oncekey as that user, \
         choose another folder with ONCEKEY_DATA_DIR, or name a database in DATABASE_URL",
        path.display()
    )]
    Foreign { path: PathBuf, owner: u32 },

    /// Something that no cluster of ours looks like.
    #[error(
        "{} is there but holds no PostgreSQL cluster: move it away, \
         or choose another folder with ONCEKEY_DATA_DIR",
        path.display()
    )]
    NotACluster { path: PathBuf },

    /// `initdb` failed.
    #[error(
        "PostgreSQL could not make a cluster in {} (see {}): {tail}",
        path.display(), log.display()
    )]
    InitFailed { path: PathBuf, log: PathBuf, tail: String },

    /// The server ended while it was starting.
    #[error("PostgreSQL did not start ({exit}, see {}): {tail}", log.display())]
    StartFailed { exit: String, log: PathBuf, tail: String },

    /// The server neither became ready nor ended.
    #[error(
        "PostgreSQL was not ready after {} s without progress: look into {}, and start again",
        waited.as_secs(), log.display()
    )]
    StartTimeout { waited: Duration, log: PathBuf },

    /// The owner of the folder has no server that answers.
    #[error(
        "another oncekey{} uses {} but its database did not answer for {} s: \
         end that process, or choose another folder with ONCEKEY_DATA_DIR",
        owner.map(|pid| format!(" (process {pid})")).unwrap_or_default(),
        home.display(), waited.as_secs()
    )]
    AttachTimeout { home: PathBuf, owner: Option<u32>, waited: Duration },

    /// A server that nobody owns any more, and that does not end.
    #[error(
        "the PostgreSQL server that was left running in {} (process {pid}) does not end: \
         end it by hand, and start again",
        data.display()
    )]
    LeftoverStays { data: PathBuf, pid: i32 },

    /// Remains of a server without its head.
    #[error(
        "processes of an earlier PostgreSQL server still use {}: end them by hand, and start again",
        data.display()
    )]
    MemoryInUse { data: PathBuf },

    /// The server answered, but not as it should.
    #[error("the private PostgreSQL in {} refused a session: {reason}", home.display())]
    Session { home: PathBuf, reason: String },

    /// The server did not end when told to.
    #[error(
        "the private PostgreSQL (process {pid}) did not end within {} s: end it by hand",
        waited.as_secs()
    )]
    StopTimeout { pid: i32, waited: Duration },
}

const INSTALL: &str = "install it (Debian, Ubuntu: apt install postgresql; Fedora: dnf install \
    postgresql-server; macOS: brew install postgresql@17), or name a database in DATABASE_URL";

impl PostgresError {
    /// For `map_err`: what was being done to which path.
    pub(super) fn folder(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Folder { action, path: path.to_owned(), source }
    }
}
