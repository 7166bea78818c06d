//! The user that the server runs as: ourselves, or as root an unprivileged one.

use std::env;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::PostgresError;

/// A user of the system, and whether programs have to be switched to it.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) name: String,
    switched: bool,
}

/// What programs of PostgreSQL may see of our environment. The rest holds our secrets, or settings
/// of other servers (`PGDATA`, `PGPORT`).
const KEPT_VARIABLES: [&str; 5] =
    ["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "TZ"];

/// Whether this process is root, which PostgreSQL refuses to run as.
pub(super) fn is_root() -> bool {
    own_uid() == 0
}

/// The user id that our own files get.
pub(super) fn own_uid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

impl Account {
    /// The user that this process runs as.
    pub(super) fn own() -> Self {
        // SAFETY: takes nothing and cannot fail.
        let gid = unsafe { libc::getegid() };
        let uid = own_uid();
        Self { uid, gid, name: name_of(uid), switched: false }
    }

    /// For root: the user that the distribution made for PostgreSQL, else the one with no rights.
    pub(super) fn unprivileged() -> Result<Self, PostgresError> {
        ["postgres", "nobody"]
            .into_iter()
            .filter_map(|name| by_name(name).map(|(uid, gid)| (name, uid, gid)))
            .find(|(_, uid, _)| *uid != 0)
            .map(|(name, uid, gid)| Self { uid, gid, name: name.to_owned(), switched: true })
            .ok_or(PostgresError::NoAccount)
    }

    /// For root: the user that existing files belong to.
    pub(super) fn owner(uid: u32, gid: u32) -> Self {
        Self { uid, gid, name: name_of(uid), switched: true }
    }

    /// A program to be run as this user: no input, nothing of our environment but where programs
    /// and libraries are, and in a current directory that every user may be in.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir("/").stdin(Stdio::null());
        for name in KEPT_VARIABLES {
            if let Some(value) = env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("LC_ALL", "C");
        if self.switched {
            // The standard library drops the supplementary groups with the user id.
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    /// Tries, as this user, to be in `dir` and to write there. The permission bits alone do not
    /// tell: a folder above may be closed, and mounts have rules of their own.
    pub(super) fn can_use(&self, dir: &Path) -> Result<bool, PostgresError> {
        let mut command = self.command("/bin/sh");
        command.args(["-c", "test -w ."]).current_dir(dir);
        match command.stdout(Stdio::null()).stderr(Stdio::null()).status() {
            Ok(status) => Ok(status.success()),
            Err(error) if self.switched && is_refused_switch(&error) => {
                Err(PostgresError::CannotSwitch { user: self.name.clone(), source: error })
            }
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            Err(error) => Err(PostgresError::folder("enter", dir)(error)),
        }
    }
}

/// The errors of `setgroups`, `setgid` and `setuid`; entering a folder fails with `EACCES`.
fn is_refused_switch(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL | libc::EAGAIN))
}

fn name_of(uid: u32) -> String {
    lookup(|entry, buffer, found| {
        // SAFETY: the pointers are valid for the call and the length is the buffer's.
        unsafe { libc::getpwuid_r(uid, entry, buffer.as_mut_ptr(), buffer.len(), found) }
    })
    .map_or_else(|| uid.to_string(), |(_, _, name)| name)
}

fn by_name(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    lookup(|entry, buffer, found| {
        // SAFETY: the pointers are valid for the call and the length is the buffer's.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, buffer.as_mut_ptr(), buffer.len(), found) }
    })
    .map(|(uid, gid, _)| (uid, gid))
}

/// Asks the user database, with a larger buffer where the entry does not fit.
fn lookup(
    ask: impl Fn(*mut libc::passwd, &mut [libc::c_char], *mut *mut libc::passwd) -> libc::c_int,
) -> Option<(u32, u32, String)> {
    let mut buffer: Vec<libc::c_char> = vec![0; 1 << 10];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        match ask(entry.as_mut_ptr(), &mut buffer, &mut found) {
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            0 if !found.is_null() => {
                // SAFETY: a found entry is filled in, and its strings lie in `buffer`.
                let (entry, name) = unsafe {
                    let entry = entry.assume_init();
                    (entry, CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned())
                };
                return Some((entry.pw_uid, entry.pw_gid, name));
            }
            _ => return None,
        }
    }
}
