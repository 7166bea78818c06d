//! What must hold when a history has come to rest. The list stands in the module's head (`main.rs`);
//! each function here answers for a part of it and returns a line for everything that is wrong.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use uuid::Uuid;

use super::clients::Told;
use super::facts::{Facts, Turn};
use super::history::{Command, Fault, History};
use super::model::request_of;
use super::world::{World, is_erasure, store_of};
use crate::support::provider::{Request, default_tokens};

/// Looks at everything.
pub async fn everything(world: &World) -> Vec<String> {
    let facts = Facts::read(&world.database).await;
    let told = world.clients.told();
    let met = world.model.met();
    let requests = world.model.server.requests();
    let mut wrong = audit(world).await;
    wrong.extend(facts.complaints.iter().map(|what| format!("a wrong step: {what}")));
    for aside in world.clients.aside() {
        let fine = matches!(aside, ("cancel", 200 | 404 | 503) | ("erase", 204 | 404 | 409 | 503));
        wrong.extend((!fine).then(|| format!("answered by {aside:?}")));
    }
    let history = &world.history;
    for told in &told {
        wrong.extend(shape(told));
        wrong.extend(justified(world, told, &met, &facts));
    }
    wrong.extend(at_rest(&facts));
    wrong.extend(one_outcome(world, &facts, &told));
    for turn in facts.turns.iter().filter(|turn| turn.role == "assistant") {
        wrong.extend(prompt(&facts, turn, &requests));
    }
    wrong.extend(money(world, &facts, &requests));
    if history.calm {
        wrong.extend(calm(&facts, &told, &requests));
    }
    wrong
}

/// The invariants of `oncekey audit`.
async fn audit(world: &World) -> Vec<String> {
    let (store, mut wrong) = (store_of(&world.database), Vec::new());
    for invariant in oncekey::store::INVARIANTS {
        for finding in store.broken(invariant, None).await.unwrap() {
            wrong.push(format!("{} is broken: {finding:?}", invariant.name));
        }
    }
    wrong
}

/// Every answer keeps the promises of its status.
fn shape(told: &Told) -> Option<String> {
    let answer = &told.answer;
    let complain = |what: &str| {
        Some(format!("operation {}: {what}: {} {}", told.operation, answer.status, told.text()))
    };
    let Ok(body) = serde_json::from_slice::<Value>(&answer.bytes) else {
        return complain("no JSON");
    };
    if answer.header("x-request-id").is_none() {
        return complain("no X-Request-Id");
    }
    if answer.replayed() != answer.header("x-idempotent-replay").is_some() {
        return complain("one replay header without the other");
    }
    if answer.status == 200 {
        return None;
    }
    let retryable = matches!(answer.status, 409 | 502..=504) && body["error"] != "cancelled";
    if body["status"] != answer.status || body["retryable"] != retryable {
        return complain("the problem contradicts its status");
    }
    let says_when = body["retry_after_ms"].is_u64() && answer.header("retry-after").is_some();
    if (answer.status == 503 || (answer.status == 409 && retryable)) && !says_when {
        return complain("it does not say when to ask again");
    }
    None
}

