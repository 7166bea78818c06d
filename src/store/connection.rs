//! How a statement gets its connection, and what becomes of it afterwards.
//!
//! Every statement runs in a task of its own that is never dropped half way: a future that is
//! dropped while `BEGIN` is on the wire hands back a connection inside a transaction. As a second
//! guard, a connection whose work did not end in order is closed instead of going back to the pool.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres};
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use tracing::log::LevelFilter;

use super::error::StoreError;
use crate::clock::{Clock, Moment};

/// A statement that has not answered by then never will: its connection is closed.
const STATEMENT_LIMIT: Duration = Duration::from_secs(15);
/// How long a statement waits for a place in the pool.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(5);
/// A statement that takes longer is logged, without its values.
const SLOW_STATEMENT: Duration = Duration::from_secs(1);
/// Repeats of a whole transaction after 40001 or 40P01.
const CONFLICT_REPEATS: u32 = 5;

/// Reads an address.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| {
        StoreError::Bug("the database's address is not of the form postgres://…".into())
    })?;
    Ok(options
        .application_name("oncekey")
        .log_statements(LevelFilter::Off)
        .log_slow_statements(LevelFilter::Warn, SLOW_STATEMENT))
}

/// A boxed future on a connection.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;

/// A connection that has been idle for longer is asked whether it still stands.
const TRUSTED_IDLE: Duration = Duration::from_secs(30);

/// The pool with its rules.
#[derive(Clone)]
pub struct Database {
    pool: PgPool,
    clock: Clock,
    tasks: TaskTracker,
    broken: Broken,
}

/// When a connection last broke: until it was used since, every other one is in doubt too.
#[derive(Clone)]
struct Broken {
    last: Arc<Mutex<Option<Moment>>>,
    clock: Clock,
}

impl Broken {
    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.now());
    }

    /// Asking costs a round trip, so a connection in use is believed.
    fn doubts(&self, idle: Duration) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        idle > TRUSTED_IDLE || last.is_some_and(|last| self.clock.now().since(last) <= idle)
    }
}

impl Database {
    /// Prepares a pool of at most `size` connections; none is opened yet.
    pub fn new(options: PgConnectOptions, size: u32, clock: Clock) -> Self {
        let broken = Broken { last: Arc::default(), clock: clock.clone() };
        let doubts = broken.clone();
        let pool = PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(ACQUIRE_LIMIT)
            .test_before_acquire(false)
            .before_acquire(move |connection, known| {
                let doubted = doubts.doubts(known.idle_for);
                Box::pin(async move { Ok(!doubted || connection.ping().await.is_ok()) })
            })
            .after_connect(|connection, _| Box::pin(prepare_session(connection)))
            .connect_lazy_with(options);
        Self { pool, clock, tasks: TaskTracker::new(), broken }
    }

    /// Runs `work` on a connection of the pool, in a task that outlives its caller. Repeats the
    /// whole of it after a serialization failure or a deadlock, which undid all it did.
    pub(super) async fn run<T, F>(&self, name: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        let this = self.clone();
        let whole = async move {
            let mut repeats = 0;
            loop {
                match this.run_once(&work).await {
                    Err(error) if error.is_conflict() && repeats < CONFLICT_REPEATS => {
                        repeats += 1;
                        tracing::info!(
                            event = "transaction_repeated",
                            transaction = name,
                            repeats,
                            %error,
                            "undone by another one"
                        );
                    }
                    outcome => return outcome,
                }
            }
        };
        // What it logs is its caller's, though the task is not.
        let task = self.tasks.spawn(whole.in_current_span());
        task.await.unwrap_or_else(|_| Err(StoreError::Bug(format!("{name} panicked"))))
    }

    async fn run_once<T, F>(&self, work: &F) -> Result<T, StoreError>
    where
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T>,
    {
        let mut connection = Borrowed(Some(self.pool.acquire().await.map_err(StoreError::from)?));
        let outcome = tokio::select! {
            outcome = work(&mut connection) => outcome,
            () = self.clock.sleep(STATEMENT_LIMIT) => {
                self.broken.note();
                return Err(StoreError::unavailable("a statement did not answer in time"));
            }
        };
        match &outcome {
            Err(error) if error.is_unavailable() => self.broken.note(),
            _ => connection.give_back(),
        }
        outcome
    }

    /// Closes the pool after the last statement has ended.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.pool.close().await;
    }
}

/// Generic plans, because with partitions the server would plan every call anew; and bounds on what a
/// session of ours can hold up.
pub(super) async fn prepare_session(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(
        "set plan_cache_mode = force_generic_plan; set lock_timeout = '10s'; \
         set statement_timeout = '30s'; set idle_in_transaction_session_timeout = '20s'; \
         set timezone = 'UTC'",
    )
    .execute(connection)
    .await
    .map(|_| ())
}

/// A connection that is closed when dropped, unless it was given back.
struct Borrowed(Option<PoolConnection<Postgres>>);

impl Borrowed {
    fn give_back(&mut self) {
        drop(self.0.take());
    }
}

impl Deref for Borrowed {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        #[expect(clippy::expect_used, reason = "emptied only by give_back and drop, which end it")]
        self.0.as_ref().expect("a borrowed connection is there until it is given back")
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut PgConnection {
        #[expect(clippy::expect_used, reason = "emptied only by give_back and drop, which end it")]
        self.0.as_mut().expect("a borrowed connection is there until it is given back")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            // Detached, it leaves the pool's count; dropped, its socket closes and the server rolls back.
            drop(connection.detach());
        }
    }
}
