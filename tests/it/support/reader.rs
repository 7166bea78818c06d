//! Uploads read by the real program, under a name of the test's own, so that it can tell whether one
//! of its children is left.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use oncekey::clock::Clock;
use oncekey::documents::{Document, Documents, ReadLimits, Unreadable};

use super::eventually;
use super::provider::fixture;

/// Reads uploads for one test.
pub struct Reader {
    pub documents: Documents,
    folder: PathBuf,
    name: String,
}

impl Reader {
    /// `name`: of the test, in at most 8 letters.
    pub fn new(name: &str, limits: ReadLimits, at_once: usize) -> Reader {
        Reader::with(
            name,
            Path::new(env!("CARGO_BIN_EXE_oncekey")),
            Clock::system(),
            limits,
            at_once,
        )
    }

    /// With another program for a child.
    pub fn with(
        name: &str,
        program: &Path,
        clock: Clock,
        limits: ReadLimits,
        at_once: usize,
    ) -> Reader {
        let folder = std::env::temp_dir().join(format!("oncekey-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        // The system cuts the names of processes at 15 letters.
        let name = format!("{name}{}", std::process::id() % 1_000_000);
        let link = folder.join(&name);
        std::os::unix::fs::symlink(program, &link).unwrap();
        Reader { documents: Documents::new(link, clock, limits, at_once), folder, name }
    }

    pub async fn read(&self, bytes: impl Into<Bytes>) -> Result<Document, Unreadable> {
        self.documents.read(bytes.into(), true).await
    }

    /// A file of `tests/fixtures`.
    pub async fn fixture(&self, name: &str, images: bool) -> Result<Document, Unreadable> {
        self.documents.read(fixture(name).into(), images).await
    }

    /// Children that run, or ended and were not reaped, by their ids.
    pub fn children(&self) -> Vec<i32> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
        let ours = |id: &i32| {
            std::fs::read_to_string(format!("/proc/{id}/comm"))
                .is_ok_and(|name| name.trim_end() == self.name)
        };
        ids.filter(ours).collect()
    }

    /// Waits until a child runs.
    pub async fn until_reading(&self) {
        eventually("a child reads", || async { self.children().iter().any(is_confined) }).await;
    }

    /// Waits until none is left.
    pub async fn until_gone(&self) {
        eventually("the child is gone", || async { self.children().is_empty() }).await;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Whether the child has begun with the file: it has given up opening others.
fn is_confined(id: &i32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/limits")).is_ok_and(|limits| {
        let files = limits.lines().find(|line| line.starts_with("Max open files"));
        files.is_some_and(|line| line.split_whitespace().nth(3) == Some("3"))
    })
}
