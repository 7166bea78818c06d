//! What an owner that died has left: perhaps a server that still runs or is just ending, perhaps
//! only its pid file. Called by the owner of the lock, so no other of us is at work here.
//!
//! A process id in a file proves nothing: ids are used again, in containers even the same ones
//! after every start. A process is signalled only when it is seen to be the server of this folder.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::PostgresError;
use super::place::Place;
use super::server::SHUTDOWNS;
use super::wait::until;

/// A server whose owner was killed has been told to end by the kernel; it gets this long for it
/// before we say it again.
const GRACE: Duration = Duration::from_millis(500);

/// Processes of a server without its postmaster end by themselves as soon as they look.
const ORPHANS_LIMIT: Duration = Duration::from_secs(10);

/// What a postmaster writes about itself into `postmaster.pid`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct PidFile {
    pub(super) pid: i32,
    /// It takes sessions.
    pub(super) ready: bool,
    /// Key and id of its shared memory.
    memory: Option<(i32, i32)>,
}

/// The lines of the file by number, as PostgreSQL has laid them out since version 10.
const MEMORY_LINE: usize = 6;
const STATUS_LINE: usize = 7;

impl PidFile {
    /// `None`: no such file, or not a whole one.
    pub(super) fn read(data: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let pid = lines.first()?.parse().ok()?;
        let memory = lines.get(MEMORY_LINE).and_then(|line| {
            let (key, id) = line.split_once(' ')?;
            // The key is printed as a wider, unsigned number than it is.
            let key: u64 = key.parse().ok()?;
            Some(((key as u32).cast_signed(), id.trim().parse().ok()?))
        });
        let ready = lines.get(STATUS_LINE) == Some(&"ready");
        Some(Self { pid, ready, memory })
    }
}

/// Ends a server that still runs in `place`, and removes a pid file that would keep a new one from
/// starting.
pub(super) fn clear(place: &Place) -> Result<(), PostgresError> {
    let data = place.data();
    let path = data.join("postmaster.pid");
    if !path.exists() {
        return Ok(());
    }
    let found = PidFile::read(&data).unwrap_or_default();
    end(found.pid, &data)?;
    if !until(ORPHANS_LIMIT, || !memory_in_use(found.memory)) {
        return Err(PostgresError::MemoryInUse { data });
    }
    // Only where PostgreSQL would take another process for its server, and only after both checks:
    // the file is what keeps two servers off the same data.
    if found.pid > 0 && !exists(found.pid) {
        return Ok(());
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(PostgresError::folder("remove", &path)(error))
        }
        _ => Ok(()),
    }
}

fn end(pid: i32, data: &Path) -> Result<(), PostgresError> {
    let ended = || !is_postmaster(pid, data);
    if until(GRACE, ended) {
        return Ok(());
    }
    for (signal, limit) in SHUTDOWNS {
        if !ended() {
            // SAFETY: no memory is involved; whose process it is was just looked at.
            unsafe { libc::kill(pid, signal) };
        }
        if until(limit, ended) {
            return Ok(());
        }
    }
    Err(PostgresError::LeftoverStays { data: data.to_owned(), pid })
}

/// Whether the process is a server that runs on `data`: by its name and by the folder that it is
/// in, or where we may not see that, by the folder in its arguments.
#[cfg(target_os = "linux")]
pub(super) fn is_postmaster(pid: i32, data: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    let process = Path::new("/proc").join(pid.to_string());
    let Ok(name) = fs::read_to_string(process.join("comm")) else { return false };
    if !["postgres", "postmaster"].contains(&name.trim_end()) {
        return false;
    }
    // Empty for a dead process that nobody has reaped yet, as happens in containers.
    let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
    if arguments.is_empty() {
        return false;
    }
    match (fs::metadata(process.join("cwd")), fs::metadata(data)) {
        (Ok(cwd), Ok(data)) => (cwd.dev(), cwd.ino()) == (data.dev(), data.ino()),
        (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => {
            arguments.split(|byte| *byte == 0).any(|text| text == data.as_os_str().as_bytes())
        }
        _ => false,
    }
}

/// Elsewhere `ps` tells the arguments, in which we always name the folder.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_postmaster(pid: i32, data: &Path) -> bool {
    let mut command = std::process::Command::new("ps");
    let Ok(output) = command.args(["-o", "command=", "-p", &pid.to_string()]).output() else {
        return false;
    };
    let arguments = String::from_utf8_lossy(&output.stdout);
    arguments.contains("postgres") && arguments.contains(&*data.to_string_lossy())
}

/// Whether there is a process of that number, whosever it is.
fn exists(pid: i32) -> bool {
    // SAFETY: no memory is involved, and signal 0 is none.
    let sent = unsafe { libc::kill(pid, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Whether processes are attached to that shared memory. Where the system does not tell,
/// PostgreSQL's own check remains.
fn memory_in_use(memory: Option<(i32, i32)>) -> bool {
    let Some((key, id)) = memory else { return false };
    let Ok(table) = fs::read_to_string("/proc/sysvipc/shm") else { return false };
    attached(&table, key, id) > 0
}

/// The column "nattch" of the line with that key and id.
fn attached(table: &str, key: i32, id: i32) -> u64 {
    table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .find(|line| line.len() > 6 && line[0].parse() == Ok(key) && line[1].parse() == Ok(id))
        .and_then(|line| line[6].parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_tells_who_and_whether_ready() {
        let text =
            "123\n/data\n1764467184\n5432\n/run\n\n 18446744073709551615     32770\nready   \n";
        let file = PidFile { pid: 123, ready: true, memory: Some((-1, 32770)) };
        assert_eq!(PidFile::parse(text), Some(file));
        let starting = PidFile::parse("123\n/data\n1764467184\n5432\n/run\n\n").unwrap();
        assert!(!starting.ready && starting.memory.is_none());
        assert_eq!(PidFile::parse(""), None);
    }

    #[test]
    fn attached_memory_is_found_by_key_and_id() {
        let table = "       key      shmid perms  size  cpid  lpid nattch   uid\n\
                     \x20       -1      32770   600    56  6388  7000      7   101\n";
        assert_eq!(attached(table, -1, 32770), 7);
        assert_eq!(attached(table, -1, 5), 0);
        assert_eq!(attached(table, 9, 32770), 0);
    }
}
