//! Time, handed in.
//!
//! The only file that reads a clock or sleeps. Everybody else holds a [`Clock`]; tests hold a
//! [`ManualClock`] beside it, so that no test waits in real time: a test awaits that somebody
//! sleeps until a moment, and then moves the time there.
//!
//! Leases, days and retentions are not decided by this clock but by the database's.

#![expect(clippy::disallowed_methods, reason = "the one home of time, ids and chance")]

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Add;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Notify;
use uuid::{NoContext, Timestamp, Uuid};

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A point on a clock's own line: it never goes back and knows no dates. Moments of different
/// clocks have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The time from `earlier` to this one; zero where it is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// A moment beyond all time is the last one.
    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time))
    }
}

/// The deadline passed before the future was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the deadline passed")]
pub struct Elapsed;

/// A clock; clones show the same time.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    /// The start of the process's line of moments.
    System(std::time::Instant),
    Manual(ManualClock),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock(Source::System(std::time::Instant::now()))
    }

    /// Now, on this clock's line.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System(start) => Moment(start.elapsed()),
            Source::Manual(manual) => manual.now(),
        }
    }

    /// Now, as a date. It may jump in either direction; for durations see [`Clock::now`].
    pub fn utc_now(&self) -> DateTime<Utc> {
        match &self.0 {
            Source::System(_) => Utc::now(),
            Source::Manual(manual) => manual.utc_now(),
        }
    }

    /// A new UUIDv7: sorted by this clock's time, otherwise random.
    pub fn new_id(&self) -> Uuid {
        let millis = u64::try_from(self.utc_now().timestamp_millis()).unwrap_or(0);
        let nanos = u32::try_from(millis % 1_000).unwrap_or(0) * 1_000_000;
        Uuid::new_v7(Timestamp::from_unix(NoContext, millis / 1_000, nanos))
    }

    /// At random, from 0 to 1.
    pub fn chance(&self) -> f64 {
        rand::random()
    }

    /// Bytes that nobody can guess.
    pub fn secret(&self) -> [u8; 32] {
        rand::random()
    }

    /// Ready once the time has passed; at once for zero.
    pub fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        match &self.0 {
            // The runtime counts whole milliseconds, upwards: it would sleep for nothing, too.
            Source::System(_) if time.is_zero() => Box::pin(std::future::ready(())),
            Source::System(_) => Box::pin(tokio::time::sleep(time)),
            Source::Manual(manual) => Box::pin(manual.sleep_until(manual.now() + time)),
        }
    }

    /// Ready at the moment, or at once where it has passed.
    pub fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        match &self.0 {
            Source::System(_) => self.sleep(moment.since(self.now())),
            Source::Manual(manual) => Box::pin(manual.sleep_until(moment)),
        }
    }

    /// The future's output, unless the moment comes first. A future that is ready wins.
    ///
    /// # Errors
    /// [`Elapsed`], and the future is dropped.
    pub async fn until<T>(
        &self,
        moment: Moment,
        future: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let sleep = self.sleep_until(moment);
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = sleep => Err(Elapsed),
        }
    }

    /// [`Clock::until`], counted from now.
    ///
    /// # Errors
    /// [`Elapsed`], and the future is dropped.
    pub async fn timeout<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        self.until(self.now() + time, future).await
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told whenever a sleep begins.
    sleep_began: Notify,
}

