//! A provider's stream that breaks: before anybody has text of it the call is made again, afterwards
//! the reader is told and the same key runs anew; never are two calls one text.

use std::time::Duration;

use uuid::Uuid;

use crate::provider_wire::crlf_chunks;
use crate::support::events::{names_of, text_of};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Chunking, Gate, Reply, ScriptedProvider, fixture};
use crate::support::{Client, Events, TestDatabase};

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    client: Client,
    key: Uuid,
}

impl Scene {
    async fn start(options: NodeOptions) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, options).await;
        let client = node.client("t1").await;
        Self { database, provider, node, client, key: Uuid::new_v4() }
    }

    async fn stream(&self) -> Events {
        self.client.stream(self.key, "c1", "hello").await
    }

    async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_before_any_text_is_called_again_inside() {
    for broken in ["error_first_event.sse", "eof_reasoning_only.sse"] {
        let scene = Scene::start(NodeOptions::default()).await;
        scene.provider.reply(Reply::events_file(broken));
        let events = scene.stream().await.rest().await;
        assert_eq!(names_of(&events), ["started", "delta", "completed"], "{broken}");
        assert_eq!(text_of(&events), "Answer to message 1: hello");
        assert_eq!(scene.provider.count(), 2);
        assert_eq!(scene.database.outcomes().await, (1, 1, 1));
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_behind_text_that_was_read_ends_the_run() {
    for broken in ["error_after_partial.sse", "eof_no_stop.sse"] {
        let scene = Scene::start(NodeOptions::default()).await;
        // Held behind its first piece of text until a reader has that.
        let gate = Gate::closed();
        scene.provider.reply(Reply::events_file(broken).after(3, Action::Hold(gate.clone())));
        let mut stream = scene.stream().await;
        let mut events = vec![stream.event().await, stream.event().await];
        assert!(!events[1].text().is_empty());
        gate.open();
        events.extend(stream.rest().await);
        assert_eq!(names_of(&events), ["started", "delta", "failed"], "{broken}");
        let failed = events.last().unwrap();
        assert_eq!(failed.data["retryable"], true);
        assert!(failed.id.as_deref().unwrap().starts_with("1-"));
        assert_eq!(scene.provider.count(), 1);
        assert_eq!(scene.database.outcomes().await, (0, 0, 0));

        // The same key runs again; what the reader had is no part of it.
        let last_id = stream.last_id.clone().unwrap();
        let request = scene.client.stream_request(scene.key, "c1", "hello");
        let again = Events::open(request.header("last-event-id", last_id)).await.rest().await;
        assert_eq!(names_of(&again), ["restarted", "started", "delta", "completed"]);
        assert!(again[1].id.as_deref().unwrap().starts_with("2-"));
        assert_eq!(text_of(&again), "Answer to message 1: hello");
        assert_eq!(scene.provider.count(), 2);
        assert_eq!(scene.database.outcomes().await, (1, 1, 1));
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_nobody_read_is_no_hindrance() {
    for broken in ["error_after_partial.sse", "eof_no_stop.sse"] {
        let scene = Scene::start(NodeOptions::default()).await;
        scene.provider.reply(Reply::events_file(broken));
        let (again, client, key) = (Gate::closed(), scene.client.clone(), scene.key);
        scene.provider.reply(Reply::text("whole").before_head(Action::Hold(again.clone())));
        let plain = tokio::spawn(async move { client.chat(key, "c1", "hello").await });
        // Who joins after the first call failed sees nothing of it.
        again.until_reached(1).await;
        let mut stream = scene.stream().await;
        let mut events = vec![stream.event().await];
        again.open();
        events.extend(stream.rest().await);
        assert_eq!(names_of(&events), ["started", "delta", "completed"]);
        assert_eq!(text_of(&events), "whole");
        assert_eq!(plain.await.unwrap().content(), "whole");
        assert_eq!(scene.provider.count(), 2);
        assert_eq!(scene.database.outcomes().await, (1, 1, 1));
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_cut_in_two_reach_readers_whole() {
    let text = "naïve café 北京 🫖";
    for chunking in [crlf_chunks(), Chunking::OneByte, Chunking::Events] {
        let scene = Scene::start(NodeOptions::default()).await;
        scene.provider.reply(Reply::events_file("crlf_nospace.sse").chunking(chunking));
        let events = scene.stream().await.rest().await;
        assert_eq!(text_of(&events), text);
        assert_eq!(scene.client.chat(scene.key, "c1", "hello").await.content(), text);
        assert_eq!(scene.provider.count(), 1);
        assert_eq!(scene.database.outcomes().await, (1, 1, 1));
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_totals_of_usage_are_not_added_up() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply(Reply::events_file("usage_cumulative_two_deltas.sse"));
    let events = scene.stream().await.rest().await;
    let usage = &events.last().unwrap().data["usage"];
    assert_eq!((&usage["input_tokens"], &usage["cache_read_tokens"]), (&27.into(), &100.into()));
    assert_eq!((&usage["cache_write_tokens"], &usage["output_tokens"]), (&40.into(), &15.into()));
    assert_eq!(scene.database.count("select output_tokens from usage_receipts").await, 15);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_only_pings_is_ended() {
    let brief = NodeOptions::default()
        .set("ONCEKEY_PROVIDERS__MAIN__IDLE_TIMEOUT", "150ms")
        .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1");
    let scene = Scene::start(brief).await;
    let ping = b"event: ping\ndata: {\"type\":\"ping\"}\n\n".repeat(3);
    let prefix = Reply::events_file("pings_only_prefix.sse");
    let never = prefix.after(1, Action::Send(ping)).after(2, Action::Hang);
    scene.provider.reply(never);
    let events =
        tokio::time::timeout(Duration::from_secs(30), async { scene.stream().await.rest().await })
            .await
            .expect("pings do not keep it alive");
    let failed = events.last().unwrap();
    assert_eq!(failed.name, "failed");
    assert_eq!((&failed.data["status"], &failed.data["retryable"]), (&504.into(), &true.into()));
    assert_eq!(scene.database.outcomes().await, (0, 0, 0));
    let again = scene.stream().await.rest().await;
    assert_eq!(names_of(&again), ["started", "delta", "completed"]);
    assert_eq!(scene.database.outcomes().await, (1, 1, 1));
    scene.end().await;
}

/// Reads a run whose first answer is not accepted, from before its first word.
async fn held_back(options: NodeOptions, refused: Reply, second: &str) {
    let scene = Scene::start(options).await;
    let (said, gate) = (Gate::closed(), Gate::closed());
    scene.provider.reply(refused.after(1, Action::Hold(said.clone())));
    scene.provider.reply(Reply::text(second).before_head(Action::Hold(gate.clone())));
    let mut stream = scene.stream().await;
    let mut events = vec![stream.event().await];
    // Text is there, and a reader that would take it; the next call shows that it did not get it.
    said.until_reached(1).await;
    said.open();
    gate.until_reached(1).await;
    gate.open();
    events.extend(stream.rest().await);
    assert_eq!(names_of(&events), ["started", "delta", "completed"]);
    assert_eq!(text_of(&events), second);
    assert_eq!(scene.provider.count(), 2);
    assert_eq!(scene.client.chat(scene.key, "c1", "hello").await.content(), second);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rule_may_refuse_is_not_read_before_it_was_accepted() {
    let ruled = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__MAX_CHARS", "12");
    held_back(ruled, Reply::text("much too long an answer"), "short enough").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_filter_may_stop_is_not_read_where_another_model_is_asked_next() {
    let tiered = NodeOptions::default()
        .set("ONCEKEY_MODELS__DEFAULT__TIERS", "[\"second\"]")
        .set("ONCEKEY_MODELS__SECOND__PROVIDER", "main")
        .set("ONCEKEY_MODELS__SECOND__UPSTREAM", "fake-model-2");
    let deltas = String::from_utf8(fixture("sse/anthropic_ok.sse")).unwrap();
    let filtered = deltas.replace("end_turn", "refusal");
    assert_ne!(filtered, deltas);
    held_back(tiered, Reply::events(filtered), "said otherwise").await;
}

/// The stream of the last run said "come again", and whoever came gave the operation up: within the
/// time that the stream is kept, too, everybody hears that.
#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_is_told_over_the_stream_of_a_run_that_left_none() {
    let options = NodeOptions::default()
        .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1")
        .set("ONCEKEY_RETRY__MAX_RUNS", "1");
    let scene = Scene::start(options).await;
    scene.provider.reply(Reply::file("529_overloaded.json"));
    let passing = scene.stream().await.rest().await;
    assert_eq!(names_of(&passing), ["started", "failed"]);
    assert_eq!(passing[1].data["retryable"], true);
    let last_id = passing[1].id.clone().unwrap();
    // Until then there is nothing else to tell.
    assert_eq!(scene.client.events(scene.key, None).await.rest().await, passing);
    scene.client.assert_over(scene.key, Some(&last_id)).await;

    let gave_up = scene.stream().await.rest().await;
    assert_eq!(names_of(&gave_up), ["failed"]);
    let problem = &gave_up[0].data;
    assert_eq!((&problem["error"], &problem["retryable"]), (&"gave_up".into(), &false.into()));
    assert_eq!(&scene.client.chat(scene.key, "c1", "hello").await.json(), problem);
    assert_eq!(scene.stream().await.rest().await, gave_up);
    assert_eq!(scene.client.events(scene.key, None).await.rest().await, gave_up);
    let behind = scene.client.events(scene.key, Some(&last_id)).await.rest().await;
    assert_eq!(names_of(&behind), ["restarted", "failed"]);
    assert_eq!(behind[1], gave_up[0]);
    assert_eq!(scene.provider.count(), 1);
    scene.end().await;
}
