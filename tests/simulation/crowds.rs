//! Scenes in which many operations come at once, so that their statements travel together, and not all of
//! them come to a good end.

use super::generate::Draft;
use super::history::Command::{
    Age, Answer, Cancel, Erase, Fault, Freeze, Hold, Line, Pause, Release, Send, SendOther, Thaw,
    UntilCalled, UntilHeld,
};
use super::history::{Fault as Meets, Line as Wire, Place, Way};
use super::scenes::tell;

/// Conversations of a crowd, so that most of it does not meet.
const APART: usize = 6;

/// Many arrivals while the database is slow to answer, so that their claims go together: new keys, keys
/// that run or have ended, another question under one of them, conversations that are busy, and another
/// node that wants the same keys and the same conversations.
pub fn a_crowd_claims(draft: &mut Draft) {
    let node = draft.node();
    let other = draft.beside(node);
    let tenant = draft.rng.below(2);
    let ended = draft.operation_in(tenant, 0);
    let runs = draft.operation_in(tenant, 1);
    let crowd: Vec<usize> = (0..APART).map(|talk| draft.operation_in(tenant, talk)).collect();
    let rivals: Vec<usize> = (2..APART).map(|talk| draft.operation_in(tenant, talk)).collect();
    tell(
        draft,
        &[
            Send { operation: ended, node },
            UntilCalled { operation: ended },
            Fault { operation: runs, fault: Meets::Held },
            Send { operation: runs, node },
            UntilCalled { operation: runs },
            Line { node, line: Wire::Pool, way: Way::DelayReplies { ms: 30 } },
            Send { operation: ended, node },
            Send { operation: runs, node },
        ],
    );
    for &operation in &crowd {
        tell(draft, &[Send { operation, node }]);
        if draft.rng.percent(30) {
            tell(draft, &[Send { operation, node: other }, Send { operation, node }]);
        }
    }
    tell(draft, &[SendOther { operation: crowd[0], node }, SendOther { operation: ended, node }]);
    for &operation in &rivals {
        let node = if draft.rng.percent(50) { node } else { other };
        tell(draft, &[Send { operation, node }]);
    }
    tell(
        draft,
        &[
            Pause { ms: 60 },
            Line { node, line: Wire::Pool, way: Way::Pass },
            Answer { operation: runs },
        ],
    );
}

/// Many runs that end at once, so that their commits go together, while some of them are no longer what
/// they were: cancelled, deleted, taken over.
pub fn a_crowd_commits(draft: &mut Draft) {
    let node = draft.node();
    let other = draft.beside(node);
    let tenant = draft.rng.below(2);
    let crowd: Vec<usize> = (0..APART).map(|talk| draft.operation_in(tenant, talk)).collect();
    tell(draft, &[Hold { node, place: Place::BeforeCommit }]);
    for &operation in &crowd {
        tell(draft, &[Send { operation, node }]);
    }
    tell(draft, &[UntilHeld { node }, Pause { ms: 40 }]);
    tell(
        draft,
        &[Cancel { operation: crowd[0], node: other }, Erase { operation: crowd[1], node: other }],
    );
    let overtaken = draft.rng.percent(50);
    if overtaken {
        tell(
            draft,
            &[Freeze { node }, Age, Send { operation: crowd[2], node: other }, Pause { ms: 40 }],
        );
    }
    tell(draft, &[Line { node, line: Wire::Pool, way: Way::DelayReplies { ms: 30 } }]);
    if overtaken {
        draft.push(Thaw { node });
    }
    tell(
        draft,
        &[Release { node }, Pause { ms: 20 }, Line { node, line: Wire::Pool, way: Way::Pass }],
    );
    for &operation in &crowd {
        tell(draft, &[Send { operation, node: other }]);
    }
}
