//! How many calls a provider gets at once, and whether it gets any.
//!
//! A provider that asks us to slow down gets one call at a time, and more again with every call that
//! goes well. Three refusals in a row, with nothing going well in between, latch it: it gets no call
//! for a while, then one, and a longer while if that is refused as well. An account without credit
//! closes it until the time that the provider named. All from facts and a time that somebody else
//! read; nothing here waits.

use std::time::Duration;

use super::failure::FailureKind;

/// Refusals in a row that close the latch.
const LATCH_AFTER: u32 = 3;
/// The longest while is so many times the first one.
const LONGEST_LATCH: u32 = 8;

/// The state of one provider. Times are counted from any one moment in the past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    most: usize,
    allowed: usize,
    first_latch: Duration,
    latch: Duration,
    latched_until: Option<Duration>,
    closed_until: Option<Duration>,
    refusals: u32,
    last_refusal: Option<Duration>,
    last_reduced: Option<Duration>,
}

/// Whether a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Open,
    /// Nothing but refusals came back; it opens after this time.
    Latched {
        left: Duration,
    },
    /// The account is out of credit for this time.
    Closed {
        left: Duration,
    },
}

/// What a result changed, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// From so many calls at once to one.
    Reduced {
        from: usize,
    },
    /// As many calls at once as ever.
    Restored {
        to: usize,
    },
    Latched {
        time: Duration,
        refusals: u32,
    },
    Closed {
        time: Duration,
    },
}

/// One call that failed, as far as the provider's state needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub kind: FailureKind,
    /// When the call was sent.
    pub sent: Duration,
    /// What the provider asked for.
    pub retry_after: Option<Duration>,
}

impl Throttle {
    /// `most` calls at once (0 counts as 1); `latch` is the first while without any.
    pub fn new(most: usize, latch: Duration) -> Throttle {
        let most = most.max(1);
        Throttle {
            most,
            allowed: most,
            first_latch: latch,
            latch,
            latched_until: None,
            closed_until: None,
            refusals: 0,
            last_refusal: None,
            last_reduced: None,
        }
    }

    /// How many calls may be under way at once.
    pub fn allowed(&self) -> usize {
        self.allowed
    }

    pub fn door(&self, now: Duration) -> Door {
        let left = |until: Option<Duration>| until?.checked_sub(now).filter(|left| !left.is_zero());
        if let Some(left) = left(self.closed_until) {
            return Door::Closed { left };
        }
        left(self.latched_until).map_or(Door::Open, |left| Door::Latched { left })
    }

    /// A call was answered that was sent at this time. What was sent before the last refusal says
    /// nothing of what the provider takes since. Nor does an answer open what was closed for an account
    /// that ran dry: it may be one of before.
    pub fn answered(&mut self, sent: Duration) -> Option<Turn> {
        if self.last_reduced.is_some_and(|reduced| sent < reduced) {
            return None;
        }
        self.refusals = 0;
        self.latch = self.first_latch;
        self.latched_until = None;
        if self.allowed == self.most {
            return None;
        }
        self.allowed += 1;
        (self.allowed == self.most).then_some(Turn::Restored { to: self.most })
    }

    /// A call failed.
    pub fn failed(&mut self, refusal: &Refusal, now: Duration) -> Option<Turn> {
        match refusal.kind {
            FailureKind::RateLimited => self.refused(refusal, now),
            FailureKind::Overloaded => self.reduce(refusal, now),
            FailureKind::Quota => {
                let reduced = self.reduce(refusal, now);
                let Some(time) = refusal.retry_after else { return reduced };
                self.closed_until = Some(now.saturating_add(time));
                Some(Turn::Closed { time })
            }
            FailureKind::Transient
            | FailureKind::Timeout
            | FailureKind::Auth
            | FailureKind::Config
            | FailureKind::Region
            | FailureKind::Input
            | FailureKind::TooLarge
            | FailureKind::Moderation
            | FailureKind::Truncated
            | FailureKind::Malformed
            | FailureKind::Invalid
            | FailureKind::Empty
            | FailureKind::PasswordRequired
            | FailureKind::Broken
            | FailureKind::Blank
            | FailureKind::NoPages
            | FailureKind::NoTextLayer
            | FailureKind::TooComplex
            | FailureKind::Storage
            | FailureKind::ReadingFailed
            | FailureKind::NoSlot
            | FailureKind::Internal
            | FailureKind::Abandoned
            | FailureKind::Released
            | FailureKind::Cancelled
            | FailureKind::LeaseLost
            | FailureKind::OutcomeUnknown
            | FailureKind::RunLost
            | FailureKind::Database
            | FailureKind::GaveUp => None,
        }
    }

