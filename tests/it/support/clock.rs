//! A clock that goes as real time does, from a date of the test's choosing, and that a test can put
//! forward: for nodes with a wrong clock, and for limits that no test waits for.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use oncekey::clock::{Clock, ManualClock};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const TICK: Duration = Duration::from_millis(5);

/// Stops when dropped.
pub struct TickingClock {
    manual: ManualClock,
    ticking: JoinHandle<()>,
}

impl TickingClock {
    /// A clock that shows the machine's time, and `ahead` more.
    pub fn start(ahead: TimeDelta) -> Self {
        Self::start_at(Utc::now() + ahead)
    }

    pub fn start_at(date: DateTime<Utc>) -> Self {
        let manual = ManualClock::new(date);
        let its_clock = manual.clone();
        let ticking = tokio::spawn(async move {
            let mut last = Instant::now();
            loop {
                tokio::time::sleep(TICK).await;
                let now = Instant::now();
                its_clock.advance(now - last);
                last = now;
            }
        });
        Self { manual, ticking }
    }

    /// What the node holds.
    pub fn clock(&self) -> Clock {
        self.manual.clock()
    }

    /// Lets this much time pass at once.
    pub fn jump(&self, time: Duration) {
        self.manual.advance(time);
    }

    /// Waits for what ends by a limit of the product's, without waiting for the limit.
    pub async fn hurry<T>(&self, task: JoinHandle<T>) -> T {
        while !task.is_finished() {
            self.jump(Duration::from_millis(500));
            tokio::time::sleep(TICK).await;
        }
        task.await.unwrap()
    }

    /// Sets the date, and only the date, forward or back.
    pub fn step_date(&self, by: TimeDelta) {
        self.manual.step_date(by);
    }
}

impl Drop for TickingClock {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}
