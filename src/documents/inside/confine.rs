//! What a process takes from itself before it looks into a file: time, memory, files, threads. Even
//! code that came in with the file could not open anything or reach anybody.

use std::io;

use nix::sys::resource::{Resource, setrlimit};

use super::super::limits::ReadLimits;

/// What files nest deeply, the readers of them nest as deeply: enough for all that mean it well.
const STACK_BYTES: u64 = 16 << 20;
/// Of 19: an upload may take its time, a heartbeat may not.
const NICENESS: i32 = 10;
/// Standard input, output and error.
const OPEN_FILES: u64 = 3;

/// Sets the limits. They cannot be raised again, and hold until the process ends.
///
/// # Errors
/// Where the system refuses one: nothing may be read then.
pub(super) fn confine(limits: &ReadLimits) -> io::Result<()> {
    // Where the machine runs out of memory all the same, this process goes first. Not every system
    // has it, and one can do without.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    step_back();
    let cpu_seconds = limits.cpu.as_secs().max(1);
    for (resource, soft, hard) in [
        // The signal at the first tells that the time is over; at the second the process is gone.
        (Resource::RLIMIT_CPU, cpu_seconds, cpu_seconds + 5),
        (Resource::RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (Resource::RLIMIT_STACK, STACK_BYTES, STACK_BYTES),
        (Resource::RLIMIT_CORE, 0, 0),
        (Resource::RLIMIT_FSIZE, 0, 0),
        (Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        #[cfg(target_os = "linux")]
        (Resource::RLIMIT_NPROC, 0, 0),
    ] {
        setrlimit(resource, soft, hard)?;
    }
    Ok(())
}

/// Has the processor go to the server first, whatever a file wants of it.
#[expect(unsafe_code, reason = "there is no safe call for it in the crates we have")]
fn step_back() {
    // SAFETY: it takes and gives a number, and touches no memory.
    unsafe {
        libc::nice(NICENESS);
    }
}