    fn refused(&mut self, refusal: &Refusal, now: Duration) -> Option<Turn> {
        let reduced = self.reduce(refusal, now);
        // Calls that were under way together are refused together: that is one refusal. The next one
        // is that of a call which was sent in the knowledge of it.
        if self.last_refusal.is_some_and(|last| refusal.sent < last) {
            return reduced;
        }
        self.last_refusal = Some(now);
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals < LATCH_AFTER {
            return reduced;
        }
        let longest = self.first_latch.saturating_mul(LONGEST_LATCH);
        let time = refusal.retry_after.map_or(self.latch, |asked| asked.clamp(self.latch, longest));
        self.latch = self.latch.saturating_mul(2).min(longest);
        self.latched_until = Some(now.saturating_add(time));
        Some(Turn::Latched { time, refusals: self.refusals })
    }

    fn reduce(&mut self, refusal: &Refusal, now: Duration) -> Option<Turn> {
        let from = std::mem::replace(&mut self.allowed, 1);
        // A late refusal of a call of before takes nothing from those that were sent since.
        if from > 1 || self.last_reduced.is_none_or(|reduced| refusal.sent >= reduced) {
            self.last_reduced = Some(now);
        }
        (from > 1).then_some(Turn::Reduced { from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Duration {
        SECOND * seconds
    }

    fn refusal(sent: u32) -> Refusal {
        Refusal { kind: FailureKind::RateLimited, sent: at(sent), retry_after: None }
    }

    #[test]
    fn a_refusal_leaves_one_call_at_once_and_answers_bring_the_others_back() {
        let mut throttle = Throttle::new(4, at(8));
        assert_eq!(throttle.failed(&refusal(0), at(1)), Some(Turn::Reduced { from: 4 }));
        assert_eq!((throttle.allowed(), throttle.door(at(1))), (1, Door::Open));
        assert_eq!(throttle.answered(at(1)), None);
        assert_eq!(throttle.answered(at(1)), None);
        assert_eq!(throttle.answered(at(1)), Some(Turn::Restored { to: 4 }));
        assert_eq!(throttle.answered(at(1)), None);
        assert_eq!(throttle.allowed(), 4);
        let overloaded = Refusal { kind: FailureKind::Overloaded, ..refusal(2) };
        assert_eq!(throttle.failed(&overloaded, at(3)), Some(Turn::Reduced { from: 4 }));
        let broken = Refusal { kind: FailureKind::Transient, ..refusal(2) };
        assert_eq!(Throttle::new(4, at(8)).failed(&broken, at(3)), None, "says nothing of load");
    }

    #[test]
    fn three_in_a_row_close_the_latch_each_time_for_longer_and_an_answer_forgets_them() {
        let mut throttle = Throttle::new(4, at(8));
        throttle.failed(&refusal(0), at(1));
        assert_eq!(throttle.failed(&refusal(1), at(2)), None);
        let latched = |time| Some(Turn::Latched { time: at(time), refusals: 3 });
        assert_eq!(throttle.failed(&refusal(2), at(3)), latched(8));
        assert_eq!(throttle.door(at(10)), Door::Latched { left: SECOND });
        assert_eq!(throttle.door(at(11)), Door::Open);
        let again = Some(Turn::Latched { time: at(16), refusals: 4 });
        assert_eq!(throttle.failed(&refusal(11), at(12)), again, "one more is enough now");
        let asked = Refusal { retry_after: Some(at(40)), ..refusal(28) };
        let longer = Some(Turn::Latched { time: at(40), refusals: 5 });
        assert_eq!(throttle.failed(&asked, at(29)), longer, "as long as it asks for");
        throttle.answered(at(29));
        assert_eq!(throttle.door(at(30)), Door::Open);
        let reduced = Some(Turn::Reduced { from: 2 });
        for (sent, told) in [(30, reduced), (31, None), (32, latched(8))] {
            assert_eq!(throttle.failed(&refusal(sent), at(sent + 1)), told);
        }
    }

    #[test]
    fn an_answer_in_between_keeps_it_open() {
        let mut throttle = Throttle::new(1, at(8));
        for time in 0..20 {
            assert_eq!(throttle.failed(&refusal(time), at(time)), None);
            throttle.answered(at(time));
        }
    }

    #[test]
    fn answers_to_calls_of_before_a_refusal_bring_nothing_back() {
        let mut throttle = Throttle::new(64, at(8));
        throttle.failed(&refusal(0), at(2));
        for _ in 0..63 {
            assert_eq!(throttle.answered(at(1)), None);
        }
        assert_eq!(throttle.allowed(), 1);
        throttle.failed(&refusal(3), at(4));
        throttle.answered(at(3));
        throttle.failed(&refusal(5), at(6));
        throttle.answered(at(1));
        assert_eq!(throttle.door(at(7)), Door::Latched { left: SECOND * 7 });
        throttle.answered(at(6));
        assert_eq!((throttle.door(at(7)), throttle.allowed()), (Door::Open, 2));
    }

    #[test]
    fn calls_refused_together_are_one_refusal() {
        let mut throttle = Throttle::new(64, at(8));
        throttle.failed(&refusal(0), at(2));
        for _ in 0..63 {
            assert_eq!(throttle.failed(&refusal(1), at(3)), None);
        }
        assert_eq!(throttle.door(at(3)), Door::Open);
    }

    #[test]
    fn an_account_without_credit_closes_until_the_named_time_and_leaves_the_latch_alone() {
        let quota = |retry_after| Refusal { kind: FailureKind::Quota, sent: at(0), retry_after };
        let mut throttle = Throttle::new(1, at(8));
        for _ in 0..5 {
            assert_eq!(throttle.failed(&quota(None), at(1)), None, "no time was named");
        }
        assert_eq!(throttle.door(at(1)), Door::Open);
        let closed = Some(Turn::Closed { time: at(3600) });
        assert_eq!(throttle.failed(&quota(Some(at(3600))), at(2)), closed);
        assert_eq!(throttle.door(at(3601)), Door::Closed { left: SECOND });
        assert_eq!(throttle.door(at(3602)), Door::Open);
        throttle.answered(at(3));
        assert_eq!(throttle.door(at(3601)), Door::Closed { left: SECOND }, "sent before");
    }

    proptest! {
        #[test]
        fn at_least_one_call_and_never_more_than_most(
            most in 0usize..9, results in prop::collection::vec(0usize..30, 0..200)
        ) {
            let mut throttle = Throttle::new(most, at(8));
            for (time, result) in results.into_iter().enumerate() {
                let time = at(u32::try_from(time).unwrap());
                let before = throttle.allowed();
                match FailureKind::ALL.get(result) {
                    Some(&kind) => {
                        let refusal = Refusal { kind, sent: time, retry_after: None };
                        throttle.failed(&refusal, time);
                        prop_assert!(throttle.allowed() <= before);
                    }
                    None => {
                        throttle.answered(time);
                        prop_assert_eq!(throttle.door(time), Door::Open, "no time was named");
                    }
                }
                prop_assert!((1..=most.max(1)).contains(&throttle.allowed()));
                if let Door::Latched { left } = throttle.door(time) {
                    prop_assert!(left <= at(64));
                }
            }
        }
    }
}
