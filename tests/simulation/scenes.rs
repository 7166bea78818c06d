//! Orders of events that once broke a design, or would break a careless one. Each is told once and
//! disturbed at random: a step may be missing, and other events come between its steps.

use super::crowds::{a_crowd_claims, a_crowd_commits};
use super::generate::Draft;
use super::history::Command::{
    Age, Answer, Cancel, CrashServer, Cut, DropDay, Erase, Fault, Freeze, Hold, Line, Pause,
    Release, Send, SendOther, SendPatiently, Start, Thaw, UntilCalled, UntilHeld, UntilServer,
};
use super::history::{Command, Fault as Meets, Line as Wire, Place, Way};

/// All of them.
pub const ALL: [fn(&mut Draft); 13] = [
    the_sleeper_wakes,
    a_commit_on_the_way,
    the_answer_to_the_commit_is_lost,
    a_forgotten_claim,
    two_sides_of_midnight,
    a_stolen_conversation,
    a_key_that_outlived_its_day,
    a_key_used_twice,
    the_sweep_meets_a_takeover,
    a_conversation_deleted_under_a_run,
    cancelled_on_the_way,
    a_crowd_claims,
    a_crowd_commits,
];

/// Pushes steps, disturbed where the history is.
pub fn tell(draft: &mut Draft, steps: &[Command]) {
    for step in steps {
        if !draft.disturbed || draft.rng.percent(97) {
            draft.push(*step);
        }
        if draft.disturbed && draft.rng.percent(10) {
            let ms = draft.rng.below(60) as u64;
            draft.push(Pause { ms });
        }
    }
}

/// A node sleeps through its lease with an answer on the way, and wakes after the takeover.
fn the_sleeper_wakes(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    tell(
        draft,
        &[
            Fault { operation, fault: Meets::Held },
            Fault { operation, fault: Meets::Held },
            Send { operation, node },
            UntilCalled { operation },
            Freeze { node },
            Age,
            Send { operation, node: other },
            UntilCalled { operation },
            Thaw { node },
            Answer { operation },
            Send { operation, node: other },
        ],
    );
}

/// A commit has left its node and arrives after the operation was taken over, or ended.
fn a_commit_on_the_way(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    let second = *draft.rng.pick(&[Meets::Held, Meets::Rejected, Meets::Overloaded]);
    let held = draft.rng.percent(50);
    tell(
        draft,
        &[
            Hold { node, place: Place::BeforeCommit },
            Send { operation, node },
            UntilHeld { node },
            Line { node, line: Wire::Pool, way: Way::Freeze },
            Release { node },
            Pause { ms: 20 },
            Freeze { node },
            Age,
        ],
    );
    if held {
        draft.push(Fault { operation, fault: second });
    }
    tell(
        draft,
        &[
            Send { operation, node: other },
            UntilCalled { operation },
            Pause { ms: 30 },
            Line { node, line: Wire::Pool, way: Way::Pass },
            Pause { ms: 20 },
            Thaw { node },
            Answer { operation },
            Send { operation, node: other },
        ],
    );
}

/// Committed, and neither node nor client hears of it.
fn the_answer_to_the_commit_is_lost(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    tell(
        draft,
        &[
            Hold { node, place: Place::BeforeCommit },
            Send { operation, node },
            UntilHeld { node },
            Line { node, line: Wire::Pool, way: Way::SwallowReplies },
            Release { node },
            Pause { ms: 30 },
        ],
    );
    let steps = match draft.rng.below(3) {
        0 => [Cut { operation }, Command::CutLine { node, line: Wire::Pool }],
        1 => [Command::Crash { node }, Start { node, days: draft.nodes[node] }],
        _ => [Command::CutLine { node, line: Wire::Pool }, Send { operation, node: other }],
    };
    tell(draft, &steps);
    tell(
        draft,
        &[
            Line { node, line: Wire::Pool, way: Way::Pass },
            Send { operation, node },
            Send { operation, node: other },
        ],
    );
}

/// The server forgets a claim in a crash; the key is claimed again under the same number, while the
/// first holder knows nothing of it.
fn a_forgotten_claim(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    let session = draft.rng.below(20);
    tell(
        draft,
        &[
            Fault { operation, fault: Meets::Held },
            Fault { operation, fault: Meets::Held },
            Line { node, line: Wire::Beats, way: Way::Freeze },
            Send { operation, node },
            UntilCalled { operation },
            CrashServer { session },
            UntilServer,
            Send { operation, node: other },
            Send { operation, node: other },
            UntilCalled { operation },
            Answer { operation },
            Pause { ms: 60 },
            Line { node, line: Wire::Beats, way: Way::Pass },
            Answer { operation },
        ],
    );
}

