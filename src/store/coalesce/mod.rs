//! Statements that travel together: what arrives while one is under way waits for it, and goes in the next.
//!
//! Nothing waits for company: where no statement is under way, one goes at once and alone, as it would
//! without any of this. PostgreSQL's work is mostly by the statement, so under load groups grow until they
//! carry what comes in.
//!
//! A group may only win. What it cannot do for one of its members at once and without waiting (a key that
//! is taken, a row that somebody holds, a fence that moved on) it leaves undone, and that member is decided
//! by its own statement, the same as if it had come alone. Where a group fails as a whole, each of its
//! members is decided so. See docs/coalescing.md.

mod arrivals;
mod claims;
mod commits;
#[cfg(test)]
mod fake_tests;
mod queue;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use self::queue::{Pushed, Queue, Waiting};
use super::Store;
use super::api_keys::Asked;
use super::claim::NewClaim;
use super::commit::ChatCommit;
use super::error::StoreError;
use crate::clock::{BoxFuture, Elapsed};

/// How long what waits is held up by a statement that waits for somebody else's lock: then the next one is
/// sent beside it. A statement of a group gives up by itself after this time.
const HELD_UP: Duration = Duration::from_millis(250);
/// How long one follows another: the first may wait for a lock for longer, and each follower would wait
/// for it once more afterwards.
const PATIENCE: Duration = Duration::from_secs(2);
/// `HELD_UP` as the server takes it.
const LOCK_LIMIT: &str = "250ms";

/// What can travel together.
pub(super) trait Joint: Send + Sync + Sized + 'static {
    type Outcome: Clone + Send + 'static;
    /// What it is, exactly: nobody is told of another's.
    type Same: Eq + Hash + Send;
    /// In metrics.
    const NAME: &'static str;

    /// What it is, where of two at once only the first need be sent: the second is told what the first one
    /// left [`behind`](Self::behind).
    fn same(&self) -> Option<Self::Same> {
        None
    }

    /// What at most one member of a group may be about, hashed: two different things with one hash only wait
    /// for each other.
    fn about(&self) -> [Option<u64>; 2];

    /// About as large as its statement is.
    fn bytes(&self) -> usize;

    /// One statement for all. `None` for a member that it left undone.
    fn together(
        store: Store,
        group: Arc<[Arc<Self>]>,
    ) -> BoxFuture<'static, Result<Vec<Option<Self::Outcome>>, StoreError>>;

    /// A statement of its own.
    fn alone(store: Store, one: Arc<Self>)
    -> BoxFuture<'static, Result<Self::Outcome, StoreError>>;

    /// What those are told that came while `first`, which is now decided, was waiting or under way. It is
    /// looked up once for all of them.
    fn behind(
        store: Store,
        first: Arc<Self>,
    ) -> BoxFuture<'static, Result<Self::Outcome, StoreError>> {
        Self::alone(store, first)
    }
}

/// The groups of a node, by what they do.
#[derive(Default)]
pub(super) struct Coalescers {
    pub claims: Coalescer<NewClaim>,
    pub commits: Coalescer<ChatCommit>,
    pub arrivals: Coalescer<Asked>,
}

/// One that waits for its outcome.
struct Member<J: Joint> {
    one: Arc<J>,
    /// Dropped unused, it has one that follows go by itself.
    tell: oneshot::Sender<Result<J::Outcome, StoreError>>,
    /// Its lines are its caller's.
    span: Span,
}

/// What waits and what is under way, of one kind.
struct Line<J: Joint>(Mutex<Queue<Member<J>, J::Same>>);

impl<J: Joint> Line<J> {
    fn queue(&self) -> MutexGuard<'_, Queue<Member<J>, J::Same>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes groups of one kind.
pub(super) struct Coalescer<J: Joint>(Arc<Line<J>>);

impl<J: Joint> Default for Coalescer<J> {
    fn default() -> Self {
        Self(Arc::new(Line(Mutex::default())))
    }
}

impl<J: Joint> Coalescer<J> {
    /// One in, one outcome out. What goes with a lane is done whether or not its caller still waits; whoever
    /// follows another and leaves has asked for nothing.
    pub async fn submit(&self, store: &Store, one: Arc<J>) -> Result<J::Outcome, StoreError> {
        let (tell, told) = oneshot::channel();
        let (same, about, bytes) = (one.same(), one.about(), one.bytes());
        let member = Member { one: one.clone(), tell, span: Span::current() };
        let pushed = self.0.queue().push(Waiting { what: member, about, bytes }, same);
        let told = match pushed {
            Pushed::OpensLane => {
                let lane = Lane { line: self.0.clone(), open: true };
                store.database.spawn(lane.drive(store.clone()));
                told.await
            }
            Pushed::Waits => told.await,
            Pushed::Follows => match store.clock.timeout(PATIENCE, told).await {
                Ok(Ok(told)) => return told,
                // By the caller and nobody else: a claim that is won for one who has left is nobody's.
                Ok(Err(_)) | Err(Elapsed) => {
                    count_left::<J>();
                    return J::alone(store.clone(), one).await;
                }
            },
        };
        told.unwrap_or_else(|_| Err(StoreError::Bug(format!("a {} got lost", J::NAME))))
    }
}

/// Sends one group after the other, until nothing waits.
struct Lane<J: Joint> {
    line: Arc<Line<J>>,
    open: bool,
}

impl<J: Joint> Lane<J> {
    async fn drive(mut self, store: Store) {
        loop {
            let Some(group) = self.line.queue().next() else {
                self.open = false;
                return;
            };
            let group = group.into_iter().map(|member| Lead::new(&self.line, member)).collect();
            let mut statement = Box::pin(serve(store.clone(), group));
            if store.clock.timeout(HELD_UP, &mut statement).await.is_err() {
                store.database.spawn(statement);
            }
        }
    }
}

impl<J: Joint> Drop for Lane<J> {
    fn drop(&mut self) {
        if self.open {
            self.line.queue().close_lane();
        }
    }
}

/// One that was sent, and those that follow it.
struct Lead<J: Joint> {
    member: Member<J>,
    followed: Followed<J>,
}

/// That others may follow the first of its sort, until this is gone.
struct Followed<J: Joint> {
    line: Arc<Line<J>>,
    same: Option<J::Same>,
}

impl<J: Joint> Followed<J> {
    /// Nobody follows it from now on; those that did.
    fn over(&mut self) -> Vec<Member<J>> {
        self.same.take().map(|same| self.line.queue().decided(&same)).unwrap_or_default()
    }
}

impl<J: Joint> Drop for Followed<J> {
    fn drop(&mut self) {
        // Not under the queue's lock.
        drop(self.over());
    }
}

impl<J: Joint> Lead<J> {
    fn new(line: &Arc<Line<J>>, member: Member<J>) -> Self {
        let followed = Followed { line: line.clone(), same: member.one.same() };
        Self { member, followed }
    }