/// Nobody is told of a failure that did not happen.
fn justified(world: &World, told: &Told, met: &[(usize, Fault)], facts: &Facts) -> Option<String> {
    let (history, operation) = (&world.history, told.operation);
    let answer = &told.answer;
    let code = if answer.status == 200 { String::new() } else { answer.error() };
    let had = |fault: Fault| met.contains(&(operation, fault));
    let any_fault = met.iter().any(|(known, _)| *known == operation);
    let fine = match (answer.status, code.as_str()) {
        (200, _) | (409, "in_progress" | "conversation_busy") => true,
        (503, "wait_timeout") => true,
        (409, "cancelled") => world.was_sent(|command| {
            matches!(command, Command::Cancel { operation: known, .. } if *known == operation)
        }),
        (410, "erased") => world.was_erased(operation),
        (422, "idempotency_key_reuse") => world.other_was_sent(operation),
        (422, "input_rejected") => had(Fault::Rejected),
        (422, "content_filtered") => had(Fault::Filtered),
        (413, "too_large") => had(Fault::TooLarge),
        (422, "gave_up") => {
            let key = (history.tenant(operation), history.key(operation));
            let record = facts.records.get(&key);
            facts.lives.get(&key) != Some(&1)
                || record.is_some_and(|record| record.attempts >= i64::from(history.max_runs))
        }
        (500, "provider_auth") => had(Fault::Unauthorized),
        (500, "internal") => world.was_sent(|command| matches!(command, Command::Panic { .. })),
        (502 | 504, "provider_failed" | "provider_timeout") | (503, "provider_busy") => any_fault,
        (503, "database_unavailable" | "draining" | "run_lost" | "outcome_unknown") => {
            !history.calm
        }
        _ => false,
    };
    let patient = !told.at_rest || matches!(answer.status, 200 | 409 | 410 | 413 | 422 | 500..=504);
    (!fine || !patient).then(|| {
        format!(
            "operation {operation} was told {} {code}, which nothing here is a reason for",
            answer.status
        )
    })
}

/// Nothing is in progress, nothing is held.
fn at_rest(facts: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, record) in &facts.records {
        let settled = record.state == "committed" || record.failure_final == Some(true);
        if !settled {
            wrong.push(format!("{key:?} was answered, and its record is {record:?}"));
        }
    }
    for (conversation, key) in &facts.held {
        wrong.push(format!("{conversation:?} is still held by {key}"));
    }
    wrong
}

/// One commit a key (and one more for each time that it was forgotten), and whoever was told of it
/// was told the same bytes, which are those of the record and say what the turns say.
fn one_outcome(world: &World, facts: &Facts, told: &[Told]) -> Vec<String> {
    let history = &world.history;
    let mut wrong = Vec::new();
    for operation in 0..history.operations.len() {
        let key = (history.tenant(operation), history.key(operation));
        let lives = facts.lives.get(&key).copied().unwrap_or(0);
        let receipts: Vec<_> = facts.receipts.iter().filter(|known| known.key == key).collect();
        if receipts.len() > lives {
            wrong.push(format!("operation {operation} was committed {} times", receipts.len()));
        }
        let of_key = || told.iter().filter(|told| told.operation == operation);
        let finals: BTreeSet<&[u8]> = of_key()
            .filter(|told| told.at_rest && told.answer.replayed())
            .map(|told| &told.answer.bytes[..])
            .collect();
        if finals.len() > 1 {
            wrong.push(format!("operation {operation} is replayed in {} forms", finals.len()));
        }
        let mut by_run: BTreeMap<String, &[u8]> = BTreeMap::new();
        for told in of_key().filter(|told| told.answer.status == 200) {
            wrong.extend(one_answer(world, facts, told));
            let run = told.answer.json()["request_id"].as_str().unwrap_or_default().to_owned();
            let bytes = &told.answer.bytes[..];
            if *by_run.entry(run).or_insert(bytes) != bytes {
                wrong.push(format!("operation {operation}: one run, two answers"));
            }
        }
        if by_run.len() > lives {
            wrong.push(format!("operation {operation} was answered by {} runs", by_run.len()));
        }
    }
    wrong
}

/// A 200 is what was committed for this very request.
fn one_answer(world: &World, facts: &Facts, told: &Told) -> Option<String> {
    let (history, operation) = (&world.history, told.operation);
    let key = (history.tenant(operation), history.key(operation));
    let body = told.answer.json();
    let run = body["request_id"].as_str().and_then(|id| Uuid::parse_str(id).ok());
    let of_run = |role: &str| {
        let mut turns = facts.turns.iter();
        turns.find(|turn| Some(turn.request_id) == run && turn.role == role)
    };
    let paid = facts.receipts.iter().any(|known| known.key == key && Some(known.request_id) == run);
    let (Some(asked), Some(said)) = (of_run("user"), of_run("assistant")) else {
        if paid && world.was_erased(operation) {
            return None;
        }
        return Some(format!("operation {operation} was told 200 by a run without turns: {body}"));
    };
    let replay_of = told.answer.header("x-idempotent-replay");
    let record = facts.records.get(&key).filter(|record| Some(record.request_id) == run);
    let right = asked.content == history.message(operation, told.other)
        && body["message"]["content"] == said.content.as_str()
        && body["turn_id"] == said.turn_id.to_string()
        && replay_of.is_none_or(|id| body["request_id"] == id)
        && paid
        && record.is_none_or(|record| record.response.as_deref() == Some(&*told.text()));
    (!right).then(|| {
        format!("operation {operation} was told {body}, its turns are {asked:?} and {said:?}")
    })
}

