//! What leaves the house: an event as others are told of it, what a delivery came to, and what follows
//! from that for the event and for the sink.
//!
//! Two questions are kept apart. Is the *sink* well? While it is not, nothing is the event's fault, and
//! nothing is counted. Is the *event* at fault? Only then are attempts counted, and only they, together
//! with time, make it a dead letter. Nothing here waits or sends.

mod delivery;
mod envelope;
mod health;
mod shares;
mod timing;

use std::fmt;

use chrono::{DateTime, Utc};

pub use delivery::{Delivery, StatusMeans, status_means};
pub use envelope::cloud_event;
pub use health::{Fault, Health, Recovery};
pub use shares::{SHARES, fair_count};
pub use timing::{AfterRefusal, LONGEST_ASKED, LetterRules, after_refusal, backoff, hold};

use super::ids::{EventId, TenantId};

/// A row of the outbox, as far as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub tenant: TenantId,
    pub id: EventId,
    /// `conversation` or `parse`.
    pub aggregate_type: String,
    /// The conversation or the operation. Events of one are delivered in their order.
    pub aggregate_id: String,
    /// `call_completed`.
    pub kind: String,
    /// A JSON object as text.
    pub payload: String,
    pub created_at: DateTime<Utc>,
}

/// What the order of events is kept within: an aggregate of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aggregate {
    tenant: TenantId,
    id: String,
}

impl Aggregate {
    pub fn of(event: &Event) -> Self {
        Self { tenant: event.tenant.clone(), id: event.aggregate_id.clone() }
    }

    /// One text for both names; no name of a tenant holds U+001F.
    pub fn text(&self) -> String {
        format!("{}\u{1f}{}", self.tenant, self.id)
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.id)
    }
}
