//! A deployment in the middle of a stream, and clients that go: streams finish or are told to come
//! again before the process goes, and a run outlives its readers.

use serde_json::json;

use crate::support::events::{names_of, text_of};
use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::provider::{Action, Gate, Reply};
use crate::support::{Events, Pair};

const TEXT: &str = "first second";

/// A streamed run at node A that holds behind its first word, which has been read.
async fn running(only_a: &[(&str, &str)]) -> (Pair, Gate, Events) {
    let pair = Pair::start(&[], only_a).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::text(TEXT).after(1, Action::Hold(gate.clone())));
    let mut stream = pair.at_a.stream(pair.key, CONVERSATION, MESSAGE).await;
    stream.until_text("first ").await;
    (pair, gate, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_in_time_is_told_to_its_end() {
    let (mut pair, gate, mut stream) = running(&[]).await;
    let mut at_b = pair.at_b.stream(pair.key, CONVERSATION, MESSAGE).await;
    at_b.until_text("first ").await;
    pair.a.signal("TERM").await;
    pair.a.until_event("draining", |_| true).await;
    gate.open();
    for reader in [&mut stream, &mut at_b] {
        let rest = reader.rest().await;
        assert_eq!(text_of(&rest), "second");
        assert_eq!(names_of(&rest), ["delta", "completed"]);
    }
    assert_eq!(pair.a.ended().await, Some(0));
    let answer = pair.ask_b().await;
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_is_told_to_come_again() {
    let (mut pair, _never, mut stream) = running(&[("ONCEKEY_LIMITS__DRAIN", "300ms")]).await;
    let mut at_b = pair.at_b.stream(pair.key, CONVERSATION, MESSAGE).await;
    at_b.until_text("first ").await;
    pair.a.signal("TERM").await;
    for reader in [&mut stream, &mut at_b] {
        let rest = reader.rest().await;
        assert_eq!(names_of(&rest), ["failed"]);
        assert_eq!(rest[0].data["error"], "draining");
        assert_eq!(rest[0].data["retryable"], true);
        assert_eq!(rest[0].id.as_deref(), Some("1-3"));
    }
    // The very first repeat runs.
    let again = pair.at_b.stream(pair.key, CONVERSATION, MESSAGE).await.rest().await;
    assert_eq!(names_of(&again), ["started", "delta", "completed"]);
    assert_eq!(pair.a.ended().await, Some(1));
    assert_eq!(pair.fence_and_attempts().await, (2, 1), "a released run is not held against it");
    let answer = pair.ask_b().await;
    assert_eq!(answer.json(), again.last().unwrap().data);
    pair.assert_one_outcome(&answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_at_a_node_that_goes_is_told_to_come_again() {
    let (mut pair, gate, mut stream) = running(&[]).await;
    let mut at_b = pair.at_b.stream(pair.key, CONVERSATION, MESSAGE).await;
    at_b.until_text("first ").await;
    pair.b.signal("TERM").await;
    let rest = at_b.rest().await;
    assert_eq!(names_of(&rest), ["failed"]);
    assert_eq!(
        (&rest[0].data["error"], &rest[0].data["retryable"]),
        (&json!("draining"), &json!(true))
    );
    assert_eq!(pair.b.ended().await, Some(0));
    // It comes back where the run is, with the id it had.
    let mut back = pair.at_a.events(pair.key, at_b.last_id.as_deref()).await;
    gate.open();
    assert_eq!(text_of(&back.rest().await), "second");
    assert_eq!(text_of(&stream.rest().await), "second");
    assert_eq!(pair.provider.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlives_its_readers() {
    let (pair, gate, stream) = running(&[]).await;
    drop(stream);
    for _ in 0..10 {
        // Each attaches, hears what there is, and goes.
        let mut reader = pair.at_a.stream(pair.key, CONVERSATION, MESSAGE).await;
        reader.until_text("first ").await;
    }
    gate.open();
    pair.a.until_event("committed", |_| true).await;
    let told = pair.at_a.stream(pair.key, CONVERSATION, MESSAGE).await.rest().await;
    assert_eq!(text_of(&told), TEXT);
    assert_eq!(pair.provider.count(), 1);
    let answer = pair.ask_b().await;
    assert_eq!(answer.json(), told.last().unwrap().data);
    pair.assert_one_outcome(&answer).await;
    assert_eq!(pair.fence_and_attempts().await, (1, 1));
}
