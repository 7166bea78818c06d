//! When the partition of a day may go. The database's clock says what time it is; what follows from
//! that is decided here.
//!
//! Promised: never a day that is not over, never one that holds a live claim, never one with a
//! completion inside the retention. Days are UTC, so they all have 24 hours.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveTime, SecondsFormat, TimeDelta, Utc};

/// After midnight, before a day counts as over: a claim that began before it may still be on its way
/// into that day's partition. Far more than a statement may take (30 s).
const SETTLING: Duration = Duration::from_secs(300);

/// What a partition holds, as far as it matters for dropping it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Records in progress, whoever owns them: one without an owner is ended by the sweep first.
    pub live_claims: i64,
    /// Of any record, passing failures too: what they count would be forgotten.
    pub newest_completion: Option<DateTime<Utc>>,
}

/// How old a partition must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropRule {
    /// How long an answer can be replayed, from its completion.
    pub retention: Duration,
    /// How long the day must have been over.
    pub older_than: Duration,
}

/// Why a partition stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// Its bounds are not those of one day; whoever made it knows what it is for.
    NotADay,
    Ahead,
    Today,
    TooYoung {
        until: DateTime<Utc>,
    },
    LiveClaims(i64),
    InsideRetention {
        until: DateTime<Utc>,
    },
}

impl DropRule {
    /// The rule of a retention alone.
    pub fn of(retention: Duration) -> Self {
        Self { retention, older_than: retention }
    }

    /// Why a day's partition stays, whatever it holds. `None`: its contents decide.
    pub fn by_age(&self, day: Option<NaiveDate>, now: DateTime<Utc>) -> Option<Stays> {
        let Some(day) = day else { return Some(Stays::NotADay) };
        let today = now.date_naive();
        if day > today {
            return Some(Stays::Ahead);
        }
        if day == today {
            return Some(Stays::Today);
        }
        let until = later(end_of(day), self.older_than.max(SETTLING));
        (now < until).then_some(Stays::TooYoung { until })
    }

    /// For how long a day's partition could have gone, as far as its age is concerned. `None`: it could
    /// not.
    pub fn overdue(&self, day: NaiveDate, now: DateTime<Utc>) -> Option<Duration> {
        match self.by_age(Some(day), now) {
            Some(_) => None,
            None => (now - later(end_of(day), self.older_than.max(SETTLING))).to_std().ok(),
        }
    }

    /// Why a day's partition stays. `None`: it may be dropped.
    pub fn judge(
        &self,
        day: Option<NaiveDate>,
        contents: &Contents,
        now: DateTime<Utc>,
    ) -> Option<Stays> {
        if let Some(stays) = self.by_age(day, now) {
            return Some(stays);
        }
        if contents.live_claims > 0 {
            return Some(Stays::LiveClaims(contents.live_claims));
        }
        let until = later(contents.newest_completion?, self.retention.max(self.older_than));
        (now < until).then_some(Stays::InsideRetention { until })
    }
}

/// The first moment after a day.
fn end_of(day: NaiveDate) -> DateTime<Utc> {
    day.succ_opt().map_or(DateTime::<Utc>::MAX_UTC, |next| next.and_time(NaiveTime::MIN).and_utc())
}

