//! Starting and stopping: every task has its place here, and stopping has two stages. Draining
//! refuses new work and lets what runs finish; cutting ends the rest in order.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The stages of a process, and the tasks that stopping waits for. Clones are one and the same.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    tasks: TaskTracker,
    runs: TaskTracker,
    draining: CancellationToken,
    cut: CancellationToken,
    over: CancellationToken,
}

impl Lifecycle {
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs background work (sweep, keeper, heartbeat) until it ends; it should watch
    /// [`Lifecycle::over`].
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn(work)
    }

    /// Runs the work of an arrival, which goes on when nobody waits for it any more, and which
    /// draining waits for.
    pub fn spawn_run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runs.spawn(work)
    }

    /// First stage: nothing new begins.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Ready once draining has begun.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Second stage: what runs ends as released.
    pub fn cut_runs(&self) {
        self.cut.cancel();
    }

    /// Ready once runs are cut.
    pub async fn cut(&self) {
        self.cut.cancelled().await;
    }

    /// How many arrivals are being worked on.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Ready once no arrival is worked on. Meaningful after [`Lifecycle::drain`].
    pub async fn runs_ended(&self) {
        self.runs.close();
        self.runs.wait().await;
    }

    /// Last stage: background work ends. Ready once it has.
    pub async fn end(&self) {
        self.over.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Ready once background work should end.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }
}
