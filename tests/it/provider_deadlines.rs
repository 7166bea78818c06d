//! The three deadlines of a call, on a clock that stands still: real bytes, no real time.

use std::time::Duration;

use oncekey::clock::ManualClock;
use oncekey::domain::failure::{CallFailure, Cause, DeadlineKind, FailureKind, classify};
use oncekey::domain::prompt::Answer;
use oncekey::provider;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::provider::calls::{request, settings};
use crate::support::provider::{
    Action, Chunking, Gate, Reply, ScriptedProvider, Wire, fixture, patiently,
};

const FIRST_BYTE: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(30);
const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
const THINKING: &str = "event: content_block_delta\ndata: {\"type\": \"content_block_delta\", \
    \"index\": 0, \"delta\": {\"type\": \"thinking_delta\", \"thinking\": \"hm\"}}\n\n";

struct Bench {
    server: ScriptedProvider,
    time: ManualClock,
}

/// A call under way, and the pieces of text that came.
struct Running {
    ended: JoinHandle<Result<Answer, CallFailure>>,
    deltas: mpsc::UnboundedReceiver<String>,
}

impl Bench {
    async fn new() -> Bench {
        let time = ManualClock::new("2026-08-19T00:36:57Z".parse().unwrap());
        Bench { server: ScriptedProvider::start().await, time }
    }

    fn call(&self, wire: Wire, reply: Reply) -> Running {
        self.call_within(wire, reply, Duration::from_secs(600))
    }

    fn call_within(&self, wire: Wire, reply: Reply, call_timeout: Duration) -> Running {
        self.server.reply(reply);
        let mut settings = settings(&self.server, wire);
        settings.call_timeout = call_timeout;
        let provider = provider::build(settings, self.time.clock()).unwrap();
        let (sender, deltas) = mpsc::unbounded_channel();
        let ended = tokio::spawn(async move {
            let mut on_delta = |delta: &str| sender.send(delta.to_owned()).unwrap();
            provider.call(&request(), 0, &mut on_delta).await
        });
        Running { ended, deltas }
    }

    /// Moves the time on, once somebody sleeps until then.
    async fn pass(&self, time: Duration) {
        patiently("a sleeper", self.time.until_sleeping_for(time)).await;
        self.time.advance(time);
    }

    /// Lets the server go on by one event, and waits until the call has read it.
    async fn read_one_more(&self, gate: &Gate) {
        let read = self.time.sleeps_begun() + 1;
        gate.open();
        patiently("the event to be read", self.time.until_sleeps_begun(read)).await;
    }
}

impl Running {
    async fn delta(&mut self) -> String {
        patiently("a delta", self.deltas.recv()).await.unwrap()
    }

