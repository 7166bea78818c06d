//! How far a parse is, for whoever watches: nothing is shown where standard error is no terminal.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// How often a bar that waits shows that it does.
const TICK: Duration = Duration::from_millis(200);

const WAITING: &str = "{spinner} {msg} ({elapsed})";
const BEGUN: &str = "{msg} [{bar:32}] {pos} of {len}";
const UNDER_WAY: &str = "{msg} [{bar:32}] {pos} of {len}, {left} left";

/// The bar on standard error.
pub struct Bar {
    bar: ProgressBar,
    pace: Arc<Mutex<Pace>>,
}

/// What the time left follows from. Pieces are parsed side by side and end in waves, so that the mean
/// over all of them tells more than the last ones do.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Done before anybody watched: by an earlier run.
    before: u64,
    done: u64,
    chunks: u64,
    /// When the last of them was done.
    at: Duration,
}

impl Pace {
    fn left(self, now: Duration) -> Option<Duration> {
        let seen =
            u32::try_from(self.done.checked_sub(self.before)?).ok().filter(|seen| *seen > 0)?;
        let to_do = u32::try_from(self.chunks.saturating_sub(self.done)).ok()?;
        let whole = self.at.saturating_mul(to_do) / seen;
        Some(whole.saturating_sub(now.saturating_sub(self.at)))
    }
}

impl Bar {
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner().with_message("reading").with_style(style(WAITING));
        bar.enable_steady_tick(TICK);
        Self { bar, pace: Arc::default() }
    }

    /// Says something beside the bar.
    pub fn teller(&self) -> impl Fn(String) + Send + Sync + use<> {
        let bar = self.bar.clone();
        move |text| bar.set_message(text)
    }

    pub fn advance(&mut self, done: u64, chunks: u64) {
        let known = self.bar.length() == Some(chunks);
        if !known {
            self.bar.set_length(chunks);
            self.bar.reset_elapsed();
        }
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if known { pace.before } else { done };
        *pace = Pace { before, done, chunks, at: self.bar.elapsed() };
        drop(pace);
        self.bar.set_message("parsing");
        self.bar.set_position(done);
        // Before a piece is done nobody knows how long one takes.
        if done == before {
            self.bar.set_style(style(BEGUN));
            return;
        }
        let pace = self.pace.clone();
        let left = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let pace = *pace.lock().unwrap_or_else(PoisonError::into_inner);
            let left = pace.left(state.elapsed()).unwrap_or_default();
            // A writer that fails has nothing to show it on.
            let _ = write!(out, "{}", spoken(left));
        };
        self.bar.set_style(style(UNDER_WAY).with_key("left", left));
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    // One of the three above, which are templates.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// A time as a person says it.
fn spoken(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1_000);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_left_follows_from_what_was_seen() {
        let pace = Pace { before: 0, done: 8, chunks: 15, at: seconds(40) };
        assert_eq!(pace.left(seconds(40)), Some(seconds(35)));
        assert_eq!(pace.left(seconds(50)), Some(seconds(25)), "it counts down between two pieces");
        assert_eq!(pace.left(seconds(90)), Some(Duration::ZERO));
        let taken_up = Pace { before: 6, ..pace };
        assert_eq!(taken_up.left(seconds(40)), Some(seconds(140)), "an earlier run's are no pace");
        assert_eq!(Pace { before: 8, ..pace }.left(seconds(40)), None);
        assert_eq!(Pace { done: 15, ..pace }.left(seconds(40)), Some(Duration::ZERO));
    }

    #[test]
    fn a_time_is_spoken() {
        assert_eq!(spoken(Duration::from_millis(1)), "1 s");
        assert_eq!(spoken(seconds(59)), "59 s");
        assert_eq!(spoken(seconds(61)), "1 min 1 s");
    }
}
