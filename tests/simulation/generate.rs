//! From a seed to a history. Half of it is noise: single events in any order. The other half are
//! scenes, events in an order that hurts, with noise between them: what needs five things to go
//! wrong one after the other does not come by chance in a minute.

use super::history::{Command, Fault, History, Line, Operation, Place, Way};
use super::rng::Rng;
use super::scenes;

/// A history in the making.
pub struct Draft {
    pub rng: Rng,
    pub nodes: Vec<i64>,
    pub operations: Vec<Operation>,
    pub commands: Vec<Command>,
    /// What was switched on and must be switched off again: after so many commands.
    undo: Vec<(usize, Command)>,
    calm: bool,
    /// Whether a scene is told with gaps and pauses.
    pub disturbed: bool,
}

const TENANTS: usize = 2;
const CONVERSATIONS: usize = 3;

/// Seeds from here on mean the scenes, each by itself.
const SCENES: u64 = 1_000_000;

/// The history of a seed.
pub fn history(seed: u64) -> History {
    if let Some(number) = seed.checked_sub(SCENES) {
        return scene(usize::try_from(number).unwrap());
    }
    let mut rng = Rng::new(seed);
    let calm = rng.percent(20);
    let nodes = (0..2 + rng.below(2)).map(|_| i64::from(rng.percent(30))).collect();
    let commands = 15 + rng.below(35);
    let max_runs = if rng.percent(20) { 4 } else { 100 };
    let mut draft = Draft { nodes, calm, ..Draft::new(rng) };
    let first_days = draft.nodes.clone();
    while draft.commands.len() < commands {
        draft.step();
    }
    let Draft { operations, commands, .. } = draft;
    History { seed, nodes: first_days, calm, max_runs, operations, commands }
}

/// One scene and nothing else, on three nodes.
pub fn scene(number: usize) -> History {
    let seed = SCENES + number as u64;
    let mut draft = Draft { disturbed: false, nodes: vec![0, 0, 0], ..Draft::new(Rng::new(seed)) };
    scenes::ALL[number](&mut draft);
    let Draft { operations, commands, .. } = draft;
    History { seed, nodes: vec![0, 0, 0], calm: false, max_runs: 100, operations, commands }
}

impl Draft {
    fn new(rng: Rng) -> Self {
        Self {
            rng,
            nodes: Vec::new(),
            operations: Vec::new(),
            commands: Vec::new(),
            undo: Vec::new(),
            calm: false,
            disturbed: true,
        }
    }

    pub fn push(&mut self, command: Command) {
        self.commands.push(command);
        for (left, _) in &mut self.undo {
            *left = left.saturating_sub(1);
        }
        while let Some(due) = self.undo.iter().position(|(left, _)| *left == 0) {
            let (_, command) = self.undo.remove(due);
            self.commands.push(command);
        }
    }

    /// Pushes `command`, and `undo` some commands later, or never: the end undoes everything.
    pub fn push_for_a_while(&mut self, command: Command, undo: Command) {
        self.push(command);
        if self.rng.percent(85) {
            let left = 1 + self.rng.below(8);
            self.undo.push((left, undo));
        }
    }

    pub fn node(&mut self) -> usize {
        self.rng.below(self.nodes.len())
    }

    /// Another node than this one.
    pub fn beside(&mut self, node: usize) -> usize {
        (node + 1 + self.rng.below(self.nodes.len() - 1)) % self.nodes.len()
    }

    pub fn new_operation(&mut self) -> usize {
        let (tenant, conversation) = (self.rng.below(TENANTS), self.rng.below(CONVERSATIONS));
        self.operation_in(tenant, conversation)
    }

    pub fn operation_in(&mut self, tenant: usize, conversation: usize) -> usize {
        let key = self.operations.iter().filter(|known| known.tenant == tenant).count();
        self.operations.push(Operation { tenant, conversation, key });
        self.operations.len() - 1
    }

    /// Another operation of the same conversation.
    pub fn neighbour_of(&mut self, operation: usize) -> usize {
        let Operation { tenant, conversation, .. } = self.operations[operation];
        self.operation_in(tenant, conversation)
    }

    fn known_operation(&mut self) -> usize {
        if self.operations.is_empty() {
            return self.new_operation();
        }
        // Mostly a late one: it may still be running.
        let count = self.operations.len();
        if self.rng.percent(60) {
            count - 1 - self.rng.below(count.min(3))
        } else {
            self.rng.below(count)
        }
    }

