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
mod queue;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use self::queue::{Queue, Waiting};
use super::Store;
use super::api_keys::Asked;
use super::claim::NewClaim;
use super::commit::ChatCommit;
use super::error::StoreError;
use crate::clock::BoxFuture;

/// How long what waits is held up by a statement that waits for somebody else's lock: then the next one is
/// sent beside it. A statement of a group gives up by itself after this time.
const HELD_UP: Duration = Duration::from_millis(250);
/// The same as the server takes it.
const LOCK_LIMIT: &str = "250ms";

/// What can travel together.
pub(super) trait Joint: Send + Sync + Sized + 'static {
    type Outcome: Send + 'static;
    /// In metrics.
    const NAME: &'static str;

    /// What at most one member of a group may be about, hashed.
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
    tell: oneshot::Sender<Result<J::Outcome, StoreError>>,
    /// Its lines are its caller's.
    span: Span,
}

/// Makes groups of one kind.
pub(super) struct Coalescer<J: Joint>(Arc<Mutex<Queue<Member<J>>>>);

impl<J: Joint> Clone for Coalescer<J> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<J: Joint> Default for Coalescer<J> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<J: Joint> Coalescer<J> {
    /// One in, one outcome out. It is done whether or not its caller still waits.
    pub async fn submit(&self, store: &Store, one: Arc<J>) -> Result<J::Outcome, StoreError> {
        let (tell, told) = oneshot::channel();
        let (about, bytes) = (one.about(), one.bytes());
        let member = Member { one, tell, span: Span::current() };
        if self.queue().push(Waiting { what: member, about, bytes }) {
            let lane = Lane { coalescer: self.clone(), open: true };
            store.database.spawn(lane.drive(store.clone()));
        }
        told.await.unwrap_or_else(|_| Err(StoreError::Bug(format!("a {} got lost", J::NAME))))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Member<J>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends one group after the other, until nothing waits.
struct Lane<J: Joint> {
    coalescer: Coalescer<J>,
    open: bool,
}

impl<J: Joint> Lane<J> {
    async fn drive(mut self, store: Store) {
        loop {
            let Some(group) = self.coalescer.queue().next() else {
                self.open = false;
                return;
            };
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
            self.coalescer.queue().close_lane();
        }
    }
}

/// Sends a group and tells each member its outcome.
async fn serve<J: Joint>(store: Store, mut group: Vec<Member<J>>) {
    metrics::counter!("oncekey_statements_total", "kind" => J::NAME).increment(1);
    metrics::counter!("oncekey_statement_members_total", "kind" => J::NAME)
        .increment(group.len() as u64);
    if group.len() == 1
        && let Some(member) = group.pop()
    {
        return decide_alone(store, member).await;
    }
    let members: Arc<[Arc<J>]> = group.iter().map(|member| member.one.clone()).collect();
    match J::together(store.clone(), members).await {
        Ok(outcomes) => {
            let mut outcomes = outcomes.into_iter();
            for member in group {
                match outcomes.next().flatten() {
                    Some(outcome) => member.told(Ok(outcome)),
                    None => leave_alone(&store, member),
                }
            }
        }
        // Whether it took effect is not known: each member finds out about itself.
        Err(error) if error.is_unavailable() => {
            for member in group {
                member.told(Err(error.clone()));
            }
        }
        Err(error) => {
            tracing::debug!(event = "group_split", kind = J::NAME, members = group.len(), %error, "each by itself");
            for member in group {
                leave_alone(&store, member);
            }
        }
    }
}

/// Decides a member by its own statement, beside what else goes on.
fn leave_alone<J: Joint>(store: &Store, member: Member<J>) {
    metrics::counter!("oncekey_statement_members_left_total", "kind" => J::NAME).increment(1);
    store.database.spawn(decide_alone(store.clone(), member));
}

async fn decide_alone<J: Joint>(store: Store, member: Member<J>) {
    let outcome = J::alone(store, member.one.clone()).instrument(member.span.clone()).await;
    member.told(outcome);
}

impl<J: Joint> Member<J> {
    fn told(self, outcome: Result<J::Outcome, StoreError>) {
        // A caller that gave up has no ear; what was done for it stands.
        drop(self.tell.send(outcome));
    }
}

/// A hash of what something is about.
fn about(what: impl Hash) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    Some(hasher.finish())
}

/// A lock that was not had in time undoes the group, which is then split.
fn of_group(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|refusal| refusal.code());
    if code.as_deref() == Some("55P03") {
        return StoreError::Conflict("a lock was not had in time".into());
    }
    error.into()
}
