//! The model provider of a history: every call of an operation takes the operation's next fault, and
//! with none left a normal answer. An answer names the request that it belongs to, so that a turn
//! tells which prompt it was given to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

use super::history::{Fault, History};
use crate::support::provider::{Action, Gate, Reply, Request, ScriptedProvider};

/// The provider with its script.
pub struct Model {
    pub server: ScriptedProvider,
    script: Arc<Mutex<Script>>,
    calls: watch::Receiver<usize>,
}

#[derive(Default)]
struct Script {
    faults: BTreeMap<usize, VecDeque<Fault>>,
    /// Of held calls, in the order in which they came.
    gates: BTreeMap<usize, VecDeque<Gate>>,
    /// How many calls each operation has made.
    made: BTreeMap<usize, usize>,
    /// How many of them were waited for.
    waited_for: BTreeMap<usize, usize>,
    met: Vec<(usize, Fault)>,
    calm: bool,
}

impl Model {
    pub async fn start() -> Self {
        let server = ScriptedProvider::start().await;
        let script = Arc::new(Mutex::new(Script::default()));
        let (told, calls) = watch::channel(0);
        let its = script.clone();
        server.reply_by(move |request| {
            let reply = its.lock().unwrap().reply(request);
            told.send_modify(|calls| *calls += 1);
            reply
        });
        Self { server, script, calls }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// The operation's next call meets this.
    pub fn fault(&self, operation: usize, fault: Fault) {
        self.script().faults.entry(operation).or_default().push_back(fault);
    }

    /// Lets the operation's oldest held call go on.
    pub fn answer(&self, operation: usize) {
        let gate = self.script().gates.get_mut(&operation).and_then(VecDeque::pop_front);
        if let Some(gate) = gate {
            gate.open();
        }
    }

    /// Waits until the operation has made one more call than was waited for before.
    pub async fn called(&self, operation: usize) {
        let wanted = {
            let mut script = self.script();
            let waited_for = script.waited_for.entry(operation).or_default();
            *waited_for += 1;
            *waited_for
        };
        let mut calls = self.calls.clone();
        let made = || self.script().made.get(&operation).copied().unwrap_or(0);
        while made() < wanted && calls.changed().await.is_ok() {}
    }

    /// From now on every call gets a normal answer, held ones too.
    pub fn behave(&self) {
        let mut script = self.script();
        script.calm = true;
        script.faults.clear();
        std::mem::take(&mut script.gates).into_values().flatten().for_each(|gate| gate.open());
    }

    /// Every fault that a call met, with its operation.
    pub fn met(&self) -> Vec<(usize, Fault)> {
        self.script().met.clone()
    }
}

impl Script {
    fn reply(&mut self, request: &Request) -> Reply {
        let prompt = request.messages();
        let last = prompt.last().map_or("", |(_, content)| content.as_str());
        let text = answer_text(request.number, prompt.len(), last);
        let Some(operation) = History::operation_of(last) else { return Reply::text(&text) };
        *self.made.entry(operation).or_default() += 1;
        let fault = self.faults.get_mut(&operation).and_then(VecDeque::pop_front);
        let Some(fault) = fault.filter(|_| !self.calm) else { return Reply::text(&text) };
        self.met.push((operation, fault));
        let mut gate = || {
            let gate = Gate::closed();
            self.gates.entry(operation).or_default().push_back(gate.clone());
            gate
        };
        let answer = Reply::text(&text);
        match fault {
            Fault::Held => answer.before_head(Action::Hold(gate())),
            Fault::HeldInside => answer.after(2, Action::Hold(gate())),
            Fault::HeldThenReset => {
                answer.before_head(Action::Hold(gate())).before_head(Action::Reset)
            }
            Fault::Overloaded => Reply::file("529_overloaded.json"),
            Fault::RateLimited => Reply::status(
                429,
                &[("content-type", "application/json"), ("retry-after-ms", "150")],
                r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}"#,
            ),
            Fault::ServerError => {
                Reply::status(500, &[("content-type", "text/html")], "<html>oh</html>")
            }
            Fault::Reset => Reply::reset(),
            Fault::Close => Reply::close(),
            Fault::CutInside => answer.after(2, Action::Reset),
            Fault::EndsEarly => answer.after(2, Action::End),
            Fault::ErrorInside => Reply::events_file("error_after_partial.sse"),
            Fault::NoChoices => Reply::file("200_empty_choices.json"),
            Fault::Unauthorized => Reply::file("401_auth.json"),
            Fault::Rejected => Reply::status(
                400,
                &[("content-type", "application/json")],
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#,
            ),
            Fault::Filtered => Reply::events_file("refusal_empty.sse"),
            Fault::TooLarge => Reply::file("413_edge.json"),
        }
    }
}

fn answer_text(number: usize, messages: usize, last: &str) -> String {
    format!("answer {number} to a prompt of {messages} messages: {last}")
}

/// The request that an answer was given to.
pub fn request_of(answer: &str) -> Option<usize> {
    answer.strip_prefix("answer ")?.split(' ').next()?.parse().ok()
}
