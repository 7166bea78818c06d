//! What Linux says about processes: CPU time, memory, and how busy the machine is otherwise.
//!
//! Elsewhere there is no `/proc`: what would stand here is absent from the report.

use std::fs;
use std::time::Duration;

use serde::Serialize;

/// The kernel's unit of CPU time towards programs: 100 a second on every architecture that PostgreSQL
/// packages exist for.
const TICK: Duration = Duration::from_millis(10);

/// Of one process: its parent, its own CPU time, and that of its children that have ended.
struct ProcessTimes {
    parent: i32,
    own: u64,
    ended_children: u64,
}

fn process(pid: i32) -> Option<ProcessTimes> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<ProcessTimes> {
    // The name, in parentheses, may hold anything; what follows the last one is in columns.
    let columns: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |column: usize| columns.get(column)?.parse::<u64>().ok();
    Some(ProcessTimes {
        parent: columns.get(1)?.parse().ok()?,
        own: ticks(11)? + ticks(12)?,
        ended_children: ticks(13)? + ticks(14)?,
    })
}

fn ticks(count: u64) -> Duration {
    TICK * u32::try_from(count).unwrap_or(u32::MAX)
}

/// CPU time of one process with all its threads.
pub fn cpu_of(pid: i32) -> Option<Duration> {
    Some(ticks(process(pid)?.own))
}

/// CPU time of a process, its children, and those of them that have ended: a database server's.
pub fn cpu_of_family(root: i32) -> Option<Duration> {
    let head = process(root)?;
    let mut total = head.own + head.ended_children;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let child = pid.and_then(process).filter(|child| child.parent == root);
        total += child.map_or(0, |child| child.own);
    }
    Some(ticks(total))
}

/// The server that a session's process belongs to, where both run on this machine.
pub fn postmaster_of(backend: i32) -> Option<i32> {
    let parent = process(backend)?.parent;
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    name.starts_with("postgres").then_some(parent)
}

/// Time that all CPUs together have been busy since the machine started.
pub fn busy() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let columns: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
    let idle = columns.get(3)? + columns.get(4)?;
    Some(ticks(columns.iter().take(8).sum::<u64>() - idle))
}

/// Resident memory of a process.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Resident {
    pub bytes: u64,
    /// What of it is mapped from no file: the rest is the program itself, read as it is needed and dropped
    /// when memory is short.
    pub own_bytes: u64,
}

/// Resident memory of a process, in bytes.
pub fn resident(pid: i32) -> Option<u64> {
    memory(pid).map(|memory| memory.bytes)
}

/// How much memory a process has now.
pub fn memory(pid: i32) -> Option<Resident> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
        Some(kilobytes * 1024)
    };
    Some(Resident { bytes: bytes("VmRSS:")?, own_bytes: bytes("RssAnon:")? })
}

/// Open files that this process, and each one it starts, may have.
pub fn descriptors() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_found_behind_any_name() {
        let text = "71 (a) b ) S 12 71 71 0 -1 4194560 1 2 3 4 100 23 7 5 20 0 1 0 99 1 1";
        let times = parse_stat(text).unwrap();
        assert_eq!((times.parent, times.own, times.ended_children), (12, 123, 12));
        assert!(parse_stat("71 (postgres) S 12").is_none());
    }
}
