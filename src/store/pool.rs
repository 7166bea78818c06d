//! The connections that statements borrow, and what becomes of them afterwards.
//!
//! The pool of sqlx asks every connection that comes back whether it still stands: a round trip per
//! statement, and one without a limit, so that a socket gone silent takes its place with it for ever.
//! So the places are kept by `deadpool`, and this says what it may lend: a connection that did its work
//! in order is believed, one in doubt is asked when it is borrowed next, and one whose work did not end
//! in order is closed.

use std::io::ErrorKind;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use super::error::StoreError;
use super::session;
use crate::clock::{Clock, Moment};

/// How long a statement waits for a connection, an opened one included.
pub(super) const TAKE_LIMIT: Duration = Duration::from_secs(5);
/// A connection in doubt that does not answer by then has gone.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is in doubt: firewalls forget.
const TRUSTED_IDLE: Duration = Duration::from_secs(30);
/// And is closed after this time: a session's memory only grows, and a server that has moved is found
/// only anew.
const MAX_AGE: Duration = Duration::from_secs(1_800);
/// Between two tries to reach a server that is starting: the first pause, doubled up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Clones are one and the same pool.
#[derive(Clone)]
pub(super) struct Pool {
    places: managed::Pool<Sessions>,
    clock: Clock,
    broken: Broken,
}

/// When a connection last broke: every one that rests since before is in doubt.
#[derive(Clone, Default)]
struct Broken(Arc<Mutex<Option<Moment>>>);

impl Broken {
    fn note(&self, now: Moment) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn since(&self, rested_from: Moment) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| rested_from <= at)
    }
}

/// How sessions are opened and judged.
struct Sessions {
    options: PgConnectOptions,
    clock: Clock,
    broken: Broken,
}

/// A connection in the pool's hands.
struct Pooled {
    connection: PgConnection,
    opened: Moment,
    rests_from: Moment,
}

impl managed::Manager for Sessions {
    type Type = Pooled;
    type Error = StoreError;

    /// Opens a session, waiting for a server that is only just starting.
    async fn create(&self) -> Result<Pooled, StoreError> {
        let deadline = self.clock.now() + TAKE_LIMIT;
        let (mut pause, longest) = PAUSES;
        loop {
            // Boxed, since it is seldom run and large: 25 kB that each statement would carry about.
            let opening = Box::pin(session::open(&self.options));
            let error = match self.clock.until(deadline, opening).await {
                Ok(Ok(connection)) => {
                    let now = self.clock.now();
                    return Ok(Pooled { connection, opened: now, rests_from: now });
                }
                Ok(Err(error)) => error,
                Err(_) => return Err(StoreError::unavailable("no session was opened in time")),
            };
            let pausing = self.clock.until(deadline, self.clock.sleep(pause));
            if !is_starting(&error) || pausing.await.is_err() {
                return Err(error.into());
            }
            pause = (pause * 2).min(longest);
        }
    }

    async fn recycle(&self, pooled: &mut Pooled, _: &Metrics) -> RecycleResult<StoreError> {
        let now = self.clock.now();
        if now.since(pooled.opened) > MAX_AGE {
            return Err(RecycleError::message("too old"));
        }
        let doubted =
            now.since(pooled.rests_from) > TRUSTED_IDLE || self.broken.since(pooled.rests_from);
        if doubted && !stands(&self.clock, &mut pooled.connection).await {
            // Where one has gone, so have the others, mostly: they are in doubt already.
            return Err(RecycleError::message("gone"));
        }
        Ok(())
    }
}

impl Pool {
    /// Of at most `size` connections, at least one; none is opened yet.
    pub(super) fn new(
        options: PgConnectOptions,
        size: u32,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let broken = Broken::default();
        let sessions = Sessions { options, clock: clock.clone(), broken: broken.clone() };
        let places = managed::Pool::builder(sessions)
            .max_size(usize::try_from(size.max(1)).unwrap_or(usize::MAX))
            .queue_mode(QueueMode::Lifo)
            .build()
            .map_err(|error| StoreError::Bug(error.to_string()))?;
        Ok(Self { places, clock, broken })
    }

    /// Borrows the connection that was used last, or opens one. In order of arrival.
    pub(super) async fn take(&self) -> Result<Loan, StoreError> {
        match self.clock.timeout(TAKE_LIMIT, self.places.get()).await {
            Ok(Ok(pooled)) => Ok(Loan { pooled: Some(pooled), pool: self.clone() }),
            Ok(Err(PoolError::Backend(error))) => Err(error),
            Ok(Err(_)) => Err(StoreError::unavailable("the pool is closed")),
            Err(_) => Err(StoreError::unavailable("no connection was free in time")),
        }
    }

    /// A connection broke, so that all that rest are in doubt.
    pub(super) fn doubt(&self) {
        self.broken.note(self.clock.now());
    }

    /// Refuses loans from now on, and closes what rests.
    pub(super) async fn close(&self) {
        let resting = self.places.retain(|_, _| false).removed;
        self.places.close();
        for Pooled { connection, .. } in resting {
            // The server notices a closed socket as well; nothing hangs on the farewell.
            drop(self.clock.timeout(ASK_LIMIT, connection.close()).await);
        }
    }
}

/// A borrowed connection; closed when dropped, unless it was given back.
pub(super) struct Loan {
    /// Taken out by `give_back` and by the drop, and by nothing else.
    pooled: Option<Object<Sessions>>,
    pool: Pool,
}

impl Loan {
    /// The work ended in order. Tells the server of a transaction that was dropped, which is only
    /// noted until then, before the connection rests.
    pub(super) async fn give_back(mut self) {
        let flushed = !self.should_flush() || stands(&self.pool.clock.clone(), &mut self).await;
        if !flushed {
            self.pool.doubt();
            return;
        }
        if let Some(mut pooled) = self.pooled.take() {
            pooled.rests_from = self.pool.clock.now();
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(pooled) = self.pooled.take() {
            // Taken from its place, which is free again; dropped, its socket closes and the server
            // rolls back.
            drop(Object::take(pooled));
        }
    }
}

impl Deref for Loan {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        #[expect(clippy::expect_used, reason = "emptied only by give_back and drop, which end it")]
        &self.pooled.as_ref().expect("a loan holds its connection until it ends").connection
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut PgConnection {
        #[expect(clippy::expect_used, reason = "emptied only by give_back and drop, which end it")]
        &mut self.pooled.as_mut().expect("a loan holds its connection until it ends").connection
    }
}

/// Whether the other end answers, having taken in all that was meant for it.
async fn stands(clock: &Clock, connection: &mut PgConnection) -> bool {
    // Boxed like the opening of a session: hardly ever run, and carried about by each statement.
    matches!(clock.timeout(ASK_LIMIT, Box::pin(connection.ping())).await, Ok(Ok(())))
}

/// Whether a server that cannot be reached may be a moment before it can.
fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => {
            // A socket of the file system is away while its server restarts.
            matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
        }
        // Starting up, or too many sessions, of which one may be just ending.
        sqlx::Error::Database(refusal) => {
            matches!(refusal.code().as_deref(), Some("57P03" | "53300"))
        }
        _ => false,
    }
}
