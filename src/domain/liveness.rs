//! Whether a run still has a living owner, decided on the database's own clock and nothing else.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// What the database knows of a record's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Registered,
    Dead,
    /// Not in `nodes`: that table is emptied by a crash, and dead nodes are cleared away in time.
    Unknown,
}

impl Owner {
    /// From the owner's row in `nodes`, where there is one, and its `dead_at`.
    pub fn of(node_id: Option<i64>, dead_at: Option<DateTime<Utc>>) -> Self {
        match (node_id, dead_at) {
            (None, _) => Owner::Unknown,
            (Some(_), None) => Owner::Registered,
            (Some(_), Some(_)) => Owner::Dead,
        }
    }
}

/// Facts of one look, all of the database's clock.
#[derive(Debug, Clone, Copy)]
pub struct LivenessFacts {
    pub now: DateTime<Utc>,
    pub heartbeat_at: DateTime<Utc>,
    pub owner: Owner,
    /// When this incarnation of the database was first seen; absent right after a start, a crash
    /// recovery or a promotion.
    pub epoch: Option<DateTime<Utc>>,
}

/// The configured times.
#[derive(Debug, Clone, Copy)]
pub struct LivenessRules {
    pub stale_after: Duration,
    /// A beat and a margin: how old an incarnation must be before silence, free locks and unknown
    /// owners say anything. By then every living node has registered and beaten again.
    pub grace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    /// No beat for `stale_after`.
    Silent,
    /// Its node is dead, or unknown to this incarnation of the database.
    OwnerGone,
}

impl LivenessRules {
    /// Whether this incarnation has been up long enough for its silence to mean something.
    pub fn silence_counts(&self, now: DateTime<Utc>, epoch: Option<DateTime<Utc>>) -> bool {
        epoch.is_some_and(|first_seen| age(now, first_seen) >= self.grace)
    }

    /// Judges a record that is in progress.
    pub fn judge(&self, facts: &LivenessFacts) -> Liveness {
        let counts = self.silence_counts(facts.now, facts.epoch);
        match facts.owner {
            // Written by a detector that looked at the epoch itself, and for ever.
            Owner::Dead => Liveness::OwnerGone,
            Owner::Unknown if counts => Liveness::OwnerGone,
            Owner::Unknown | Owner::Registered => {
                if counts && age(facts.now, facts.heartbeat_at) > self.stale_after {
                    Liveness::Silent
                } else {
                    Liveness::Alive
                }
            }
        }
    }
}

/// Zero where the database's clock was stepped back.
fn age(now: DateTime<Utc>, then: DateTime<Utc>) -> Duration {
    (now - then).to_std().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    const RULES: LivenessRules =
        LivenessRules { stale_after: Duration::from_secs(60), grace: Duration::from_secs(12) };

    fn judge(silent_s: i64, owner: Owner, epoch_s: Option<i64>) -> Liveness {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        RULES.judge(&LivenessFacts {
            now,
            heartbeat_at: now - TimeDelta::seconds(silent_s),
            owner,
            epoch: epoch_s.map(|seconds| now - TimeDelta::seconds(seconds)),
        })
    }

    #[test]
    fn the_table() {
        use Liveness::{Alive, OwnerGone, Silent};
        use Owner::{Dead, Registered, Unknown};
        for (silent_s, owner, epoch_s, expected) in [
            (9, Registered, Some(3_600), Alive),
            (60, Registered, Some(3_600), Alive),
            (61, Registered, Some(3_600), Silent),
            (1, Dead, Some(3_600), OwnerGone),
            (1, Unknown, Some(3_600), OwnerGone),
            // Right after the database came back everything looks dead; nothing may be believed.
            (7_200, Registered, Some(11), Alive),
            (7_200, Unknown, Some(11), Alive),
            (7_200, Registered, None, Alive),
            (7_200, Unknown, None, Alive),
            (7_200, Registered, Some(12), Silent),
            (7_200, Unknown, Some(12), OwnerGone),
            // A clock stepped back makes no run old.
            (-120, Registered, Some(3_600), Alive),
        ] {
            assert_eq!(
                judge(silent_s, owner, epoch_s),
                expected,
                "{silent_s} {owner:?} {epoch_s:?}"
            );
        }
    }
}