    fn told(mut self, store: &Store, outcome: Result<J::Outcome, StoreError>) {
        let followers = self.followed.over();
        let Member { one, tell, .. } = self.member;
        let stands = outcome.is_ok();
        // A caller that gave up has no ear; what was done for it stands.
        drop(tell.send(outcome));
        // What the first was refused with is its own affair: then each of them goes by itself.
        if stands && !followers.is_empty() {
            store.database.spawn(tell_followers(store.clone(), one, followers));
        }
    }
}

/// Sends a group and tells each member its outcome.
async fn serve<J: Joint>(store: Store, mut group: Vec<Lead<J>>) {
    metrics::counter!("oncekey_statements_total", "kind" => J::NAME).increment(1);
    metrics::counter!("oncekey_statement_members_total", "kind" => J::NAME)
        .increment(group.len() as u64);
    if group.len() == 1
        && let Some(lead) = group.pop()
    {
        return decide_alone(store, lead).await;
    }
    let members: Arc<[Arc<J>]> = group.iter().map(|lead| lead.member.one.clone()).collect();
    let together = AssertUnwindSafe(J::together(store.clone(), members)).catch_unwind().await;
    // How far it had come by then is not known either.
    match together.unwrap_or_else(|_| Err(StoreError::unavailable("a group's statement panicked")))
    {
        Ok(outcomes) => {
            let mut outcomes = outcomes.into_iter();
            for lead in group {
                match outcomes.next().flatten() {
                    Some(outcome) => lead.told(&store, Ok(outcome)),
                    None => leave_alone(&store, lead),
                }
            }
        }
        // Whether it took effect is not known: each member finds out about itself.
        Err(error) if error.is_unavailable() => {
            for lead in group {
                lead.told(&store, Err(error.clone()));
            }
        }
        Err(error) => {
            tracing::debug!(event = "group_split", kind = J::NAME, members = group.len(), %error, "each by itself");
            for lead in group {
                leave_alone(&store, lead);
            }
        }
    }
}

/// Decides a member by its own statement, beside what else goes on.
fn leave_alone<J: Joint>(store: &Store, lead: Lead<J>) {
    count_left::<J>();
    store.database.spawn(decide_alone(store.clone(), lead));
}

fn count_left<J: Joint>() {
    metrics::counter!("oncekey_statement_members_left_total", "kind" => J::NAME).increment(1);
}

async fn decide_alone<J: Joint>(store: Store, lead: Lead<J>) {
    let alone = J::alone(store.clone(), lead.member.one.clone());
    let alone = AssertUnwindSafe(alone.instrument(lead.member.span.clone())).catch_unwind().await;
    // Its own affair, and none of what waits behind it.
    let panicked = |_| Err(StoreError::Bug(format!("a {} panicked", J::NAME)));
    lead.told(&store, alone.unwrap_or_else(panicked));
}

/// One look for all that followed `first`; where that fails, each goes by itself.
async fn tell_followers<J: Joint>(store: Store, first: Arc<J>, followers: Vec<Member<J>>) {
    metrics::counter!("oncekey_statement_followers_total", "kind" => J::NAME)
        .increment(followers.len() as u64);
    let span = followers.first().map_or_else(Span::none, |follower| follower.span.clone());
    let Ok(outcome) = J::behind(store, first).instrument(span).await else { return };
    for follower in followers {
        drop(follower.tell.send(Ok(outcome.clone())));
    }
}

/// A hash of what something is about.
fn about(what: impl Hash) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    Some(hasher.finish())
}

/// A lock that was not had in time undoes the group, which is then split; so does what the server lacks (room
/// on a disk, memory) or an operator who cancels the statement. It may be due to one member, and whether the
/// statement took effect is known.
fn of_group(error: sqlx::Error) -> StoreError {
    let refusal = error.as_database_error();
    let code = refusal.and_then(|refusal| refusal.code());
    match (refusal, code.as_deref()) {
        (Some(refusal), Some("55P03" | "57014" | "53000" | "53100" | "53200")) => {
            StoreError::Conflict(refusal.message().to_owned())
        }
        _ => error.into(),
    }
}
