//! Whose turn it is: one line per tenant, and a free place goes to the tenant that holds the fewest,
//! of several to the one whose last turn was longest ago. Counting only; nothing here waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::domain::ids::TenantId;

/// Places in use and lines of those who wait for one, each known by a `W`.
pub(super) struct Turns<W> {
    in_use: usize,
    waiting: usize,
    /// Tenants that hold a place or wait for one.
    tenants: HashMap<TenantId, Line<W>>,
    /// Tenants that wait: by places held, then by who had a turn longest ago.
    order: BTreeSet<(usize, u64, TenantId)>,
    /// Counts turns and places in line; never given twice.
    last: u64,
}

struct Line<W> {
    in_use: usize,
    last_turn: u64,
    places: BTreeMap<u64, W>,
}

impl<W> Default for Turns<W> {
    fn default() -> Self {
        let (tenants, order) = (HashMap::new(), BTreeSet::new());
        Self { in_use: 0, waiting: 0, tenants, order, last: 0 }
    }
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self { in_use: 0, last_turn: 0, places: BTreeMap::new() }
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

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A place for this tenant, whoever waits.
    pub(super) fn take(&mut self, tenant: &TenantId) {
        let turn = self.number();
        self.in_use += 1;
        let line = self.tenants.entry(tenant.clone()).or_default();
        line.in_use += 1;
        line.last_turn = turn;
    }

    /// The end of the tenant's line. Returns the number to leave it with.
    pub(super) fn wait(&mut self, tenant: &TenantId, who: W) -> u64 {
        let number = self.number();
        let line = self.tenants.entry(tenant.clone()).or_default();
        line.places.insert(number, who);
        self.waiting += 1;
        self.order.insert((line.in_use, line.last_turn, tenant.clone()));
        number
    }

    /// The next one in line, with a place in use from now on.
    pub(super) fn next(&mut self) -> Option<(TenantId, W)> {
        let (_, _, tenant) = self.order.pop_first()?;
        let turn = self.number();
        let line = self.tenants.get_mut(&tenant)?;
        let (_, who) = line.places.pop_first()?;
        line.in_use += 1;
        line.last_turn = turn;
        self.in_use += 1;
        self.waiting -= 1;
        if !line.places.is_empty() {
            self.order.insert((line.in_use, line.last_turn, tenant.clone()));
        }
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
        let Some(line) = self.tenants.get_mut(tenant) else { return };
        self.order.remove(&(line.in_use, line.last_turn, tenant.clone()));
        change(line);
        if !line.places.is_empty() {
            self.order.insert((line.in_use, line.last_turn, tenant.clone()));
        } else if line.in_use == 0 {
            self.tenants.remove(tenant);
        }
    }
}
