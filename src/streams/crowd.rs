//! How many readers each operation has at this node, so that there can be a bound on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::domain::ids::TenantId;

type Key = (TenantId, Uuid);

/// The readers of a node; clones are one and the same.
#[derive(Debug, Clone, Default)]
pub struct Crowd(Arc<Mutex<HashMap<Key, usize>>>);

/// A reader's place; free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    crowd: Crowd,
    key: Key,
    number: usize,
}

impl Crowd {
    /// One more reader of the operation, whether there is room or not.
    pub fn enter(&self, tenant: &TenantId, key: Uuid) -> Seat {
        let key = (tenant.clone(), key);
        let mut readers = self.readers();
        let number = readers.entry(key.clone()).or_default();
        *number += 1;
        let number = *number;
        Seat { crowd: self.clone(), key, number }
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        // Whole between any two statements that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// How many there were when this one came, itself counted.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut readers = self.crowd.readers();
        if let Some(number) = readers.get_mut(&self.key) {
            *number -= 1;
            if *number == 0 {
                readers.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_counted_by_operation_and_leave_nothing_behind() {
        let (crowd, tenant) = (Crowd::default(), TenantId::new("t1"));
        let enter = |key: u128| crowd.enter(&tenant, Uuid::from_u128(key));
        let mut seats: Vec<Seat> = (0..3).map(|_| enter(1)).collect();
        let numbers: Vec<usize> = seats.iter().map(Seat::number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(enter(2).number(), 1);
        assert_eq!(crowd.enter(&TenantId::new("t2"), Uuid::from_u128(1)).number(), 1);
        seats.remove(0);
        assert_eq!(enter(1).number(), 3, "who went made room");
        drop(seats);
        assert!(crowd.readers().is_empty());
    }
}
