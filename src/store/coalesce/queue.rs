//! Who waits for the next statement, and who goes in it. No IO and no time: what is decided here can be
//! tried without a database.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// Most of one statement. Measured: sixteen at once cost PostgreSQL a fifth of what they cost one by one,
/// sixty-four hardly less than sixteen, and all of them wait for the last.
pub(super) const MOST: usize = 32;
/// Bytes of one statement, as far as its texts go; a single one may be larger.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// Statements of one kind under way at once, where more wait than one statement takes. Measured at 64
/// clients on two cores: with one lane an operation takes PostgreSQL 0.23 ms of CPU, with two from the start
/// 0.36 ms, since groups are half as large.
pub(super) const LANES: usize = 4;
/// How many of those that wait are looked at for one group: more only where about a thousand cannot go with
/// it, and then each group would look at all of them.
const LOOKED_AT: usize = 1_024;

/// Something that waits.
pub(super) struct Waiting<T> {
    pub what: T,
    /// Of two that are about the same, one goes after the other. Hashes: two different things with one
    /// hash only wait for each other.
    pub about: [Option<u64>; 2],
    pub bytes: usize,
}

/// What became of one that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// A lane was opened for it, which the caller must drive.
    OpensLane,
    /// It goes with a statement of a lane that there is.
    Waits,
    /// It is told what becomes of another one.
    Follows,
}

/// What waits, in the order of arrival, and how many statements are under way.
pub(super) struct Queue<T, S> {
    waiting: VecDeque<Waiting<T>>,
    /// By what they are: those that came while the first one was not decided.
    followers: HashMap<S, Vec<T>>,
    /// Of all that waits.
    bytes: usize,
    lanes: usize,
}

impl<T, S> Default for Queue<T, S> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), followers: HashMap::new(), bytes: 0, lanes: 0 }
    }
}

impl<T, S: Eq + Hash> Queue<T, S> {
    /// Adds one. `same`: what it is, where a second one of it need not be sent at all but follows the first.
    /// Whoever is the first is [`decided`](Self::decided) one day, whatever becomes of it.
    pub fn push(&mut self, one: Waiting<T>, same: Option<S>) -> Pushed {
        match same.map(|same| self.followers.entry(same)) {
            Some(Entry::Occupied(mut first)) => {
                first.get_mut().push(one.what);
                return Pushed::Follows;
            }
            Some(Entry::Vacant(first)) => drop(first.insert(Vec::new())),
            None => {}
        }
        self.bytes = self.bytes.saturating_add(one.bytes);
        self.waiting.push_back(one);
        let many = self.waiting.len() >= MOST || self.bytes > MOST_BYTES;
        let opens = self.lanes == 0 || (many && self.lanes < LANES);
        self.lanes += usize::from(opens);
        if opens { Pushed::OpensLane } else { Pushed::Waits }
    }

    /// The next group, never empty, or `None`: nothing waits, and the lane is closed.
    pub fn next(&mut self) -> Option<Vec<T>> {
        let Some(first) = self.waiting.pop_front() else {
            self.close_lane();
            return None;
        };
        let (mut about, mut bytes) = (HashSet::new(), first.bytes);
        about.extend(first.about.into_iter().flatten());
        let mut group = vec![first.what];
        let mut left = VecDeque::new();
        while group.len() < MOST && group.len() + left.len() < LOOKED_AT {
            let Some(one) = self.waiting.pop_front() else { break };
            let fits = bytes.saturating_add(one.bytes) <= MOST_BYTES;
            if !fits || one.about.into_iter().flatten().any(|it| about.contains(&it)) {
                // Those behind it that are about the same stay behind it.
                about.extend(one.about.into_iter().flatten());
                left.push_back(one);
                continue;
            }
            bytes += one.bytes;
            about.extend(one.about.into_iter().flatten());
            group.push(one.what);
        }
        if group.len() + left.len() == LOOKED_AT && group.len() < MOST {
            // So large a crowd holds nobody else up: the others come first.
            self.waiting.append(&mut left);
        }
        while let Some(one) = left.pop_back() {
            self.waiting.push_front(one);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(group)
    }

    /// The first one has its outcome: those that followed it, who are to be told. Whoever comes now is
    /// a first one again.
    pub fn decided(&mut self, same: &S) -> Vec<T> {
        self.followers.remove(same).unwrap_or_default()
    }

    /// Nothing waits, follows or is under way.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.followers.is_empty() && (self.bytes, self.lanes) == (0, 0)
    }

