//! The shares that this relay may work at, as its lanes see them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::{Clock, Moment};
use crate::domain::outbox::fair_count;
use crate::store::SharesHeld;

/// Clones are one and the same.
#[derive(Clone)]
pub(super) struct Shares {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    held: BTreeSet<i16>,
    /// Held, and to be given back as soon as nothing of them is under way.
    leaving: BTreeSet<i16>,
    /// Deliveries under way.
    busy: BTreeMap<i16, u32>,
    /// Counted from when the last round was sent: past it another relay may have them.
    trusted_until: Option<Moment>,
}

/// A delivery that is under way in a share.
pub(super) struct Busy {
    shares: Shares,
    share: i16,
}

impl Shares {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// Those in which something may begin.
    pub(super) fn usable(&self) -> Vec<i16> {
        let now = self.clock.now();
        let state = self.state();
        if state.trusted_until.is_none_or(|until| until <= now) {
            return Vec::new();
        }
        state.held.difference(&state.leaving).copied().collect()
    }

    /// Begins something in a share, where it may.
    pub(super) fn enter(&self, share: i16) -> Option<Busy> {
        let now = self.clock.now();
        let mut state = self.state();
        let trusted = state.trusted_until.is_some_and(|until| until > now);
        if !trusted || !state.held.contains(&share) || state.leaving.contains(&share) {
            return None;
        }
        *state.busy.entry(share).or_default() += 1;
        Some(Busy { shares: self.clone(), share })
    }

    /// What the next round gives back.
    pub(super) fn to_give_back(&self) -> Vec<i16> {
        let state = self.state();
        state.leaving.iter().filter(|share| !state.busy.contains_key(share)).copied().collect()
    }

    /// Takes in what a round found. `true`: other shares than before.
    pub(super) fn held(&self, round: SharesHeld, trusted_until: Moment) -> bool {
        let mut state = self.state();
        let held: BTreeSet<i16> = round.shares.into_iter().collect();
        let excess = held.len().saturating_sub(fair_count(round.living));
        state.leaving = held.iter().rev().take(excess).copied().collect();
        state.trusted_until = Some(trusted_until);
        let changed = state.held != held;
        state.held = held;
        changed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.shares.state();
        if let Some(busy) = state.busy.get_mut(&self.share) {
            *busy -= 1;
            if *busy == 0 {
                state.busy.remove(&self.share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    fn round(shares: &[i16], living: usize) -> SharesHeld {
        SharesHeld { shares: shares.to_vec(), living }
    }

    #[test]
    fn a_share_is_worked_at_only_while_its_lease_is_trusted() {
        let manual = ManualClock::new("2026-08-19T00:00:00Z".parse().unwrap());
        let shares = Shares::new(manual.clock());
        assert!(shares.usable().is_empty() && shares.enter(1).is_none());
        let until = manual.now() + Duration::from_secs(4);
        assert!(shares.held(round(&[1, 2], 1), until));
        assert!(!shares.held(round(&[2, 1], 1), until));
        assert_eq!(shares.usable(), [1, 2]);
        assert!(shares.enter(1).is_some() && shares.enter(3).is_none());
        manual.advance(Duration::from_secs(4));
        assert!(shares.usable().is_empty() && shares.enter(1).is_none());
    }

    #[test]
    fn what_is_too_much_is_given_back_once_nothing_of_it_is_under_way() {
        let manual = ManualClock::new("2026-08-19T00:00:00Z".parse().unwrap());
        let shares = Shares::new(manual.clock());
        let until = manual.now() + Duration::from_secs(4);
        let all: Vec<i16> = (0..32).collect();
        shares.held(round(&all, 1), until);
        let busy = shares.enter(31).unwrap();
        shares.held(round(&all, 2), until);
        assert_eq!(shares.usable(), (0..16).collect::<Vec<_>>());
        assert!(shares.enter(31).is_none(), "nothing new begins");
        assert_eq!(shares.to_give_back(), (16..31).collect::<Vec<_>>());
        drop(busy);
        assert!(shares.to_give_back().contains(&31));
        shares.held(round(&all[..17], 2), until);
        assert_eq!(shares.usable().len(), 16);
    }
}
