//! The sections that are used as they stand in the file, with their defaults: the numbers of the
//! documented example, so that an empty file means the same as that one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{forever, period, size};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// `[idempotency]`: how long a key is remembered, and how long silence means that a run lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Idempotency {
    /// Of records, from completion. 24 h suits phones; servers with a job queue want 7 days.
    #[serde(with = "period")]
    pub retention: Duration,
    /// What becomes of a request without a key.
    pub missing_key: MissingKey,
    /// How long an equal request without a key is the same operation.
    #[serde(with = "period")]
    pub derive_window: Duration,
    /// Between two beats of a node.
    #[serde(with = "period")]
    pub heartbeat: Duration,
    /// How long a run may be silent before an arrival takes it over; at least three beats, so that
    /// one lost and one late do not cost a run.
    #[serde(with = "period")]
    pub stale_after: Duration,
}

/// What becomes of a request without an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingKey {
    /// Its key is derived from who asks what, and when.
    Derive,
    /// It is refused.
    Require,
    /// It runs under a fresh key.
    Pass,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body.
    #[serde(with = "size")]
    pub max_body: u64,
    /// The longest `Prefer: wait`, at most 900 s.
    #[serde(with = "period")]
    pub max_wait: Duration,
    /// How long runs may go on after the signal to stop.
    #[serde(with = "period")]
    pub drain: Duration,
    /// Readers of one operation's stream at this node, at least 1.
    pub max_readers: u32,
}

/// `[retry]`: of provider calls, in the one layer that repeats anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Provider calls in one run, at least 1.
    pub max_attempts: u32,
    /// Ceiling on waiting in one run; fixed first, the attempts follow from it.
    #[serde(with = "period")]
    pub total_wait: Duration,
    /// Since the first claim, over all runs.
    #[serde(with = "period")]
    pub give_up_after: Duration,
    /// Runs of one operation, at least 1.
    pub max_runs: u32,
}

/// `[parse]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parse {
    /// Characters of a chunk, at least 100: below that no speech would stay whole.
    pub chunk_chars: u32,
    /// Chunks of one operation at the provider at once, at least 1.
    pub parallel: u32,
}

/// `[chat]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chat {
    /// Earlier turns in a prompt, at least 1.
    pub max_history_turns: u32,
}

/// `[retention]`: of everything but the records. `None` keeps for ever; receipts always stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    #[serde(with = "forever")]
    pub turns: Option<Duration>,
    #[serde(with = "forever")]
    pub captures: Option<Duration>,
    #[serde(with = "forever")]
    pub provider_calls: Option<Duration>,
    #[serde(with = "forever")]
    pub published_events: Option<Duration>,
}

impl Default for Idempotency {
    fn default() -> Self {
        Idempotency {
            retention: DAY,
            missing_key: MissingKey::Derive,
            derive_window: 10 * SECOND,
            heartbeat: 10 * SECOND,
            stale_after: 60 * SECOND,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_body: 10 << 20,
            max_wait: 900 * SECOND,
            drain: 30 * SECOND,
            max_readers: 1_000,
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Retry { max_attempts: 4, total_wait: 8 * SECOND, give_up_after: 3 * HOUR, max_runs: 6 }
    }
}

impl Default for Parse {
    fn default() -> Self {
        Parse { chunk_chars: 12_000, parallel: 8 }
    }
}

impl Default for Chat {
    fn default() -> Self {
        Chat { max_history_turns: 200 }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            turns: None,
            captures: Some(30 * DAY),
            provider_calls: Some(400 * DAY),
            published_events: Some(7 * DAY),
        }
    }
}
