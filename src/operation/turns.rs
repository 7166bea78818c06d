//! Whose turn it is: one line per tenant, and a free place goes to the tenant that holds the fewest,
//! of several to the one whose last turn was longest ago. A tenant that is not known here counts as if
//! its last turn had been the one before the latest: it goes before whoever has just had one, and not
//! before those who have waited since. Counting only; nothing here waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::domain::ids::TenantId;

/// Places in use and lines of those who wait for one, each known by a `W`.
pub(super) struct Turns<W> {
    in_use: usize,
    waiting: usize,
    /// Tenants that hold a place or wait for one.
    tenants: HashMap<TenantId, Line<W>>,
    /// Tenants that wait, the next first.
    order: BTreeSet<(Rank, TenantId)>,
    /// Counts places in line; never given twice.
    last_place: u64,
    /// Counts turns.
    last_turn: u64,
}

/// Places held, the number of the last turn, and that of the first place in line.
type Rank = (usize, u64, u64);

struct Line<W> {
    in_use: usize,
    last_turn: u64,
    places: BTreeMap<u64, W>,
}

impl<W> Default for Turns<W> {
    fn default() -> Self {
        let (tenants, order) = (HashMap::new(), BTreeSet::new());
        Self { in_use: 0, waiting: 0, tenants, order, last_place: 0, last_turn: 0 }
    }
}

impl<W> Line<W> {
    /// `None`: nobody waits in it.
    fn rank(&self) -> Option<Rank> {
        let (first, _) = self.places.first_key_value()?;
        Some((self.in_use, self.last_turn, *first))
    }
}

impl<W> Turns<W> {
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn nobody_waits(&self) -> bool {
        self.order.is_empty()
    }

    /// A place for this tenant, whoever waits.
    pub(super) fn take(&mut self, tenant: &TenantId) {
        self.in_use += 1;
        self.last_turn += 1;
        let turn = self.last_turn;
        self.change(tenant, |line| {
            line.in_use += 1;
            line.last_turn = turn;
        });
    }

    /// The end of the tenant's line. Returns the number to leave it with.
    pub(super) fn wait(&mut self, tenant: &TenantId, who: W) -> u64 {
        self.last_place += 1;
        self.waiting += 1;
        let number = self.last_place;
        self.change(tenant, |line| {
            line.places.insert(number, who);
        });
        number
    }

    /// The next one in line, with a place in use from now on.
    pub(super) fn next(&mut self) -> Option<(TenantId, W)> {
        let (_, tenant) = self.order.first()?.clone();
        let mut next = None;
        self.change(&tenant, |line| next = line.places.pop_first());
        let (_, who) = next?;
        self.waiting -= 1;
        self.take(&tenant);
        Some((tenant, who))
    }

    /// A place of this tenant's is free again.
    pub(super) fn give_back(&mut self, tenant: &TenantId) {
        self.in_use -= 1;
        self.change(tenant, |line| line.in_use -= 1);
    }

    /// Leaves the line; whoever had a turn already has left it.
    pub(super) fn leave(&mut self, tenant: &TenantId, number: u64) {
        let mut left = false;
        self.change(tenant, |line| left = line.places.remove(&number).is_some());
        self.waiting -= usize::from(left);
    }

    /// Sends everybody who waits away.
    pub(super) fn dismiss(&mut self) {
        self.order.clear();
        self.waiting = 0;
        self.tenants.retain(|_, line| {
            line.places.clear();
            line.in_use > 0
        });
    }

    /// Whether nothing is held and nobody waits, and nothing of earlier ones is kept.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.in_use == 0 && self.waiting == 0 && self.tenants.is_empty() && self.order.is_empty()
    }

    /// Changes a tenant's line and keeps its place in the order.
    fn change(&mut self, tenant: &TenantId, change: impl FnOnce(&mut Line<W>)) {
        let newcomer = self.last_turn.saturating_sub(1);
        let line = self.tenants.entry(tenant.clone()).or_insert_with(|| Line {
            in_use: 0,
            last_turn: newcomer,
            places: BTreeMap::new(),
        });
        if let Some(rank) = line.rank() {
            self.order.remove(&(rank, tenant.clone()));
        }
        change(line);
        match line.rank() {
            Some(rank) => {
                self.order.insert((rank, tenant.clone()));
            }
            None if line.in_use == 0 => {
                self.tenants.remove(tenant);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One place, and two tenants that each come back as soon as the other has had its turn: a
    /// tenant that waits with many calls gets every third turn all the same.
    #[test]
    fn tenants_that_come_and_go_do_not_pass_one_that_waits() {
        let [one, other, patient] = ["a", "b", "z"].map(TenantId::new);
        let mut turns = Turns::default();
        turns.take(&one);
        turns.wait(&other, ());
        for _ in 0..4 {
            turns.wait(&patient, ());
        }
        let (mut holder, mut served) = (one, Vec::new());
        for _ in 0..9 {
            turns.give_back(&holder);
            let (next, ()) = turns.next().unwrap();
            // Whoever has left asks again once the place is taken.
            if holder != patient {
                turns.wait(&holder, ());
            }
            holder = next.clone();
            served.push(next);
        }
        let turns_of_patient = served.iter().filter(|it| **it == patient).count();
        assert_eq!(turns_of_patient, 3, "{served:?}");
    }

    /// Tenants that nobody has seen before are served in the order in which they came, whatever
    /// their names.
    #[test]
    fn newcomers_are_served_in_the_order_of_their_coming() {
        let mut turns = Turns::default();
        turns.take(&TenantId::new("m"));
        for name in ["z", "a", "k"] {
            turns.wait(&TenantId::new(name), ());
        }
        turns.give_back(&TenantId::new("m"));
        let order: Vec<_> =
            std::iter::from_fn(|| turns.next()).map(|(tenant, ())| tenant).collect();
        assert_eq!(order, ["z", "a", "k"].map(TenantId::new));
    }
}