/// The answer was given to a prompt that held every turn before it.
fn prompt(facts: &Facts, answer: &Turn, requests: &[Request]) -> Option<String> {
    let place = format!("turn {} of {:?}", answer.seq, answer.conversation);
    let Some(request) = request_of(&answer.content).and_then(|number| requests.get(number - 1))
    else {
        return Some(format!("{place} was answered by nobody: {}", answer.content));
    };
    let before: Vec<(String, String)> = facts
        .turns
        .iter()
        .filter(|turn| turn.conversation == answer.conversation && turn.seq < answer.seq)
        .map(|turn| (turn.role.clone(), turn.content.clone()))
        .collect();
    if answer.based_on_seq != answer.seq - 2 || request.messages() != before {
        return Some(format!(
            "{place} says to be based on turn {}; its prompt was {:?}, and the turns before it are \
             {before:?}",
            answer.based_on_seq,
            request.messages()
        ));
    }
    None
}

/// Every receipt has the tokens that the provider wrote down for the very answer in the turn.
fn money(world: &World, facts: &Facts, requests: &[Request]) -> Vec<String> {
    let ledger = world.model.server.ledger();
    let mut wrong = Vec::new();
    let mut paid = BTreeSet::new();
    for receipt in &facts.receipts {
        let said = facts
            .turns
            .iter()
            .find(|turn| turn.request_id == receipt.request_id && turn.role == "assistant");
        let number = said.and_then(|turn| request_of(&turn.content));
        let charge = ledger.iter().find(|charge| Some(charge.number) == number);
        if said.is_none() && !world.history.calm && world.was_sent(is_erasure) {
            continue;
        }
        let Some((said, charge)) = said.zip(charge) else {
            wrong.push(format!("the provider knows nothing of {receipt:?}"));
            continue;
        };
        let expected = default_tokens(&requests[charge.number - 1].messages(), &said.content);
        let same = charge.tokens == expected
            && receipt.input_tokens == Some(expected.input)
            && receipt.output_tokens == Some(expected.output);
        if !same || !paid.insert(charge.number) {
            wrong.push(format!("{receipt:?} against {charge:?}"));
        }
    }
    if world.history.calm && paid.len() != ledger.len() {
        wrong.push(format!("{} answers are paid for, {} are used", ledger.len(), paid.len()));
    }
    wrong
}

/// Where nothing but clients misbehaves, every operation costs one run and one call.
fn calm(facts: &Facts, told: &[Told], requests: &[Request]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, record) in &facts.records {
        if (record.attempts, record.fence, record.state.as_str()) != (1, 1, "committed") {
            wrong.push(format!("in all calm, {key:?} has {record:?}"));
        }
    }
    let mut calls: BTreeMap<usize, usize> = BTreeMap::new();
    for request in requests {
        let messages = request.messages();
        let operation = messages.last().and_then(|(_, text)| History::operation_of(text));
        *calls.entry(operation.unwrap()).or_default() += 1;
    }
    for (operation, calls) in calls.into_iter().filter(|(_, calls)| *calls != 1) {
        wrong.push(format!("in all calm, operation {operation} cost {calls} calls"));
    }
    let passing = told.iter().filter(|told| told.answer.status >= 500);
    wrong.extend(passing.map(|told| format!("in all calm, {}", told.text())));
    wrong
}
