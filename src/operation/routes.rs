//! The ways to the providers that worked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The route that worked last, by provider, for all calls of an operation.
#[derive(Debug, Default)]
pub struct Routes(Mutex<HashMap<String, usize>>);

impl Routes {
    /// The place of the route to begin with.
    pub fn of(&self, provider: &str) -> usize {
        self.lock().get(provider).copied().unwrap_or(0)
    }

    /// This one worked.
    pub fn prefer(&self, provider: &str, route: usize) {
        self.lock().insert(provider.to_owned(), route);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        // One insertion is all that ever happens under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
