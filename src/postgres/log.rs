//! The log of the server: a file in its folder, kept small, and read back for error messages.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Stdio;

use super::PostgresError;
use super::place::Place;

/// At a start, a log larger than this many bytes makes room for a new one; one old log is kept.
const ROTATE_ABOVE: u64 = 1 << 20;

/// How much of the end is read for an error message: bytes, and lines.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 5;

/// An open log, and where in it this start began.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) path: PathBuf,
    file: File,
    begin: u64,
}

impl Log {
    pub(super) fn open(place: &Place) -> Result<Self, PostgresError> {
        let path = place.log();
        if fs::symlink_metadata(&path).is_ok_and(|found| found.len() > ROTATE_ABOVE) {
            fs::rename(&path, path.with_extension("old"))
                .map_err(PostgresError::folder("rename", &path))?;
        }
        let mut options = OpenOptions::new();
        let file = place.open_file(&path, options.read(true).append(true))?;
        let begin = file.metadata().map_err(PostgresError::folder("look at", &path))?.len();
        Ok(Self { path, file, begin })
    }

    /// For a program to write to.
    pub(super) fn writer(&self) -> Result<Stdio, PostgresError> {
        let file = self.file.try_clone().map_err(PostgresError::folder("open", &self.path))?;
        Ok(file.into())
    }

    /// Bytes so far. Grows while the server recovers, which is its sign of life.
    pub(super) fn length(&self) -> u64 {
        self.file.metadata().map_or(self.begin, |found| found.len())
    }

    /// The last lines since this start, in one line.
    pub(super) fn tail(&self) -> String {
        let text = self.read_tail().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            [] => "it said nothing".to_owned(),
            last => last.join(" | "),
        }
    }

    fn read_tail(&self) -> io::Result<Vec<u8>> {
        let mut file = &self.file;
        let from = self.begin.max(self.length().saturating_sub(TAIL_BYTES));
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut text)?;
        Ok(text)
    }
}
