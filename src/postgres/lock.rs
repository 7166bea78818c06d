//! Who owns the cluster: the process that holds the lock on this file. The kernel gives the lock
//! back when that process ends in whatever way, so there is nothing to clean up and nothing to be
//! mistaken about. The file also says where the running server is, for those who attach.
//!
//! The file is never deleted: two processes could then hold locks on two files of the same name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use super::PostgresError;
use super::place::Place;

/// The lock, held.
#[derive(Debug)]
pub(super) struct OwnerLock {
    file: File,
}

/// Where a running server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) postmaster: i32,
    pub(super) port: u16,
    pub(super) socket_dir: PathBuf,
}

impl OwnerLock {
    /// Takes the lock where it is free, and withdraws what an earlier owner announced.
    pub(super) fn try_take(place: &Place) -> Result<Option<Self>, PostgresError> {
        let path = place.lock();
        let mut options = OpenOptions::new();
        let file = place.open_file(&path, options.read(true).write(true))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(PostgresError::folder("lock", &path)(error));
            }
        }
        let mut lock = Self { file };
        lock.withdraw().map_err(PostgresError::folder("write", &path))?;
        Ok(Some(lock))
    }

    /// Only our process id stays, for the messages of those who wait.
    pub(super) fn withdraw(&mut self) -> io::Result<()> {
        self.write(&format!("{}\n", std::process::id()))
    }

    /// From here on others attach.
    pub(super) fn announce(&mut self, server: &Announcement) -> io::Result<()> {
        self.write(&format!(
            "{}\n{}\n{}\n{}\n",
            std::process::id(),
            server.postmaster,
            server.port,
            server.socket_dir.display()
        ))
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }
}

/// What the owner says: its process id, and its server once that is ready.
pub(super) fn read(lock: &Path) -> (Option<u32>, Option<Announcement>) {
    let text = fs::read_to_string(lock).unwrap_or_default();
    let mut lines = text.lines();
    let owner = lines.next().and_then(|line| line.parse().ok());
    let complete = text.ends_with('\n');
    let server = complete.then(|| {
        Some(Announcement {
            postmaster: lines.next()?.parse().ok()?,
            port: lines.next()?.parse().ok()?,
            socket_dir: lines.next()?.into(),
        })
    });
    (owner, server.flatten())
}
