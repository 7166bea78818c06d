//! What a delivery came to, and what a status says about it.

use std::time::Duration;

/// How a sink took an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// It has it, and will not ask again.
    Accepted,
    /// It read this event and does not want it. The sink itself is well, unless it refuses all.
    Refused { why: String },
    /// It did not take it, and whether the sink or the event is the reason cannot be told from this
    /// one: no connection, no answer in time, a server error, a path or credentials that are wrong.
    Failed { why: String },
    /// It asks to be left alone, for so long where it says so.
    Busy { why: String, wait: Option<Duration> },
}

/// What an HTTP status says about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusMeans {
    Accepted,
    Refused,
    Failed,
    Busy,
    /// The endpoint is gone for good, and asks not to be called any more.
    Gone,
}

/// What a status says. `asks_to_wait`: a usable `Retry-After` came with it.
///
/// A redirect is a failure, since it is not followed. So are 401, 403, 404 and 405: they are mostly
/// about the address or the credentials, and where they are about one event, another event that is
/// accepted shows it.
pub fn status_means(status: u16, asks_to_wait: bool) -> StatusMeans {
    match status {
        200..=299 => StatusMeans::Accepted,
        410 => StatusMeans::Gone,
        429 => StatusMeans::Busy,
        503 if asks_to_wait => StatusMeans::Busy,
        401 | 403 | 404 | 405 | 407 | 408 | 421 | 425 | 426 => StatusMeans::Failed,
        400..=499 => StatusMeans::Refused,
        _ => StatusMeans::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_meaning() {
        use StatusMeans::{Accepted, Busy, Failed, Gone, Refused};
        for (status, means) in [
            (200, Accepted),
            (202, Accepted),
            (204, Accepted),
            (301, Failed),
            (307, Failed),
            (400, Refused),
            (401, Failed),
            (403, Failed),
            (404, Failed),
            (408, Failed),
            (409, Refused),
            (410, Gone),
            (413, Refused),
            (415, Refused),
            (422, Refused),
            (425, Failed),
            (429, Busy),
            (500, Failed),
            (502, Failed),
            (503, Failed),
            (504, Failed),
            (600, Failed),
            (0, Failed),
        ] {
            assert_eq!(status_means(status, false), means, "{status}");
        }
        assert_eq!(status_means(503, true), Busy);
        assert_eq!(status_means(500, true), Failed);
    }
}