/// The same request at once on both sides of a day's border.
fn two_sides_of_midnight(draft: &mut Draft) {
    let node = draft.node();
    let other = draft.beside(node);
    if draft.nodes[node] == draft.nodes[other] {
        draft.nodes[other] += 1;
        let days = draft.nodes[other];
        tell(draft, &[Command::Drain { node: other }, Start { node: other, days }]);
    }
    for _ in 0..3 {
        let operation = draft.new_operation();
        tell(
            draft,
            &[
                Send { operation, node },
                Send { operation, node: other },
                Send { operation, node },
                Send { operation, node: other },
            ],
        );
    }
}

/// A run loses its conversation while it is silent, and comes back.
fn a_stolen_conversation(draft: &mut Draft) {
    let operation = draft.new_operation();
    let thief = draft.neighbour_of(operation);
    let node = draft.node();
    let other = draft.beside(node);
    let place = *draft.rng.pick(&[Place::AfterClaim, Place::BeforeCall, Place::BeforeCommit]);
    let frozen = draft.rng.percent(50);
    tell(draft, &[Hold { node, place }, Send { operation, node }, UntilHeld { node }]);
    if frozen {
        tell(draft, &[Freeze { node }]);
    } else {
        tell(draft, &[Line { node, line: Wire::Beats, way: Way::Freeze }]);
    }
    tell(
        draft,
        &[
            Age,
            Send { operation: thief, node: other },
            UntilCalled { operation: thief },
            Thaw { node },
            Release { node },
            Pause { ms: 30 },
            Line { node, line: Wire::Beats, way: Way::Pass },
            Send { operation, node: other },
            Send { operation: thief, node },
        ],
    );
}

/// A day passes, its partition goes, and a key of it comes back.
fn a_key_that_outlived_its_day(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    tell(draft, &[Send { operation, node }, Pause { ms: 60 }]);
    let today = draft.nodes.iter().copied().max().unwrap_or(0);
    for node in 0..draft.nodes.len() {
        if draft.nodes[node] == today && draft.rng.percent(50) {
            continue;
        }
        draft.nodes[node] = today + 1;
        let days = today + 1;
        tell(draft, &[Command::Drain { node }, Start { node, days }]);
    }
    let other = draft.beside(node);
    let by_hand = draft.rng.percent(30);
    tell(
        draft,
        &[
            DropDay { days: today - 1, by_hand },
            DropDay { days: today, by_hand },
            Send { operation, node },
            Send { operation, node: other },
            Send { operation, node: other },
        ],
    );
}

/// A client mints its key by the screen, not by the question.
fn a_key_used_twice(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    let fault = *draft.rng.pick(&[Meets::Held, Meets::Overloaded, Meets::Rejected]);
    tell(
        draft,
        &[
            Fault { operation, fault },
            Send { operation, node },
            SendOther { operation, node: other },
            UntilCalled { operation },
            SendOther { operation, node },
            Answer { operation },
            Send { operation, node: other },
            SendOther { operation, node: other },
        ],
    );
}

/// One node finds a silent run and is slow to end it, while another takes the run over.
fn the_sweep_meets_a_takeover(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    let sweeper = (0..draft.nodes.len()).find(|known| ![node, other].contains(known));
    let held = draft.rng.percent(50);
    let ms = 60 + draft.rng.below(120) as u64;
    tell(
        draft,
        &[
            Fault { operation, fault: Meets::Held },
            Send { operation, node },
            UntilCalled { operation },
            Freeze { node },
        ],
    );
    if held {
        tell(draft, &[Fault { operation, fault: Meets::Held }]);
    }
    let node = sweeper.unwrap_or(other);
    tell(
        draft,
        &[
            Line { node, line: Wire::Pool, way: Way::DelayReplies { ms } },
            Age,
            Pause { ms: 166 + ms },
            Send { operation, node: other },
            UntilCalled { operation },
            Pause { ms: 2 * ms },
            Line { node, line: Wire::Pool, way: Way::Pass },
            Answer { operation },
            Answer { operation },
        ],
    );
}

/// A conversation is deleted while its holder sleeps, and begun anew before it wakes.
fn a_conversation_deleted_under_a_run(draft: &mut Draft) {
    let operation = draft.new_operation();
    let next = draft.neighbour_of(operation);
    let node = draft.node();
    let other = draft.beside(node);
    tell(
        draft,
        &[
            Fault { operation, fault: Meets::Held },
            Send { operation, node },
            UntilCalled { operation },
            Erase { operation, node: other },
            Freeze { node },
            Age,
            Erase { operation, node: other },
            Pause { ms: 30 },
            Send { operation: next, node: other },
            UntilCalled { operation: next },
            Thaw { node },
            Answer { operation },
            Send { operation, node: other },
        ],
    );
}

/// A run is cancelled at another node just when it writes its end.
fn cancelled_on_the_way(draft: &mut Draft) {
    let operation = draft.new_operation();
    let node = draft.node();
    let other = draft.beside(node);
    tell(
        draft,
        &[
            Hold { node, place: Place::BeforeCommit },
            Send { operation, node },
            UntilHeld { node },
            SendPatiently { operation, node: other },
            Cancel { operation, node: other },
            Release { node },
            SendPatiently { operation, node },
            Send { operation, node: other },
        ],
    );
}
