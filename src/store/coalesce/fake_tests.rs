//! The lanes with a kind of member that needs no database: one that panics, one that is refused, and those
//! that follow.

#![expect(clippy::disallowed_methods, reason = "callers of a test's end with it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::domain::liveness::LivenessRules;

/// What a member does to the statement that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Nothing,
    /// Its statement is not answered before it is let go.
    Waits,
    /// And then it panics.
    WaitsInVain,
    PanicsInAGroup,
    PanicsAlways,
    /// What it left behind cannot be looked up.
    LeavesNothingToSee,
}

struct Fake {
    name: u64,
    does: Does,
    line: Arc<Seen>,
}

/// What happened, and what lets a waiting statement go.
#[derive(Default)]
struct Seen {
    groups: AtomicUsize,
    alone: AtomicUsize,
    behind: AtomicUsize,
    under_way: Notify,
    go: Notify,
}

impl Joint for Fake {
    type Outcome = String;
    type Same = u64;
    const NAME: &'static str = "fake";

    fn same(&self) -> Option<u64> {
        Some(self.name)
    }

    fn about(&self) -> [Option<u64>; 2] {
        [Some(self.name), None]
    }

    fn bytes(&self) -> usize {
        1
    }

    fn together(
        _: Store,
        group: Arc<[Arc<Self>]>,
    ) -> BoxFuture<'static, Result<Vec<Option<String>>, StoreError>> {
        Box::pin(async move {
            group[0].line.groups.fetch_add(1, Ordering::Relaxed);
            assert!(group.iter().all(|one| one.does == Does::Nothing), "of a member's making");
            Ok(group.iter().map(|one| Some(format!("{} together", one.name))).collect())
        })
    }

    fn alone(_: Store, one: Arc<Self>) -> BoxFuture<'static, Result<String, StoreError>> {
        Box::pin(async move {
            one.line.alone.fetch_add(1, Ordering::Relaxed);
            assert!(one.does != Does::PanicsAlways, "of its own making");
            if matches!(one.does, Does::Waits | Does::WaitsInVain) {
                one.line.under_way.notify_one();
                one.line.go.notified().await;
            }
            assert!(one.does != Does::WaitsInVain, "of its own making");
            Ok(format!("{} alone", one.name))
        })
    }

    fn behind(_: Store, first: Arc<Self>) -> BoxFuture<'static, Result<String, StoreError>> {
        Box::pin(async move {
            first.line.behind.fetch_add(1, Ordering::Relaxed);
            if first.does == Does::LeavesNothingToSee {
                return Err(StoreError::unavailable("no connection was free in time"));
            }
            Ok(format!("behind {}", first.name))
        })
    }
}

/// Lanes over a store that nobody asks anything; its time stands.
struct Lanes {
    clock: ManualClock,
    store: Store,
    coalescer: Arc<Coalescer<Fake>>,
    seen: Arc<Seen>,
}

impl Lanes {
    fn new() -> Self {
        let settings = super::super::StoreSettings {
            url: "postgres://nobody@127.0.0.1:1/none".to_owned(),
            direct_url: None,
            pool_size: 1,
            coalesce: true,
            liveness: LivenessRules { stale_after: Duration::ZERO, grace: Duration::ZERO },
            clock_offset: Duration::ZERO,
        };
        let clock = ManualClock::new(Clock::system().utc_now());
        let store = Store::new(settings, clock.clock()).unwrap();
        Self { clock, store, coalescer: Arc::default(), seen: Arc::default() }
    }

    /// Hands one in, after those before it.
    async fn hand_in(
        &self,
        name: u64,
        does: Does,
    ) -> tokio::task::JoinHandle<Result<String, StoreError>> {
        let fake = Arc::new(Fake { name, does, line: self.seen.clone() });
        let (store, coalescer) = (self.store.clone(), self.coalescer.clone());
        let told = tokio::spawn(async move { coalescer.submit(&store, fake).await });
        tokio::task::yield_now().await;
        told
    }

    /// A statement that is under way until [`Seen::go`]: what is handed in meanwhile is one group.
    async fn under_way(&self) -> tokio::task::JoinHandle<Result<String, StoreError>> {
        let first = self.hand_in(0, Does::Waits).await;
        self.seen.under_way.notified().await;
        first
    }
}

async fn text(told: tokio::task::JoinHandle<Result<String, StoreError>>) -> String {
    told.await.unwrap().unwrap_or_else(|error| error.to_string())
}