#[derive(Debug)]
struct State {
    /// The date at the start of the line of moments.
    start: DateTime<Utc>,
    elapsed: Duration,
    /// Of the sleep that began last.
    last_id: u64,
    /// By deadline, then by order; the waker once the sleep was polled.
    sleepers: BTreeMap<(Duration, u64), Option<Waker>>,
}

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn new(start: DateTime<Utc>) -> ManualClock {
        let state = State { start, elapsed: Duration::ZERO, last_id: 0, sleepers: BTreeMap::new() };
        ManualClock(Arc::new(Shared { state: Mutex::new(state), sleep_began: Notify::new() }))
    }

    /// What the code under test holds.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(self.clone()))
    }

    /// Now, on this clock's line.
    pub fn now(&self) -> Moment {
        Moment(self.state().elapsed)
    }

    /// Now, as a date.
    pub fn utc_now(&self) -> DateTime<Utc> {
        let state = self.state();
        let elapsed = TimeDelta::from_std(state.elapsed).unwrap_or(TimeDelta::MAX);
        state.start.checked_add_signed(elapsed).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Sets the date forward or back, as a machine's clock may be set; moments go on as they were.
    pub fn step_date(&self, by: TimeDelta) {
        let mut state = self.state();
        state.start = state.start.checked_add_signed(by).unwrap_or(state.start);
    }

    /// Moves the time on and wakes whoever is due, in the order of their deadlines.
    pub fn advance(&self, time: Duration) {
        let due = {
            let mut state = self.state();
            state.elapsed = state.elapsed.saturating_add(time);
            let now = state.elapsed;
            let later = state.sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.sleepers, later)
        };
        // Outside the lock: a waker may run code that sleeps again.
        due.into_values().flatten().for_each(Waker::wake);
    }

    /// How long each sleeper has to go, the next first.
    pub fn sleepers(&self) -> Vec<Duration> {
        let state = self.state();
        state.sleepers.keys().map(|(deadline, _)| *deadline - state.elapsed).collect()
    }

    /// How many sleeps have begun, all in all: a loop that sleeps anew has gone round.
    pub fn sleeps_begun(&self) -> u64 {
        self.state().last_id
    }

    /// Waits until so many sleeps have begun, all in all.
    pub async fn until_sleeps_begun(&self, count: u64) {
        self.until_sleepers(|_| self.sleeps_begun() >= count).await;
    }

    /// Waits, in no time of this clock, until somebody sleeps with exactly this long to go.
    pub async fn until_sleeping_for(&self, left: Duration) {
        self.until_sleepers(|sleepers| sleepers.contains(&left)).await;
    }

    /// Waits until the sleepers, as [`ManualClock::sleepers`] gives them, are as asked.
    pub async fn until_sleepers(&self, asked: impl Fn(&[Duration]) -> bool) {
        loop {
            // Listening begins before the look, so that nothing slips between.
            let began = self.0.sleep_began.notified();
            tokio::pin!(began);
            began.as_mut().enable();
            if asked(&self.sleepers()) {
                return;
            }
            began.await;
        }
    }

    fn sleep_until(&self, moment: Moment) -> ManualSleep {
        let mut state = self.state();
        let key = (moment.0 > state.elapsed).then(|| {
            state.last_id += 1;
            let key = (moment.0, state.last_id);
            state.sleepers.insert(key, None);
            key
        });
        drop(state);
        self.0.sleep_began.notify_waiters();
        ManualSleep { clock: self.clone(), key }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sleep on a manual clock; dropped, it no longer counts as a sleeper.
struct ManualSleep {
    clock: ManualClock,
    /// `None`: due from the start.
    key: Option<(Duration, u64)>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(key) = self.key else { return Poll::Ready(()) };
        match self.clock.state().sleepers.get_mut(&key) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.clock.state().sleepers.remove(&key);
            // A test may wait for a sleeper to be gone.
            self.clock.0.sleep_began.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn manual() -> (ManualClock, Clock) {
        let manual = ManualClock::new("2026-08-19T00:36:57Z".parse().unwrap());
        let clock = manual.clock();
        (manual, clock)
    }

    #[test]
    fn both_lines_of_time_move_together() {
        let (manual, clock) = manual();
        let before = clock.now();
        manual.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().since(before), Duration::from_millis(1500));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
        assert_eq!(clock.utc_now().to_rfc3339(), "2026-08-19T00:36:58.500+00:00");
        let before = clock.now();
        manual.step_date(TimeDelta::seconds(-90));
        assert_eq!(clock.utc_now().to_rfc3339(), "2026-08-19T00:35:28.500+00:00");
        assert_eq!(clock.now(), before);
    }

    #[test]
    fn a_sleep_ends_at_its_moment_and_not_before() {
        let (manual, clock) = manual();
        let mut sleep = clock.sleep(Duration::from_secs(2));
        assert_eq!((&mut sleep).now_or_never(), None);
        manual.advance(Duration::from_secs(2) - Duration::from_nanos(1));
        assert_eq!((&mut sleep).now_or_never(), None);
        assert_eq!(manual.sleepers(), [Duration::from_nanos(1)]);
        manual.advance(Duration::from_nanos(1));
        assert_eq!(sleep.now_or_never(), Some(()));
        assert_eq!(clock.sleep(Duration::ZERO).now_or_never(), Some(()));
    }

    #[test]
    fn a_dropped_sleep_is_no_sleeper() {
        let (manual, clock) = manual();
        let (short, long) = (clock.sleep(Duration::from_secs(1)), clock.sleep(Duration::MAX));
        assert_eq!(manual.sleepers(), [Duration::from_secs(1), Duration::MAX]);
        drop(short);
        assert_eq!(manual.sleepers(), [Duration::MAX]);
        drop(long);
        assert!(manual.sleepers().is_empty());
    }

    #[test]
    fn a_future_that_is_ready_wins_over_a_deadline_that_passed() {
        let (manual, clock) = manual();
        let deadline = clock.now() + Duration::from_secs(1);
        manual.advance(Duration::from_secs(1));
        assert_eq!(clock.until(deadline, async { 7 }).now_or_never(), Some(Ok(7)));
        let never = std::future::pending::<()>();
        assert_eq!(clock.until(deadline, never).now_or_never(), Some(Err(Elapsed)));
    }

    #[tokio::test]
    async fn a_test_awaits_a_sleeper_and_wakes_it() {
        let (manual, clock) = manual();
        let slept = tokio::spawn(async move {
            clock.sleep(Duration::from_secs(30)).await;
            clock.sleep(Duration::from_secs(5)).await;
            clock.utc_now()
        });
        manual.until_sleeping_for(Duration::from_secs(30)).await;
        manual.advance(Duration::from_secs(31));
        manual.until_sleeping_for(Duration::from_secs(5)).await;
        manual.advance(Duration::from_secs(5));
        assert_eq!(slept.await.unwrap().to_rfc3339(), "2026-08-19T00:37:33+00:00");
        manual.until_sleepers(<[Duration]>::is_empty).await;
    }

    #[tokio::test]
    async fn the_system_clock_moves_and_sleeps() {
        let clock = Clock::system();
        let before = clock.now();
        clock.sleep(Duration::from_millis(2)).await;
        assert!(clock.now().since(before) >= Duration::from_millis(2));
        assert_eq!(clock.sleep(Duration::ZERO).now_or_never(), Some(()));
        assert_eq!(clock.sleep_until(before).now_or_never(), Some(()));
        assert!(clock.utc_now().timestamp() > 1_700_000_000);
    }
}
