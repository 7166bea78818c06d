//! The connections that statements borrow, and what becomes of them afterwards.
//!
//! The pool of sqlx asks every connection that comes back whether it still stands: a round trip per
//! statement, and one without a limit, so that a socket gone silent takes its place with it for ever.
//! Here a connection that did its work in order is believed, one in doubt is asked when it is borrowed
//! next, and every wait has a limit on the product's own clock. A connection whose work did not end
//! in order is closed, never lent again.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::prepare_session;
use super::error::StoreError;
use crate::clock::{Clock, Moment};

/// How long a statement waits for a connection, an opened one included.
pub(super) const TAKE_LIMIT: Duration = Duration::from_secs(5);
/// A connection in doubt that does not answer by then has gone.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is in doubt: firewalls forget.
const TRUSTED_IDLE: Duration = Duration::from_secs(30);
/// An idle connection is closed after this time; a burst needs no memory on the server for ever.
const MAX_IDLE: Duration = Duration::from_secs(600);
/// And any after this one: a session's memory only grows, and a new address is found only anew.
const MAX_AGE: Duration = Duration::from_secs(1_800);
/// Between two tries to reach a server that is starting: the first pause, doubled up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Clones are one and the same pool.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    options: PgConnectOptions,
    clock: Clock,
    /// One for each connection that may be out at once.
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Longest idle first.
    idle: VecDeque<Resting>,
    /// When a connection last broke: every one that rests since before is in doubt.
    broken: Option<Moment>,
}

struct Resting {
    connection: PgConnection,
    opened: Moment,
    since: Moment,
}

/// A borrowed connection; closed when dropped, unless it was given back.
pub(super) struct Loan {
    connection: PgConnection,
    opened: Moment,
    pool: Pool,
    place: OwnedSemaphorePermit,
}

impl Pool {
    /// Of at most `size` connections; none is opened yet.
    pub(super) fn new(options: PgConnectOptions, size: u32, clock: Clock) -> Self {
        let size = usize::try_from(size).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            options,
            clock,
            places: Arc::new(Semaphore::new(size)),
            state: Mutex::default(),
        }))
    }

    /// Borrows the connection that was used last, or opens one. In order of arrival.
    pub(super) async fn take(&self) -> Result<Loan, StoreError> {
        let clock = &self.0.clock;
        let deadline = clock.now() + TAKE_LIMIT;
        let place = clock
            .until(deadline, self.0.places.clone().acquire_owned())
            .await
            .map_err(|_| StoreError::unavailable("every connection is in use"))?
            .map_err(|_| StoreError::unavailable("the pool is closed"))?;
        // One in doubt is asked, once: where it has gone, so have the others, mostly.
        if let Some((mut resting, doubted)) = self.newest()
            && (!doubted || stands(clock, &mut resting.connection).await)
        {
            let Resting { connection, opened, .. } = resting;
            return Ok(Loan { connection, opened, pool: self.clone(), place });
        }
        let connection = self.open(deadline).await?;
        Ok(Loan { connection, opened: clock.now(), pool: self.clone(), place })
    }

    /// A connection broke, so that all that rest are in doubt.
    pub(super) fn doubt(&self) {
        self.state().broken = Some(self.0.clock.now());
    }

    /// Refuses loans from now on, and closes what rests.
    pub(super) async fn close(&self) {
        self.0.places.close();
        let resting = std::mem::take(&mut self.state().idle);
        for Resting { connection, .. } in resting {
            // The server notices a closed socket as well; nothing hangs on the farewell.
            drop(self.0.clock.timeout(ASK_LIMIT, connection.close()).await);
        }
    }

    /// The connection that was used last, and whether it is in doubt. Those past their time are
    /// closed on the way.
    fn newest(&self) -> Option<(Resting, bool)> {
        let now = self.0.clock.now();
        let mut state = self.state();
        state.idle.retain(|resting| {
            now.since(resting.since) < MAX_IDLE && now.since(resting.opened) < MAX_AGE
        });
        let newest = state.idle.pop_back()?;
        let doubted = now.since(newest.since) > TRUSTED_IDLE
            || state.broken.is_some_and(|broken| newest.since <= broken);
        Some((newest, doubted))
    }

    /// Opens a session, waiting for a server that is only just starting.
    async fn open(&self, deadline: Moment) -> Result<PgConnection, StoreError> {
        let clock = &self.0.clock;
        let (mut pause, longest) = PAUSES;
        loop {
            let opened = clock.until(deadline, async {
                let mut connection = PgConnection::connect_with(&self.0.options).await?;
                prepare_session(&mut connection).await?;
                Ok(connection)
            });
            let error: sqlx::Error = match opened.await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_) => return Err(StoreError::unavailable("no session was opened in time")),
            };
            if !is_starting(&error) || clock.until(deadline, clock.sleep(pause)).await.is_err() {
                return Err(error.into());
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loan {
    /// The work ended in order. Tells the server of a transaction that was dropped, which is only
    /// noted until then, before the connection rests.
    pub(super) async fn give_back(self) {
        let Self { mut connection, opened, pool, place } = self;
        if connection.should_flush() && !stands(&pool.0.clock, &mut connection).await {
            pool.doubt();
            return;
        }
        let since = pool.0.clock.now();
        pool.state().idle.push_back(Resting { connection, opened, since });
        drop(place);
    }
}

impl Deref for Loan {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

/// Whether the other end answers, having taken in all that was meant for it.
async fn stands(clock: &Clock, connection: &mut PgConnection) -> bool {
    matches!(clock.timeout(ASK_LIMIT, connection.ping()).await, Ok(Ok(())))
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
