//! When and how often to send again, as a caller sets it, and what a caller is told of it.

use std::time::Duration;

/// When and how often to send again.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Before each repeat after a broken connection or 502, 503, 504; as many repeats as there are waits.
    /// 1 s and 3 s where nothing is set: what helps at all has helped by then.
    pub waits: Vec<Duration>,
    /// Each wait is longer at random, by up to this share of it (0 to 1).
    pub jitter: f64,
    /// A server that asks for more than this is not waited for.
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            waits: vec![Duration::from_secs(1), Duration::from_secs(3)],
            jitter: 0.2,
            longest_wait: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// Sends once. A 409 is waited out all the same.
    pub fn never() -> Self {
        Self { waits: Vec::new(), ..Self::default() }
    }
}

/// Told before a request is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    pub key: String,
    /// Of the sending that comes, from 2.
    pub attempt: u32,
    pub after: Duration,
    pub why: Why,
}

/// Why a request is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The connection broke.
    Lost,
    /// The server answered with this status.
    Status(u16),
}
