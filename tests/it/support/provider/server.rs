//! HTTP/1.1 by hand: only so can a test decide where bytes are cut and how a connection ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::reply::{Action, Chunking, Content, Reply};
use super::wire::{self, Tokens, Wire};
use super::{Charge, End, Request, Script, Shared};

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        shared.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(serve_connection(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

/// How the connection goes on after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Onward {
    Keep,
    Close,
    Reset,
}

async fn serve_connection(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut unread = Vec::new();
    loop {
        let (mut reader, mut writer) = stream.split();
        let Some(request) = read_request(&mut reader, &mut unread).await else { return };
        let (number, plan) = shared.arrived(request);
        let onward = tokio::select! {
            biased;
            onward = perform(&mut writer, plan, &shared) => onward,
            () = client_gone(&mut reader, &mut unread) => None,
        };
        if onward == Some(Onward::Reset) {
            let _ = stream.set_zero_linger();
        }
        let end = if onward.is_some() { End::Answered } else { End::ClientGone };
        if onward != Some(Onward::Keep) {
            // Closed before the end is told, so that whoever waits for it finds it closed.
            drop(stream);
            shared.ended(number, end);
            return;
        }
        shared.ended(number, end);
    }
}

impl Shared {
    /// Keeps the request, wakes who waits for it, and plans its answer.
    fn arrived(&self, mut request: Request) -> (usize, Plan) {
        // One lock over both, so that replies go out in the order of arrival.
        let mut script = self.script.lock().unwrap();
        let number = self.requests.borrow().len() + 1;
        request.number = number;
        let Script { replies, decide, .. } = &mut *script;
        let reply = match (replies.pop_front(), decide) {
            (Some(reply), _) => reply,
            (None, Some(decide)) => decide(&request),
            (None, None) => Reply::normal(),
        };
        let now = (self.now)();
        self.requests.send_modify(|requests| requests.push(request.clone()));
        (number, Plan::new(reply, &request, now.into()))
    }

    fn ended(&self, number: usize, end: End) {
        self.requests.send_modify(|requests| requests[number - 1].end = end);
    }
}

/// What is done for one request, step by step.
struct Plan {
    steps: Vec<Step>,
    charge: Option<Charge>,
}

enum Step {
    Write(Vec<u8>),
    Do(Action),
}

impl Plan {
    fn new(reply: Reply, request: &Request, now: std::time::SystemTime) -> Plan {
        if matches!(reply.content, Content::Raw { .. }) {
            // As it stands, to whoever asks: it may play another server than a model's.
            return Plan::raw(reply, now);
        }
        let Some(wire) = Wire::of_path(&request.path) else {
            let none = Reply::status(404, &[("content-type", "application/json")], "{}");
            return Plan::raw(none, now);
        };
        let model = request.body["model"].as_str().unwrap_or_default();
        let prompt = request.messages();
        let usual = |text: Option<String>, tokens: Option<Tokens>| {
            let last = prompt.last().map_or("", |(_, content)| content.as_str());
            let text = text.unwrap_or_else(|| wire::default_answer(prompt.len(), last));
            let tokens = tokens.unwrap_or_else(|| wire::default_tokens(&prompt, &text));
            (text, tokens)
        };
        let charge = |tokens| Charge { number: request.number, model: model.to_owned(), tokens };
        match &reply.content {
            Content::Raw { .. } => unreachable!("answered above"),
            Content::Events(bytes) => {
                let events = wire::split_events(bytes);
                Plan { steps: streamed(&reply, 0, events), charge: None }
            }
            Content::Answer { text, tokens, stop } => {
                let (text, tokens) = usual(text.clone(), *tokens);
                let events = wire::answer_events(wire, &request.body, &text, tokens, *stop);
                let before = events.head.len();
                let all = [events.head, events.deltas, events.tail].concat();
                let all = all.into_iter().map(String::into_bytes).collect();
                Plan { steps: streamed(&reply, before, all), charge: Some(charge(tokens)) }
            }
            Content::Whole { text, tokens } => {
                let body = wire::whole(wire, &request.body, text, *tokens).to_string();
                let json = [("content-type", "application/json")];
                let mut plan = Plan::raw(Reply::status(200, &json, body), now);
                plan.charge = Some(charge(*tokens));
                plan
            }
        }
    }

    fn raw(reply: Reply, now: std::time::SystemTime) -> Plan {
        let mut steps: Vec<Step> = reply.before_head.into_iter().map(Step::Do).collect();
        let Content::Raw { status, headers, body } = reply.content else { unreachable!() };
        let bytewise = reply.chunking == Chunking::OneByte;
        let framing = match bytewise {
            true => "transfer-encoding: chunked".to_owned(),
            false => format!("content-length: {}", body.len()),
        };
        let mut head = format!("HTTP/1.1 {status} Scripted\r\n{framing}\r\n");
        for (name, value) in headers {
            let value = match value.strip_prefix("@HTTPDATE+") {
                Some(seconds) => {
                    let later = std::time::Duration::from_secs(seconds.parse().unwrap());
                    httpdate::fmt_http_date(now + later)
                }
                None => value,
            };
            head += &format!("{name}: {value}\r\n");
        }
        steps.push(Step::Write((head + "\r\n").into_bytes()));
        let actions = |after| {
            let due = reply.within.iter().filter(move |(deltas, _)| *deltas == after);
            due.map(|(_, action)| Step::Do(action.clone()))
        };
        steps.extend(actions(0));
        if bytewise {
            steps.extend(body.iter().map(|byte| Step::Do(Action::Send(vec![*byte]))));
            steps.push(Step::Do(Action::End));
        } else {
            steps.push(Step::Write(body));
        }
        steps.extend(actions(1));
        Plan { steps, charge: None }
    }
}

/// A stream's steps; `before` events stand in front of the first delta.
fn streamed(reply: &Reply, before: usize, events: Vec<Vec<u8>>) -> Vec<Step> {
    let mut steps: Vec<Step> = reply.before_head.iter().cloned().map(Step::Do).collect();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n";
    steps.push(Step::Write(head.into()));
    if let Chunking::Sizes(sizes) = &reply.chunking {
        let mut rest = events.concat();
        for size in sizes {
            let behind = rest.split_off(*size);
            steps.push(Step::Do(Action::Send(rest)));
            rest = behind;
        }
        steps.push(Step::Do(Action::Send(rest)));
        steps.push(Step::Do(Action::End));
        return steps;
    }
    let actions = |sent: usize| {
        let due = reply
            .within
            .iter()
            .filter(move |(deltas, _)| sent == if *deltas == 0 { 0 } else { before + deltas });
        due.map(|(_, action)| Step::Do(action.clone())).collect::<Vec<Step>>()
    };
    steps.extend(actions(0));
    for (sent, event) in events.into_iter().enumerate() {
        if reply.chunking == Chunking::OneByte {
            steps.extend(event.iter().map(|byte| Step::Do(Action::Send(vec![*byte]))));
        } else {
            steps.push(Step::Do(Action::Send(event)));
        }
        steps.extend(actions(sent + 1));
    }
    steps.push(Step::Do(Action::End));
    steps
}

/// `None` where the client did not take what was written.
async fn perform(writer: &mut WriteHalf<'_>, plan: Plan, shared: &Shared) -> Option<Onward> {
    let mut charge = plan.charge;
    let last = plan.steps.len() - 1;
    for (at, step) in plan.steps.into_iter().enumerate() {
        if at == last {
            // Written down before the client can have all of it, so that a test that has the
            // answer finds it in the ledger.
            shared.script.lock().unwrap().ledger.extend(charge.take());
        }
        match step {
            Step::Write(bytes) => writer.write_all(&bytes).await.ok()?,
            Step::Do(Action::Send(bytes)) if bytes.is_empty() => {}
            Step::Do(Action::Send(bytes)) => {
                let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat();
                writer.write_all(&chunk).await.ok()?;
            }
            Step::Do(Action::Hold(gate)) => gate.pass().await,
            Step::Do(Action::Hang) => std::future::pending().await,
            Step::Do(Action::Reset) => return Some(Onward::Reset),
            Step::Do(Action::Close) => return Some(Onward::Close),
            Step::Do(Action::End) => {
                writer.write_all(b"0\r\n\r\n").await.ok()?;
                return Some(Onward::Keep);
            }
        }
    }
    Some(Onward::Keep)
}

async fn client_gone(reader: &mut ReadHalf<'_>, unread: &mut Vec<u8>) {
    while let Ok(1..) = reader.read_buf(unread).await {}
}

/// The next request of a connection; `None` where the client closed it.
async fn read_request(reader: &mut ReadHalf<'_>, unread: &mut Vec<u8>) -> Option<Request> {
    let head_end = loop {
        if let Some(at) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if reader.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(unread[..head_end].to_vec()).unwrap();
    let mut lines = head.lines();
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: Vec<(String, String)> = lines.filter_map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, value)| value.parse::<usize>().unwrap());
    while unread.len() < head_end + length {
        if reader.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&unread[head_end..head_end + length]).unwrap_or_default();
    unread.drain(..head_end + length);
    Some(Request { number: 0, path, headers, body, end: End::Open })
}
