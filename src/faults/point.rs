//! The places on the way of an operation, and of its event, at which it can be held or ended.

use super::table::Fault;

/// Where an operation can be interrupted, in the order in which a run passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    BeforeClaim,
    /// The claim is won and the run has begun; nothing is read yet.
    AfterClaim,
    BeforeCall,
    /// The provider's answer is whole; nothing is written yet.
    AfterCall,
    BeforeCommit,
    /// Committed; nobody has been told.
    AfterCommit,
    /// A sink has taken an event; nothing of it is written down.
    AfterDelivery,
}

impl Point {
    pub const ALL: [Point; 7] = [
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::BeforeCall,
        Point::AfterCall,
        Point::BeforeCommit,
        Point::AfterCommit,
        Point::AfterDelivery,
    ];

    /// The word in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Point::BeforeClaim => "before_claim",
            Point::AfterClaim => "after_claim",
            Point::BeforeCall => "before_call",
            Point::AfterCall => "after_call",
            Point::BeforeCommit => "before_commit",
            Point::AfterCommit => "after_commit",
            Point::AfterDelivery => "after_delivery",
        }
    }

    /// The fault that holds or ends an operation here.
    pub(super) fn fault(self) -> Fault {
        match self {
            Point::BeforeClaim => Fault::BeforeClaim,
            Point::AfterClaim => Fault::AfterClaim,
            Point::BeforeCall => Fault::BeforeCall,
            Point::AfterCall => Fault::AfterCall,
            Point::BeforeCommit => Fault::BeforeCommit,
            Point::AfterCommit => Fault::AfterCommit,
            Point::AfterDelivery => Fault::AfterDelivery,
        }
    }
}
