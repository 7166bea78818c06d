//! How the work is divided among relays: aggregates are hashed into a fixed number of shares.

/// Shares there are; the index `outbox_waiting` and the statements that use it count from 0 up to it, so
/// it never changes. As many relays find work at once.
pub const SHARES: u16 = 32;

/// How many shares one of so many living relays should hold: together they hold all, and none waits
/// for another to die.
pub fn fair_count(living: usize) -> usize {
    usize::from(SHARES).div_ceil(living.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_are_held_and_nobody_holds_many_more() {
        assert_eq!([0, 1, 2, 3, 4].map(fair_count), [32, 32, 16, 11, 8]);
        for living in 1..100 {
            assert!(fair_count(living) * living >= usize::from(SHARES));
            assert!((fair_count(living) - 1) * living < usize::from(SHARES));
        }
    }
}
