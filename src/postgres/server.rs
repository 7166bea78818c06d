//! A running postmaster, tied to this process.
//!
//! The kernel can signal a child when its parent dies, but "parent" is the *thread* that made the
//! child. So one thread makes the server, and does nothing else until the server has ended.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use super::PostgresError;

/// A fast shutdown cuts the clients off and writes a checkpoint; that may be a gigabyte.
const FAST_LIMIT: Duration = Duration::from_secs(60);

/// An immediate shutdown writes nothing; the postmaster kills what is left of it after 5 s.
const IMMEDIATE_LIMIT: Duration = Duration::from_secs(15);

/// The two ways to end a postmaster, the one that leaves nothing to recover first, with the time
/// that each is given.
pub(super) const SHUTDOWNS: [(libc::c_int, Duration); 2] =
    [(libc::SIGINT, FAST_LIMIT), (libc::SIGQUIT, IMMEDIATE_LIMIT)];

/// The server, stopped on drop.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) pid: i32,
    exit: Arc<Exit>,
    /// Whether stopping was tried: on drop it is not tried once more.
    pub(super) stopped: bool,
}

#[derive(Debug, Default)]
struct Exit {
    /// How it ended, in words. Set together with the reaping of the process, under the lock: as
    /// long as this is `None`, the process id is that of our child.
    how: Mutex<Option<String>>,
    changed: Condvar,
}

impl Exit {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        // Nothing that holds the lock can leave the text half-written.
        self.how.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Starts it. `command` must be `postgres` itself, in the foreground.
    pub(super) fn spawn(mut command: Command) -> io::Result<Self> {
        let exit = Arc::new(Exit::default());
        let (tell, told) = mpsc::sync_channel(1);
        let ours = Arc::clone(&exit);
        thread::Builder::new().name("postgres-keeper".into()).spawn(move || {
            tie_to_us(&mut command, libc::SIGINT);
            // The receiver waits below, so that sending cannot fail.
            match command.spawn() {
                Ok(child) => {
                    let _ = tell.send(Ok(child.id()));
                    keep(child, &ours);
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
        })?;
        let pid = told.recv().map_err(io::Error::other)??;
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        Ok(Self { pid, exit, stopped: false })
    }

    /// How the server ended, where it did.
    pub(super) fn exited(&self) -> Option<String> {
        self.exit.lock().clone()
    }

    /// Ends the server and waits for it. Without effect where it has ended.
    pub(super) fn stop(&mut self) -> Result<(), PostgresError> {
        self.stopped = true;
        for (signal, limit) in SHUTDOWNS {
            self.signal(signal);
            let exit = self.exit.lock();
            let waited = self.exit.changed.wait_timeout_while(exit, limit, |how| how.is_none());
            if waited.unwrap_or_else(PoisonError::into_inner).0.is_some() {
                return Ok(());
            }
        }
        Err(PostgresError::StopTimeout { pid: self.pid, waited: FAST_LIMIT + IMMEDIATE_LIMIT })
    }

    fn signal(&self, signal: libc::c_int) {
        let exit = self.exit.lock();
        if exit.is_none() {
            // SAFETY: no memory is involved, and the process has not been reaped (see `Exit::how`).
            unsafe { libc::kill(self.pid, signal) };
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.stopped {
            // Nobody is left to hear of a failure; the next start ends what stays.
            let _ = self.stop();
        }
    }
}

/// Waits for the end of the child, and reaps it under the lock.
fn keep(mut child: Child, exit: &Exit) {
    await_end(child.id());
    let mut how = exit.lock();
    *how = Some(match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => format!("ended unseen: {error}"),
    });
    exit.changed.notify_all();
}

/// Waits without reaping, so that the process id stays taken.
fn await_end(pid: u32) {
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
        let options = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` is valid for writes for the call; it is not read.
        let waited =
            unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, info.as_mut_ptr(), options) };
        if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Makes a program that is about to be started by this thread end with it, and keeps it out of the
/// terminal's process group: Ctrl-C is for us, and the server has to outlive our last writes.
///
/// Linux alone has the signal at a parent's death; elsewhere a server whose owner was killed is
/// found and ended at the next start.
pub(super) fn tie_to_us(command: &mut Command, signal: libc::c_int) {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id();
        let tie = move || {
            // SAFETY: system calls on plain numbers, allowed between `fork` and `exec`. A shell's
            // background job ignores SIGINT, and so would its children until they think better.
            let (set, now) = unsafe {
                libc::signal(signal, libc::SIG_DFL);
                (libc::prctl(libc::PR_SET_PDEATHSIG, signal), libc::getppid().cast_unsigned())
            };
            if set != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the signal was asked for.
            if now == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        };
        // SAFETY: `tie` makes no allocation and takes no lock. It runs after the change of user,
        // which would have cleared the setting.
        unsafe { command.pre_exec(tie) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = signal;
}
