//! Closed loops: so many workers, each with one operation at a time, for so long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::BenchError;
use crate::clock::{BoxFuture, Clock};

/// Whether a worker has more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done,
    /// Nothing is left; this call did nothing.
    Exhausted,
}

/// Something that does one operation after the other.
pub trait Worker: Send {
    fn operate(&mut self) -> BoxFuture<'_, Result<Step, BenchError>>;
}

/// What a load came to.
#[derive(Debug, Clone)]
pub struct Load {
    pub elapsed: Duration,
    /// Of every operation, shortest first; never empty.
    latencies: Vec<Duration>,
}

impl Load {
    pub fn operations(&self) -> usize {
        self.latencies.len()
    }

    pub fn per_second(&self) -> f64 {
        self.operations() as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that this share of the operations does not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let place = (share * self.latencies.len() as f64).ceil() as usize;
        self.latencies[place.clamp(1, self.latencies.len()) - 1]
    }
}

/// Lets the workers loop for `length`; operations that have begun by then are finished and counted.
pub async fn run(
    clock: &Clock,
    workers: Vec<Box<dyn Worker>>,
    length: Duration,
) -> Result<Load, BenchError> {
    let begun = clock.now();
    let now = clock.clone();
    looping(clock, workers, move || now.now().since(begun) >= length).await
}

/// Lets the workers loop until they are told of the end, or nobody is there to tell it.
pub async fn until(
    clock: &Clock,
    workers: Vec<Box<dyn Worker>>,
    end: oneshot::Receiver<()>,
) -> Result<Load, BenchError> {
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    let looping = looping(clock, workers, move || seen.load(Ordering::Relaxed));
    let ending = async {
        drop(end.await);
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(looping, ending).0
}

async fn looping(
    clock: &Clock,
    workers: Vec<Box<dyn Worker>>,
    is_over: impl Fn() -> bool + Clone + Send + 'static,
) -> Result<Load, BenchError> {
    let begun = clock.now();
    let mut loops = JoinSet::new();
    for mut worker in workers {
        let (clock, is_over) = (clock.clone(), is_over.clone());
        loops.spawn(async move {
            let mut latencies = Vec::new();
            loop {
                let started = clock.now();
                if is_over() && !latencies.is_empty() {
                    return Ok(latencies);
                }
                if worker.operate().await? == Step::Exhausted {
                    return Ok(latencies);
                }
                latencies.push(clock.now().since(started));
            }
        });
    }
    let mut latencies = Vec::new();
    while let Some(ended) = loops.join_next().await {
        let of_one: Result<Vec<Duration>, BenchError> =
            ended.map_err(|error| BenchError::failed(error.to_string()))?;
        latencies.append(&mut of_one?);
    }
    let elapsed = clock.now().since(begun);
    if latencies.is_empty() {
        return Err(BenchError::failed("there was nothing to do for a load"));
    }
    latencies.sort_unstable();
    Ok(Load { elapsed, latencies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_latencies_that_occurred() {
        let latencies: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        let load = Load { elapsed: Duration::from_secs(2), latencies };
        assert_eq!(load.quantile(0.5), Duration::from_millis(100));
        assert_eq!(load.quantile(0.99), Duration::from_millis(198));
        assert_eq!(load.quantile(1.0), Duration::from_millis(200));
        assert_eq!(load.quantile(0.0), Duration::from_millis(1));
        assert!((load.per_second() - 100.0).abs() < 1e-9);
    }
}