    fn step(&mut self) {
        if self.rng.percent(30) {
            let ms = self.rng.below(80) as u64;
            self.push(Command::Pause { ms });
        }
        match self.rng.below(100) {
            0..30 => self.send_new(),
            30..50 => self.send_again(),
            50..55 => {
                let (operation, node) = (self.known_operation(), self.node());
                self.push(Command::SendOther { operation, node });
            }
            55..61 => {
                let operation = self.known_operation();
                self.push(Command::Cut { operation });
            }
            61..67 => {
                let operation = self.known_operation();
                self.push(Command::Answer { operation });
            }
            _ if self.calm => {}
            67..83 => self.disturb(),
            _ => {
                let scene = *self.rng.pick(&scenes::ALL);
                scene(self);
            }
        }
    }

    fn send_new(&mut self) {
        let operation = self.new_operation();
        if self.rng.percent(60) {
            let fault = self.fault();
            self.push(Command::Fault { operation, fault });
            if self.rng.percent(30) {
                let fault = self.fault();
                self.push(Command::Fault { operation, fault });
            }
        }
        let node = self.node();
        self.push(Command::Send { operation, node });
        if self.rng.percent(30) {
            let node = self.node();
            self.push(Command::Send { operation, node });
        }
    }

    fn send_again(&mut self) {
        let (operation, node) = (self.known_operation(), self.node());
        let patient = self.rng.percent(30);
        self.push(match patient {
            true => Command::SendPatiently { operation, node },
            false => Command::Send { operation, node },
        });
    }

    fn fault(&mut self) -> Fault {
        if self.calm {
            return *self.rng.pick(&[Fault::Held, Fault::HeldInside]);
        }
        *self.rng.pick(&[
            Fault::Held,
            Fault::Held,
            Fault::Held,
            Fault::HeldInside,
            Fault::HeldInside,
            Fault::HeldThenReset,
            Fault::Overloaded,
            Fault::Overloaded,
            Fault::RateLimited,
            Fault::ServerError,
            Fault::Reset,
            Fault::Close,
            Fault::CutInside,
            Fault::EndsEarly,
            Fault::ErrorInside,
            Fault::NoChoices,
            Fault::Unauthorized,
            Fault::Rejected,
            Fault::Filtered,
            Fault::TooLarge,
        ])
    }

    fn disturb(&mut self) {
        let node = self.node();
        match self.rng.below(100) {
            0..14 => self.crash(node),
            14..20 => {
                let days = self.next_day(node);
                self.push_for_a_while(Command::Drain { node }, Command::Start { node, days });
            }
            20..30 => self.push_for_a_while(Command::Freeze { node }, Command::Thaw { node }),
            30..48 => self.spoil_a_line(node),
            48..56 => {
                let line = self.line();
                self.push(Command::CutLine { node, line });
            }
            56..64 => {
                let session = self.rng.below(20);
                self.push(Command::Terminate { session });
            }
            64..69 => {
                let session = self.rng.below(20);
                self.push(Command::CrashServer { session });
            }
            69..73 => {
                let down_ms = self.rng.below(600) as u64;
                self.push(Command::RestartServer { down_ms });
            }
            73..78 => {
                let (days, by_hand) = (self.rng.below(2) as i64, self.rng.percent(30));
                self.push(Command::DropDay { days, by_hand });
            }
            78..84 => self.push(Command::Age),
            84..87 => {
                let operation = self.known_operation();
                self.push(Command::Cancel { operation, node });
            }
            87..89 => {
                let operation = self.known_operation();
                self.push(Command::Erase { operation, node });
            }
            89..98 => {
                let place = *self.rng.pick(&Place::ALL);
                self.push_for_a_while(Command::Hold { node, place }, Command::Release { node });
            }
            _ => {
                let place = *self.rng.pick(&Place::ALL);
                self.push(Command::Panic { node, place });
            }
        }
    }

    /// Kills a node, and starts it some commands later.
    pub fn crash(&mut self, node: usize) {
        let days = self.next_day(node);
        self.push_for_a_while(Command::Crash { node }, Command::Start { node, days });
    }

    /// The node's day at its next start: now and then a midnight has passed.
    pub fn next_day(&mut self, node: usize) -> i64 {
        if self.rng.percent(40) {
            self.nodes[node] += 1;
        }
        self.nodes[node]
    }

    pub fn line(&mut self) -> Line {
        *self.rng.pick(&[Line::Pool, Line::Pool, Line::Beats])
    }

    fn spoil_a_line(&mut self, node: usize) {
        let line = self.line();
        let ms = 5 + self.rng.below(60) as u64;
        let way = *self.rng.pick(&[
            Way::Freeze,
            Way::SwallowReplies,
            Way::DelayReplies { ms },
            Way::DelayReplies { ms },
            Way::Refuse,
        ]);
        self.push_for_a_while(
            Command::Line { node, line, way },
            Command::Line { node, line, way: Way::Pass },
        );
    }
}
