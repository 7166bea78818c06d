//! How a transaction is run: with a name, on a borrowed connection, within a limit, and again where
//! it met another one.
//!
//! Each runs in a task of its own that is never dropped half way: a future that is dropped while
//! `BEGIN` is on the wire hands back a connection inside a transaction. As a second guard, a
//! connection whose work did not end in order is closed instead of going back to the pool.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::error::StoreError;
use super::pool::Pool;
use crate::clock::{BoxFuture, Clock};

/// A statement that has not answered by then never will: its connection is closed.
const STATEMENT_LIMIT: Duration = Duration::from_secs(15);
/// Repeats of a whole transaction after 40001 or 40P01.
const CONFLICT_REPEATS: u32 = 5;

/// A boxed future on a connection.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;

/// The pool with its rules.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    clock: Clock,
    tasks: TaskTracker,
}

impl Database {
    /// Prepares a pool of at most `size` connections; none is opened yet.
    pub fn new(options: PgConnectOptions, size: u32, clock: Clock) -> Result<Self, StoreError> {
        let pool = Pool::new(options, size, clock.clone())?;
        Ok(Self { pool, clock, tasks: TaskTracker::new() })
    }

    /// Runs `work` on a connection of the pool, in a task that outlives its caller. Repeats the
    /// whole of it after a serialization failure or a deadlock, which undid all it did.
    pub(super) async fn run<T, F>(&self, name: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        self.run_within(STATEMENT_LIMIT, name, work).await
    }

    /// The same, not repeated: what is done after a conflict is the caller's decision. For statements of
    /// many operations, a hundred kilobytes and more, which the connection does not keep room for.
    pub(super) async fn run_once_only<T, F>(
        &self,
        name: &'static str,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        let this = self.clone();
        let once = async move {
            this.run_once(STATEMENT_LIMIT, &work, PgConnection::shrink_buffers).await
        };
        let outcome = self.outliving(once).await;
        // What became of so many is not known, and each can find out about itself.
        outcome.unwrap_or_else(|| Err(StoreError::unavailable(format!("{name} panicked"))))
    }

    /// Runs something that is made of transactions to its end, before the pool is closed.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // One kind of task for all: for each kind that is spawned the runtime has its own ten kilobytes of
        // machine code.
        let task: BoxFuture<'static, ()> = Box::pin(work);
        self.tasks.spawn(task);
    }

    /// Runs it in a task that goes on where its caller is dropped. `None`: it panicked.
    async fn outliving<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = oneshot::channel();
        self.spawn(async move { drop(tell.send(work.await)) });
        told.await.ok()
    }

    /// The same for work that may take up to `limit`; it sets its own `statement_timeout`.
    pub(super) async fn run_within<T, F>(
        &self,
        limit: Duration,
        name: &'static str,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T> + Send + Sync + 'static,
    {
        let this = self.clone();
        let whole = async move {
            let mut repeats = 0;
            loop {
                match this.run_once(limit, &work, |_| ()).await {
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
        let outcome = self.outliving(whole.in_current_span()).await;
        outcome.unwrap_or_else(|| Err(StoreError::Bug(format!("{name} panicked"))))
    }

    /// `after`: what a connection needs before it goes back.
    async fn run_once<T, F>(
        &self,
        limit: Duration,
        work: &F,
        after: fn(&mut PgConnection),
    ) -> Result<T, StoreError>
    where
        F: for<'c> Fn(&'c mut PgConnection) -> Work<'c, T>,
    {
        let mut connection = self.pool.take().await.map_err(StoreError::not_sent)?;
        let outcome = self.clock.timeout(limit, work(&mut connection)).await;
        let outcome = outcome
            .unwrap_or_else(|_| Err(StoreError::unavailable("a statement did not answer in time")));
        match &outcome {
            Err(error) if error.is_unavailable() => self.pool.doubt(),
            _ => {
                after(&mut connection);
                connection.give_back().await;
            }
        }
        outcome
    }

    /// Connections that rest are asked whether they stand before they are used again.
    pub(super) fn doubt(&self) {
        self.pool.doubt();
    }

    /// Closes the pool after the last statement has ended.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.pool.close().await;
    }
}
