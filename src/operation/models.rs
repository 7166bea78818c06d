//! The models that clients may name, each with its provider and that provider's slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::Clock;
use crate::domain::usage::Prices;
use crate::provider::Provider;

/// A bound on calls at once, and on how long one waits for its turn.
#[derive(Debug, Clone)]
pub struct Slots {
    places: Arc<Semaphore>,
    wait: Duration,
}

impl Slots {
    /// `wait` zero: refused at once.
    pub fn new(places: usize, wait: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))), wait }
    }

    /// A place, first come first served. `None`: none became free in time.
    pub async fn take(&self, clock: &Clock) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        clock.timeout(self.wait, self.places.clone().acquire_owned()).await.ok()?.ok()
    }
}

/// A model as clients name it.
#[derive(Clone)]
pub struct Model {
    pub name: String,
    pub provider: Arc<dyn Provider>,
    /// Shared by all models of one provider.
    pub slots: Slots,
    /// The vendor's own name.
    pub upstream: String,
    pub max_output_tokens: u32,
    /// Whether it takes a temperature at all.
    pub temperature: bool,
    pub prices: Prices,
    pub system: Arc<str>,
}

/// All models by name.
pub type Models = BTreeMap<String, Model>;