    /// A lane ended without asking for more.
    pub fn close_lane(&mut self) {
        self.lanes = self.lanes.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(what: usize, about: [Option<u64>; 2], bytes: usize) -> Waiting<usize> {
        Waiting { what, about, bytes }
    }

    fn all(queue: &mut Queue<usize, u64>) -> Vec<Vec<usize>> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn a_lane_opens_for_the_first_and_another_where_more_wait_than_it_takes() {
        let mut queue = Queue::default();
        let push = |queue: &mut Queue<usize, u64>, count: usize| -> usize {
            (0..count)
                .filter(|n| queue.push(one(*n, [None; 2], 1), None) == Pushed::OpensLane)
                .count()
        };
        assert_eq!(push(&mut queue, 4), 1);
        assert_eq!(queue.next(), Some(vec![0, 1, 2, 3]));
        assert_eq!(queue.next(), None);
        // It has closed.
        assert_eq!(push(&mut queue, 1), 1);
        assert_eq!(queue.next(), Some(vec![0]));
        // It drives what comes, up to a full group.
        assert_eq!(push(&mut queue, MOST - 1), 0);
        assert_eq!(push(&mut queue, 1), 1);
        assert_eq!(push(&mut queue, MOST * 10), LANES - 2);
        while queue.next().is_some() {}
        for _ in 1..LANES {
            assert_eq!(queue.next(), None);
        }
        assert_eq!(push(&mut queue, 1), 1);
    }

    #[test]
    fn what_is_about_the_same_goes_one_after_the_other_and_in_order() {
        let mut queue = Queue::default();
        let (key, talk) = (Some(1), Some(2));
        for (what, about) in
            [[key, talk], [key, Some(3)], [Some(4), Some(3)], [Some(5), talk], [Some(6), None]]
                .into_iter()
                .enumerate()
        {
            queue.push(one(what, about, 1), None);
        }
        // The third would fit, but the second, which is about the same, is before it.
        assert_eq!(all(&mut queue), [vec![0, 4], vec![1, 3], vec![2]]);
    }

    #[test]
    fn a_second_of_the_same_follows_until_the_first_is_decided() {
        let mut queue = Queue::default();
        let push = |queue: &mut Queue<usize, u64>, what, same| {
            queue.push(one(what, [None; 2], 1), Some(same))
        };
        assert_eq!(push(&mut queue, 0, 7), Pushed::OpensLane);
        assert_eq!(push(&mut queue, 1, 7), Pushed::Follows);
        assert_eq!(push(&mut queue, 2, 8), Pushed::Waits);
        assert_eq!(all(&mut queue), [vec![0, 2]]);
        // Its statement is under way.
        assert_eq!(push(&mut queue, 3, 7), Pushed::Follows);
        assert_eq!(queue.next(), None);
        assert_eq!((queue.decided(&7), queue.decided(&8)), (vec![1, 3], vec![]));
        assert_eq!(push(&mut queue, 4, 7), Pushed::OpensLane);
        assert_eq!(all(&mut queue), [vec![4]]);
    }

    /// However many are about the same: a group looks at no more than a thousand of them, whoever is behind
    /// them goes before them, and none is lost.
    #[test]
    fn a_crowd_about_the_same_is_not_looked_through_for_each_group() {
        let mut queue = Queue::default();
        for what in 0..LOOKED_AT * 2 {
            queue.push(one(what, [Some(1), None], 1), None);
        }
        let other = LOOKED_AT * 2;
        queue.push(one(other, [None; 2], 1), None);
        let groups = all(&mut queue);
        let gone = groups.iter().position(|group| group.contains(&other));
        assert!(gone.is_some_and(|group| group < 3), "{gone:?}");
        let mut all = groups.concat();
        all.sort_unstable();
        assert_eq!(all, (0..=other).collect::<Vec<_>>());
    }

    #[test]
    fn a_group_has_its_bounds_and_what_is_larger_goes_alone() {
        let mut queue = Queue::default();
        for what in 0..MOST + 3 {
            queue.push(one(what, [None; 2], 1), None);
        }
        let sizes: Vec<usize> = all(&mut queue).iter().map(Vec::len).collect();
        assert_eq!(sizes, [MOST, 3]);
        for what in 0..3 {
            queue.push(one(what, [None; 2], MOST_BYTES + what - 1), None);
        }
        assert_eq!(all(&mut queue), [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn lanes_open_too_where_what_waits_is_large() {
        let mut queue = Queue::default();
        let large = |queue: &mut Queue<usize, u64>| {
            queue.push(one(0, [None; 2], MOST_BYTES * 3 / 4), None) == Pushed::OpensLane
        };
        assert!(large(&mut queue));
        // With the first still waiting, two are more than one statement takes.
        assert!(large(&mut queue));
        assert!(queue.next().is_some() && queue.next().is_some());
        // One is not, however many went before.
        assert!(!large(&mut queue));
        assert_eq!((0..8).filter(|_| large(&mut queue)).count(), LANES - 2);
    }

    /// Whatever comes, each goes once, in groups within their bounds, and two that are about the same
    /// never together and never the wrong way round.
    #[test]
    fn any_arrivals_go_once_and_in_order_where_they_meet() {
        use proptest::prelude::*;
        let about = || proptest::option::of(0..6_u64);
        let arrivals = proptest::collection::vec((about(), about(), 0..MOST_BYTES / 3), 0..120);
        proptest!(|(arrivals in arrivals)| {
            let mut queue = Queue::default();
            for (what, (first, second, bytes)) in arrivals.iter().enumerate() {
                queue.push(one(what, [*first, *second], *bytes), None);
            }
            let groups = all(&mut queue);
            let mut gone: Vec<usize> = groups.concat();
            let abouts = |what: usize| [arrivals[what].0, arrivals[what].1].into_iter().flatten();
            for group in &groups {
                prop_assert!(!group.is_empty() && group.len() <= MOST);
                let bytes: usize = group.iter().map(|what| arrivals[*what].2).sum();
                prop_assert!(bytes <= MOST_BYTES || group.len() == 1);
                let mut seen = HashSet::new();
                for what in group {
                    let own: HashSet<u64> = abouts(*what).collect();
                    prop_assert!(own.iter().all(|it| seen.insert(*it)));
                }
            }
            for subject in 0..6 {
                let met: Vec<usize> =
                    gone.iter().copied().filter(|what| abouts(*what).any(|it| it == subject)).collect();
                prop_assert!(met.is_sorted());
            }
            gone.sort_unstable();
            prop_assert_eq!(gone, (0..arrivals.len()).collect::<Vec<_>>());
        });
    }
}
