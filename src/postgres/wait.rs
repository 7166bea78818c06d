//! The one place of this room that lets time pass. Another process's file, socket or end cannot be
//! waited for as an event on every unix, so it is asked for again, at short intervals.

#![expect(
    clippy::disallowed_methods,
    reason = "runs in threads of its own before there is a runtime or a clock to hand in"
)]

use std::thread;
use std::time::{Duration, Instant};

/// Short beside the 0.1 s that a server takes to start, long beside the cost of asking.
const INTERVAL: Duration = Duration::from_millis(10);

/// Asks until there is an answer or an error. `None`: none within `limit`.
pub(super) fn poll<T, E>(
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(Some(answer));
        }
        if started.elapsed() >= limit {
            return Ok(None);
        }
        thread::sleep(INTERVAL);
    }
}

/// Whether `done` came true within `limit`.
pub(super) fn until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let answer = poll(limit, || Ok::<_, std::convert::Infallible>(done().then_some(())));
    matches!(answer, Ok(Some(())))
}
