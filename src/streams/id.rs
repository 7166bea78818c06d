//! The ids of events: `<fence>-<n>` of a run as it happened, `<fence>-r<n>` of its record.
//!
//! The fence is in them because a takeover writes another text: an id of an older run must never be
//! a place in the newer one's.

use std::fmt;

use crate::domain::ids::Fence;

/// A place in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamId {
    /// Of a run; `n` counts from 1.
    Run { fence: Fence, n: u64 },
    /// Of the record that it left; `n` counts from 1.
    Record { fence: Fence, n: u64 },
}

impl StreamId {
    /// Reads what a client sends as `Last-Event-ID`. `None`: no id that was ever given.
    pub fn parse(text: &str) -> Option<StreamId> {
        let (fence, place) = text.split_once('-')?;
        let fence = Fence(i64::try_from(number(fence)?).ok()?);
        Some(match place.strip_prefix('r') {
            Some(n) => StreamId::Record { fence, n: number(n)? },
            None => StreamId::Run { fence, n: number(place)? },
        })
    }
}

/// Digits alone, without a zero in front: an id is compared, so it has one spelling.
fn number(text: &str) -> Option<u64> {
    let digits = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl fmt::Display for StreamId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamId::Run { fence, n } => write!(out, "{fence}-{n}"),
            StreamId::Record { fence, n } => write!(out, "{fence}-r{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_and_nothing_else_is() {
        for id in [
            StreamId::Run { fence: Fence(1), n: 1 },
            StreamId::Run { fence: Fence(i64::MAX), n: u64::MAX },
            StreamId::Record { fence: Fence(12), n: 3 },
        ] {
            assert_eq!(StreamId::parse(&id.to_string()), Some(id));
        }
        for other in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "1-0",
            "0-1",
            "1-r0",
            "1-r",
            "1-rr1",
            "01-1",
            "1-01",
            "+1-1",
            "1-+1",
            "1 -1",
            "1-1 ",
            "a-1",
            "1--1",
            "99999999999999999999-1",
            "1-99999999999999999999",
        ] {
            assert_eq!(StreamId::parse(other), None, "{other:?}");
        }
    }
}
