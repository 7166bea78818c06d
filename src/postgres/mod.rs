//! The private PostgreSQL cluster, for people who have no database.
//!
//! `oncekey serve` with no database named must simply work: on a laptop, in a container, as root.
//! This room finds the PostgreSQL binaries of the machine, makes a cluster in a folder of its own
//! and keeps a server running in it for as long as the process that asked lives. It promises:
//!
//! - **One owner.** Whoever holds the lock file of a folder runs its server. Another process that
//!   asks for the same folder is attached to that server instead.
//! - **No server left behind.** The server ends with its owner: by [`Cluster::stop`], on drop, and
//!   on Linux also when the owner is killed. What is left behind elsewhere, the next start ends.
//! - **No half-made data.** A cluster is made beside its place and renamed into it.
//! - **Private.** Data and socket belong to one user, in folders that nobody else may enter. The
//!   server listens on that socket alone, so a password would protect nothing.
//! - **Never as root.** PostgreSQL refuses to run so; as root an unprivileged user is borrowed.
//!
//! Every call here blocks; asynchronous callers put it on a thread for blocking work.
//!
//! Layout of the folder: `lock` and `log` belong to whoever started the server, `data` (the
//! cluster) and `run` (the socket) to the user that the server runs as.

#![expect(
    unsafe_code,
    reason = "users, signals and the death of the parent are the system's own calls"
)]

mod account;
mod binaries;
mod cluster;
mod error;
mod folders;
mod initdb;
mod leftovers;
mod lock;
mod log;
mod place;
mod server;
mod session;
mod wait;

use std::path::PathBuf;

pub use cluster::{Cluster, start_or_attach};
pub use error::PostgresError;

/// The oldest PostgreSQL that the product's statements run on.
pub const OLDEST_MAJOR: u32 = 15;

/// What the caller wants of the private cluster.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// The data directory of the product, relative to the current directory or absolute. The
    /// cluster takes the folder `postgres` in it, and leaves everything else in it alone.
    pub data_dir: PathBuf,
    /// The folder with `postgres` and `initdb`, where it must be a certain one. `None`: searched.
    pub binaries: Option<PathBuf>,
    /// Server parameters that win over those of this room, such as `("fsync", "off")`. Where the
    /// server listens is not among them.
    pub parameters: Vec<(String, String)>,
    /// Where a cluster goes that was asked for by root in a folder which the unprivileged user
    /// cannot use (a clone under `/root`).
    pub state_root: PathBuf,
}

impl ClusterSettings {
    /// Settings for the cluster under `data_dir`, the rest as a production start wants it.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            binaries: None,
            parameters: Vec::new(),
            state_root: PathBuf::from("/var/lib/oncekey"),
        }
    }

    /// Adds one server parameter.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether the data are to outlive a power cut. Where not (test clusters), making the cluster
    /// may be quick too.
    fn durable(&self) -> bool {
        let last = self.parameters.iter().rev().find(|(name, _)| name == "fsync");
        !last.is_some_and(|(_, value)| ["off", "false", "no", "0"].contains(&value.as_str()))
    }
}