/// A sum beyond the calendar is its end: kept for ever.
fn later(moment: DateTime<Utc>, time: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(time)
        .ok()
        .and_then(|time| moment.checked_add_signed(time))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

impl fmt::Display for Stays {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |until: &DateTime<Utc>| until.to_rfc3339_opts(SecondsFormat::Secs, true);
        match self {
            Stays::NotADay => out.write_str("it is not the partition of one day"),
            Stays::Ahead => out.write_str("its day is yet to come"),
            Stays::Today => out.write_str("it is today's"),
            Stays::TooYoung { until } => write!(out, "it is too young until {}", shown(until)),
            Stays::LiveClaims(1) => out.write_str("1 operation in it runs"),
            Stays::LiveClaims(count) => write!(out, "{count} operations in it run"),
            Stays::InsideRetention { until } => {
                write!(out, "an answer in it is kept until {}", shown(until))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn day(text: &str) -> Option<NaiveDate> {
        Some(text.parse().unwrap())
    }

    fn completed(text: &str) -> Contents {
        Contents { live_claims: 0, newest_completion: Some(at(text)) }
    }

    #[test]
    fn a_day_that_is_not_over_stays() {
        let rule = DropRule { retention: HOUR, older_than: Duration::ZERO };
        let now = at("2026-08-19T00:00:00Z");
        let judge = |day| rule.judge(day, &Contents::default(), now);
        assert_eq!(judge(day("2026-08-20")), Some(Stays::Ahead));
        assert_eq!(judge(day("2026-08-19")), Some(Stays::Today));
        let until = at("2026-08-19T00:05:00Z");
        assert_eq!(judge(day("2026-08-18")), Some(Stays::TooYoung { until }));
        assert_eq!(judge(day("2026-08-17")), None);
        assert_eq!(judge(None), Some(Stays::NotADay));
    }

    #[test]
    fn retention_counts_from_completion_and_not_from_the_day() {
        let rule = DropRule::of(24 * HOUR);
        let judge = |contents, now| rule.judge(day("2026-08-17"), &contents, at(now));
        // The day has been over for 24 h at the start of the 19th; an empty one goes then.
        let until = at("2026-08-19T00:00:00Z");
        let young = judge(Contents::default(), "2026-08-18T23:59:59Z");
        assert_eq!(young, Some(Stays::TooYoung { until }));
        assert_eq!(judge(Contents::default(), "2026-08-19T00:00:00Z"), None);
        // A run of 170 s that began before midnight.
        let long = completed("2026-08-18T00:02:50Z");
        let until = at("2026-08-19T00:02:50Z");
        let inside = judge(long, "2026-08-19T00:02:49Z");
        assert_eq!(inside, Some(Stays::InsideRetention { until }));
        assert_eq!(judge(long, "2026-08-19T00:02:50Z"), None);
    }

    #[test]
    fn a_live_claim_protects_a_day_however_old() {
        let contents = Contents { live_claims: 2, ..completed("2026-01-01T10:00:00Z") };
        let judged =
            DropRule::of(HOUR).judge(day("2026-01-01"), &contents, at("2026-08-19T12:00:00Z"));
        assert_eq!(judged, Some(Stays::LiveClaims(2)));
    }

    #[test]
    fn asking_for_younger_ones_does_not_shorten_the_retention_and_for_older_ones_lengthens_it() {
        let now = at("2026-08-19T12:00:00Z");
        let contents = completed("2026-08-18T13:00:00Z");
        let judge = |rule: DropRule| rule.judge(day("2026-08-18"), &contents, now);
        let younger = DropRule { retention: 24 * HOUR, older_than: HOUR };
        let until = at("2026-08-19T13:00:00Z");
        assert_eq!(judge(younger), Some(Stays::InsideRetention { until }));
        assert_eq!(judge(DropRule { retention: 23 * HOUR, older_than: HOUR }), None);
        let older = DropRule { retention: HOUR, older_than: 72 * HOUR };
        assert!(matches!(judge(older), Some(Stays::TooYoung { .. })));
        let late = completed("2026-08-19T11:00:00Z");
        let judged = older.judge(day("2026-08-01"), &late, now);
        assert!(matches!(judged, Some(Stays::InsideRetention { .. })));
    }

    #[test]
    fn a_day_is_overdue_from_when_it_could_have_gone() {
        let rule = DropRule::of(24 * HOUR);
        let overdue = |text, now| rule.overdue(text, at(now));
        let the_17th = "2026-08-17".parse().unwrap();
        assert_eq!(overdue(the_17th, "2026-08-18T23:59:59Z"), None);
        assert_eq!(overdue(the_17th, "2026-08-19T00:00:00Z"), Some(Duration::ZERO));
        assert_eq!(overdue(the_17th, "2026-08-20T12:00:00Z"), Some(36 * HOUR));
        assert_eq!(overdue(the_17th, "2026-08-17T12:00:00Z"), None);
        assert_eq!(DropRule::of(Duration::MAX).overdue(the_17th, at("2027-01-01T00:00:00Z")), None);
    }

    #[test]
    fn leap_days_and_changes_of_the_hour_are_days_like_others() {
        let rule = DropRule::of(24 * HOUR);
        // 29 February; the days on which New York and Berlin turn their clocks, both ways.
        for (gone, from) in [
            ("2028-02-28", "2028-03-01T00:00:00Z"),
            ("2028-02-29", "2028-03-02T00:00:00Z"),
            ("2027-02-28", "2027-03-02T00:00:00Z"),
            ("2026-03-08", "2026-03-10T00:00:00Z"),
            ("2026-03-29", "2026-03-31T00:00:00Z"),
            ("2026-10-25", "2026-10-27T00:00:00Z"),
            ("2026-11-01", "2026-11-03T00:00:00Z"),
            ("2026-12-31", "2027-01-02T00:00:00Z"),
        ] {
            let before = at(from) - TimeDelta::seconds(1);
            let until = at(from);
            assert_eq!(rule.by_age(day(gone), before), Some(Stays::TooYoung { until }), "{gone}");
            assert_eq!(rule.by_age(day(gone), at(from)), None, "{gone}");
        }
    }

    #[test]
    fn a_retention_beyond_the_calendar_keeps_for_ever() {
        let rule = DropRule::of(Duration::MAX);
        let judged =
            rule.judge(day("2026-01-01"), &Contents::default(), at("2026-08-19T12:00:00Z"));
        assert!(matches!(judged, Some(Stays::TooYoung { .. })));
        let rule = DropRule { retention: Duration::MAX, older_than: HOUR };
        let contents = completed("2026-01-01T10:00:00Z");
        let judged = rule.judge(day("2026-01-01"), &contents, at("2026-08-19T12:00:00Z"));
        assert!(matches!(judged, Some(Stays::InsideRetention { .. })));
    }
}