/// How far a group came that panicked is not known: each of it is left to find out, and the lane goes on.
#[tokio::test]
async fn a_panic_in_a_group_leaves_each_to_find_out_and_the_lane_goes_on() {
    let lanes = Lanes::new();
    let first = lanes.under_way().await;
    let members =
        [lanes.hand_in(1, Does::Nothing).await, lanes.hand_in(2, Does::PanicsInAGroup).await];
    lanes.seen.go.notify_one();
    assert_eq!(text(first).await, "0 alone");
    for member in members {
        assert!(member.await.unwrap().is_err_and(|error| error.is_in_doubt()));
    }
    assert_eq!(text(lanes.hand_in(3, Does::Nothing).await).await, "3 alone");
    assert_eq!(lanes.seen.groups.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_waits_behind_a_lone_panic_is_sent() {
    let lanes = Lanes::new();
    let first = lanes.under_way().await;
    let bad = lanes.hand_in(1, Does::PanicsAlways).await;
    lanes.seen.go.notify_one();
    text(first).await;
    assert!(text(bad).await.contains("panicked"));
    let next = lanes.under_way().await;
    let both = [lanes.hand_in(2, Does::Nothing).await, lanes.hand_in(3, Does::Nothing).await];
    lanes.seen.go.notify_one();
    text(next).await;
    for (told, expected) in both.into_iter().zip(["2 together", "3 together"]) {
        assert_eq!(text(told).await, expected);
    }
}

/// Whoever comes while one of the same waits or is under way is not sent, and all of them are one look.
#[tokio::test]
async fn those_that_follow_are_one_look() {
    let lanes = Lanes::new();
    let first = lanes.under_way().await;
    let lead = lanes.hand_in(1, Does::Nothing).await;
    let mut followers = Vec::new();
    for _ in 0..10 {
        followers.push(lanes.hand_in(1, Does::Nothing).await);
    }
    let of_the_first = lanes.hand_in(0, Does::Nothing).await;
    lanes.seen.go.notify_one();
    text(first).await;
    assert_eq!(text(lead).await, "1 alone");
    for follower in followers {
        assert_eq!(text(follower).await, "behind 1");
    }
    assert_eq!(text(of_the_first).await, "behind 0");
    assert_eq!(lanes.seen.alone.load(Ordering::Relaxed), 2);
    assert_eq!(lanes.seen.behind.load(Ordering::Relaxed), 2);
    // With the first decided, the next one is a first again.
    assert_eq!(text(lanes.hand_in(1, Does::Nothing).await).await, "1 alone");
}

/// What the first is refused with is its own affair, and so is a look that failed: each that followed is
/// sent by itself.
#[tokio::test]
async fn those_behind_a_failure_are_sent_by_themselves() {
    for (does, lead_hears) in
        [(Does::PanicsAlways, "panicked"), (Does::LeavesNothingToSee, "1 alone")]
    {
        let lanes = Lanes::new();
        let first = lanes.under_way().await;
        let lead = lanes.hand_in(1, does).await;
        let followers =
            [lanes.hand_in(1, Does::Nothing).await, lanes.hand_in(1, Does::Nothing).await];
        lanes.seen.go.notify_one();
        text(first).await;
        let heard = text(lead).await;
        assert!(heard.contains(lead_hears), "{heard}");
        for follower in followers {
            assert_eq!(text(follower).await, "1 alone");
        }
    }
}

/// A first that does not come back is not waited for without end.
#[tokio::test]
async fn a_follower_has_its_patience() {
    let lanes = Lanes::new();
    let first = lanes.under_way().await;
    let follower = lanes.hand_in(0, Does::Nothing).await;
    lanes.clock.until_sleeping_for(PATIENCE).await;
    assert!(!follower.is_finished());
    lanes.clock.advance(PATIENCE);
    assert_eq!(text(follower).await, "0 alone");
    assert!(!first.is_finished());
    lanes.seen.go.notify_one();
    assert_eq!(text(first).await, "0 alone");
}

/// Whom nobody waits for any more is decided all the same, and so are those behind it.
#[tokio::test]
async fn a_first_whose_caller_left_is_followed_to_its_end() {
    let lanes = Lanes::new();
    let first = lanes.under_way().await;
    let lead = lanes.hand_in(1, Does::Nothing).await;
    let follower = lanes.hand_in(1, Does::Nothing).await;
    lead.abort();
    lanes.seen.go.notify_one();
    text(first).await;
    assert_eq!(text(follower).await, "behind 1");
}

/// Whoever has lost its patience and went by itself is not sent once more when the first fails at last: its
/// caller has its answer, and a claim that was won then would be nobody's.
#[tokio::test]
async fn who_went_by_itself_is_not_sent_again() {
    let lanes = Lanes::new();
    let first = lanes.hand_in(0, Does::WaitsInVain).await;
    lanes.seen.under_way.notified().await;
    let [impatient, left] =
        [lanes.hand_in(0, Does::Nothing).await, lanes.hand_in(0, Does::Nothing).await];
    left.abort();
    lanes.clock.until_sleeping_for(PATIENCE).await;
    lanes.clock.advance(PATIENCE);
    assert_eq!(text(impatient).await, "0 alone");
    lanes.seen.go.notify_one();
    assert!(text(first).await.contains("panicked"));
    // Whatever else was begun has ended then.
    lanes.store.database.close().await;
    assert_eq!(lanes.seen.alone.load(Ordering::Relaxed), 2);
    assert!(lanes.coalescer.0.queue().is_empty());
}

/// However many follow, and whatever becomes of the first: nothing of them is kept.
#[tokio::test]
async fn nothing_is_left_of_a_herd() {
    for does in [Does::Nothing, Does::PanicsAlways, Does::LeavesNothingToSee] {
        let lanes = Lanes::new();
        let first = lanes.under_way().await;
        let mut herd = vec![lanes.hand_in(1, does).await];
        for name in [1, 0, 2].into_iter().cycle().take(1_500) {
            herd.push(lanes.hand_in(name, Does::Nothing).await);
        }
        for gone in herd.iter().step_by(7) {
            gone.abort();
        }
        lanes.seen.go.notify_one();
        text(first).await;
        for one in herd {
            drop(one.await);
        }
        lanes.store.database.close().await;
        assert!(lanes.coalescer.0.queue().is_empty(), "{does:?}");
    }
}