    async fn deadline(self) -> DeadlineKind {
        let failure = patiently("the call to end", self.ended).await.unwrap().unwrap_err();
        assert_eq!(classify(&failure.facts), FailureKind::Timeout);
        match failure.facts.cause {
            Cause::Deadline { kind, .. } => kind,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn nothing_at_all() {
    let bench = Bench::new().await;
    let call = bench.call(Wire::Anthropic, Reply::hang());
    bench.server.until_requests(1).await;
    bench.pass(FIRST_BYTE).await;
    assert_eq!(call.deadline().await, DeadlineKind::FirstByte);
    bench.server.until_client_gone(1).await;
}

#[tokio::test]
async fn a_head_comments_and_pings_are_no_beginning() {
    let bench = Bench::new().await;
    let gate = Gate::closed();
    let reply = Reply::events(format!(": hello\n\n{PING}"))
        .after(0, Action::Hold(gate.clone()))
        .after(2, Action::Hang);
    let call = bench.call(Wire::Anthropic, reply);
    // For the head, and then for the first byte.
    patiently("the head", bench.time.until_sleeps_begun(2)).await;
    bench.time.advance(Duration::from_secs(50));
    gate.open();
    // For the first event, and for the one behind the ping.
    patiently("the ping", bench.time.until_sleeps_begun(4)).await;
    assert_eq!(bench.time.sleepers(), [Duration::from_secs(10)]);
    bench.time.advance(Duration::from_secs(10));
    assert_eq!(call.deadline().await, DeadlineKind::FirstByte);
}

#[tokio::test]
async fn a_stream_of_pings_ends_though_it_never_falls_silent() {
    let bench = Bench::new().await;
    let pings: Vec<Gate> = (0..4).map(|_| Gate::closed()).collect();
    let prefix = String::from_utf8(fixture("sse/pings_only_prefix.sse")).unwrap();
    let mut reply = Reply::events(format!("{prefix}{}", PING.repeat(4)));
    for (at, gate) in pings.iter().enumerate() {
        reply = reply.after(4 + at, Action::Hold(gate.clone()));
    }
    let call = bench.call(Wire::Anthropic, reply.after(8, Action::Hang));
    // One sleep for the head, one for the first byte, one for each of four events, and the one
    // that is under way when the beginning and three pings have been read.
    patiently("the pings", bench.time.until_sleeps_begun(7)).await;
    pings[0].until_reached(1).await;
    assert_eq!(bench.time.sleeps_begun(), 7);
    for (at, gate) in pings.iter().enumerate() {
        let left = IDLE - Duration::from_secs(5) * u32::try_from(at).unwrap();
        assert_eq!(bench.time.sleepers(), [left], "a ping moved the deadline");
        bench.time.advance(Duration::from_secs(5));
        bench.read_one_more(gate).await;
    }
    bench.pass(Duration::from_secs(10)).await;
    assert_eq!(call.deadline().await, DeadlineKind::Idle);
    bench.server.until_client_gone(1).await;
}

#[tokio::test]
async fn silence_after_some_text() {
    let bench = Bench::new().await;
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let mut call = bench.call(wire, Reply::text("one two").after(1, Action::Hang));
        assert_eq!(call.delta().await, "one ");
        bench.pass(IDLE).await;
        assert_eq!(call.deadline().await, DeadlineKind::Idle);
    }
}

#[tokio::test]
async fn text_and_thinking_move_the_deadline() {
    let bench = Bench::new().await;
    let (thinking, text) = (Gate::closed(), Gate::closed());
    let reply = Reply::text("one two")
        .after(1, Action::Hold(thinking.clone()))
        .after(1, Action::Send(THINKING.into()))
        .after(1, Action::Hold(text.clone()));
    let mut call = bench.call(Wire::Anthropic, reply);
    assert_eq!(call.delta().await, "one ");
    for gate in [&thinking, &text] {
        patiently("the deadline", bench.time.until_sleepers(|left| left == [IDLE])).await;
        gate.until_reached(1).await;
        bench.time.advance(Duration::from_secs(29));
        gate.open();
    }
    assert_eq!(call.delta().await, "two");
    let answer = patiently("the answer", call.ended).await.unwrap().unwrap();
    assert_eq!(answer.text, "one two");
}

#[tokio::test]
async fn a_call_that_goes_on_and_on_ends() {
    let bench = Bench::new().await;
    let gates: Vec<Gate> = (0..2).map(|_| Gate::closed()).collect();
    let reply = Reply::text("one two three")
        .after(1, Action::Hold(gates[0].clone()))
        .after(2, Action::Hold(gates[1].clone()))
        .after(3, Action::Hang);
    let mut call = bench.call_within(Wire::OpenAi, reply, Duration::from_secs(50));
    for gate in &gates {
        call.delta().await;
        bench.time.advance(Duration::from_secs(20));
        gate.open();
    }
    assert_eq!(call.delta().await, "three");
    bench.pass(Duration::from_secs(10)).await;
    assert_eq!(call.deadline().await, DeadlineKind::Absolute);
}

#[tokio::test]
async fn a_refusal_counts_by_its_status_though_its_body_never_ends() {
    let bench = Bench::new().await;
    let reply = Reply::file("529_overloaded.json").after(0, Action::Hang);
    let call = bench.call(Wire::Anthropic, reply);
    bench.pass(IDLE).await;
    let failure = patiently("the call to end", call.ended).await.unwrap().unwrap_err();
    assert_eq!(classify(&failure.facts), FailureKind::Overloaded);
}

#[tokio::test]
async fn an_answer_with_its_end_mark_is_taken_though_the_stream_stays_open() {
    let bench = Bench::new().await;
    // The reason has come; the usage and `[DONE]` never do.
    let call = bench.call(Wire::OpenAi, Reply::text("one two").after(3, Action::Hang));
    bench.pass(IDLE).await;
    let answer = patiently("the answer", call.ended).await.unwrap().unwrap();
    assert_eq!(answer.text, "one two");
}

#[tokio::test]
async fn a_flood_does_not_hide_a_deadline() {
    let bench = Bench::new().await;
    // All of it comes at once, so that there is always something to read; the time passes while
    // it is read.
    bench.server.reply(Reply::text("one two three four").chunking(Chunking::Sizes(Vec::new())));
    let mut settings = settings(&bench.server, Wire::Anthropic);
    settings.call_timeout = Duration::from_secs(25);
    let provider = provider::build(settings, bench.time.clock()).unwrap();
    let mut deltas = 0;
    let mut on_delta = |_: &str| {
        deltas += 1;
        bench.time.advance(Duration::from_secs(10));
    };
    let failure = provider.call(&request(), 0, &mut on_delta).await.unwrap_err();
    let limit = Duration::from_secs(25);
    assert_eq!(failure.facts.cause, Cause::Deadline { kind: DeadlineKind::Absolute, limit });
    assert_eq!(deltas, 3);
}
