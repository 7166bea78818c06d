//! The log: whatever an arrival does can be found under its id and its tenant, and nothing that an end
//! user wrote or read, nor any credential, is ever in it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::Pair;
use crate::support::node::new_key;
use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply};

/// What a node says of itself and of no arrival.
const OF_THE_NODE: &[&str] = &[
    "listening",
    "node_registered",
    "node_dead",
    "node_session_lost",
    "node_replaced",
    "partitions_made",
    "partition_kept",
    "partition_dropped",
    "partition_detached",
    "partition_waits",
    "keys_cleared",
    "refused_inputs_forgotten",
    "chunks_forgotten",
    "price_booked",
    "draining",
    "group_split",
    "faults_on",
    "connection_broken",
    "connections_closed",
];

/// Every line of the product's own names its event, and every line of an arrival says whose it is, at
/// the top. The events that were seen.
fn assert_lines_are_whole(node: &ProcessNode) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for text in node.raw_log() {
        let line: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        if !is_ours(&line) {
            continue;
        }
        assert_eq!(line["request_id"].is_string(), line["tenant_id"].is_string(), "{line}");
        let event = line["event"].as_str().unwrap_or_else(|| panic!("no event: {line}"));
        assert!(
            line["request_id"].is_string() || OF_THE_NODE.contains(&event),
            "whose is this? {line}"
        );
        seen.insert(event.to_owned());
    }
    seen
}

/// Other people's crates log as well, where they are asked to.
fn is_ours(line: &Value) -> bool {
    line["target"].as_str().unwrap().starts_with("oncekey")
}

/// The lines of one arrival, from the first to the last.
fn events_of(node: &ProcessNode, request_id: &str) -> Vec<String> {
    let of = |line: &Value| line["request_id"] == request_id && is_ours(line);
    let name = |line: Value| line["event"].as_str().unwrap_or_default().to_owned();
    node.log().into_iter().filter(of).map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_of_an_arrival_says_whose_it_is() {
    let level = ("ONCEKEY_LOG_LEVEL", "debug");
    let beat = ("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "200ms");
    let pair = Pair::start(&[level, beat, ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "2h")], &[]).await;
    // A run with a repeated call, one that fails for good, and one that fails in passing.
    let overloaded = Reply::status(529, &[("retry-after", "0")], "{}");
    pair.provider.reply(overloaded.clone());
    let committed = pair.at_a.chat(Uuid::new_v4(), CONVERSATION, MESSAGE).await;
    assert_eq!(committed.status, 200);
    let run = committed.header("x-request-id").unwrap();
    let expected = [
        "claimed",
        "provider_call_started",
        "provider_call_ended",
        "slots_reduced",
        "retrying",
        "provider_call_started",
        "provider_call_ended",
        "committed",
    ];
    assert_eq!(events_of(&pair.a, run), expected);
    let invalid =
        r#"{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}"#;
    pair.provider.reply(Reply::status(400, &[("content-type", "application/json")], invalid));
    let refused = pair.at_a.chat(Uuid::new_v4(), CONVERSATION, MESSAGE).await;
    assert_eq!(refused.status, 422);
    pair.provider.reply_times(9, &Reply::status(529, &[("retry-after", "900")], "{}"));
    let busy = pair.at_a.chat(Uuid::new_v4(), CONVERSATION, MESSAGE).await;
    assert_eq!(busy.status, 503);
    while pair.provider.unused() > 0 {
        pair.at_a.chat(Uuid::new_v4(), CONVERSATION, MESSAGE).await;
    }

    // A run that is taken over from a frozen node, which is fenced off when it wakes.
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate)));
    let asked = pair.ask_a();
    let calls = pair.provider.count() + 1;
    pair.provider.until_requests(calls).await;
    pair.a.signal("STOP").await;
    pair.database.age_heartbeats().await;
    let taken = pair.answer_of_b().await;
    let taken_by = taken.header("x-request-id").unwrap();
    assert_eq!(
        events_of(&pair.b, taken_by),
        ["taken_over", "claimed", "provider_call_started", "provider_call_ended", "committed"]
    );
    pair.a.signal("CONT").await;
    pair.a.until_event("fenced_off", |_| true).await;
    assert!(asked.await.unwrap().is_ok());
    assert!(pair.ask_b().await.replayed());

    let at_a = assert_lines_are_whole(&pair.a);
    let at_b = assert_lines_are_whole(&pair.b);
    for (seen, expected) in [
        (at_a, &["claimed", "retrying", "committed", "failed", "fenced_off"][..]),
        (at_b, &["taken_over", "replayed", "node_registered"]),
    ] {
        for event in expected {
            assert!(seen.contains(*event), "{event} is not among {seen:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_repeated_says_for_whom() {
    let pair = Pair::start(&[], &[]).await;
    // Made to fail once, as a deadlock or a serialization failure would.
    pair.database
        .execute(
            "create sequence tries;
            create function fail_once() returns trigger language plpgsql as $$
            begin
                if nextval('tries') = 1 then raise exception 'once' using errcode = '40001'; end if;
                return new;
            end $$;
            create trigger fail_once before insert on usage_receipts
                for each row execute function fail_once()",
        )
        .await;
    let answer = pair.ask_a().await.unwrap().unwrap();
    assert_eq!(answer.status, 200);
    let repeated = pair.a.until_event("transaction_repeated", |_| true).await;
    assert_eq!(repeated["request_id"], answer.header("x-request-id").unwrap());
    assert_eq!(repeated["tenant_id"], "t1");
    assert_eq!(pair.provider.count(), 1);
    pair.assert_one_outcome(&answer).await;
}

/// Sends everything that may hold something private through a node that logs as much as it can, and
/// lets it fail in many ways.
async fn nothing_private_is_logged_at(level: &str) {
    let private = |what: &str| format!("PRIVATE-{what}-{}", Uuid::new_v4().simple());
    let [question, answer, system, metadata] =
        ["question", "answer", "system", "metadata"].map(private);
    let pair = Pair::start(
        &[
            ("ONCEKEY_LOG_LEVEL", level),
            ("ONCEKEY_MODELS__DEFAULT__SYSTEM", &system),
            ("ONCEKEY_RETRY__TOTAL_WAIT", "1s"),
        ],
        &[],
    )
    .await;
    let subject_key = new_key(&pair.store, "t1", "client", Some("somebody")).await;
    let body = |message: &str| json!({"conversation_id": CONVERSATION, "message": message, "metadata": {"m": metadata}});
    let ask = async |body: &Value| {
        pair.at_a.send(pair.at_a.chat_request(Uuid::new_v4(), body)).await.unwrap()
    };

    pair.provider.reply(Reply::text(&answer));
    assert_eq!(ask(&body(&question)).await.content(), answer);
    // With the earlier answer in its prompt.
    assert_eq!(ask(&body(&question)).await.status, 200);
    let json_type = [("content-type", "application/json")];
    // A provider that repeats our credential.
    let told = json!({"error": {"message": "Incorrect API key: sk-test-0123456789"}}).to_string();
    pair.provider.reply_times(2, &Reply::status(401, &json_type, told.clone()));
    assert_eq!(ask(&body(&question)).await.error(), "provider_auth");
    let told = json!({"type": "error", "error": {
        "type": "invalid_request_error",
        "message": "the header x-api-key: sk-test-0123456789 was fine, the rest was not"
    }});
    pair.provider.reply(Reply::status(400, &json_type, told.to_string()));
    assert_eq!(ask(&body(&question)).await.error(), "input_rejected");
    // An answer that breaks off, and one that nobody can read.
    let broken = Reply::text(&answer).after(1, Action::Reset);
    pair.provider.reply_times(4, &broken);
    ask(&body(&question)).await;
    let garbage = json!({"id": "msg_0123456789", "type": "message", "content": {"text": answer}});
    pair.provider.reply_times(4, &Reply::status(200, &json_type, garbage.to_string()));
    ask(&body(&question)).await;
    while pair.provider.unused() > 0 {
        ask(&body(&question)).await;
    }
    // What is refused before it runs.
    let unknown = json!({"conversation_id": CONVERSATION, "message": question, "nosuch": 1});
    assert_eq!(ask(&unknown).await.status, 400);
    let no_json = pair.at_a.request("POST", "/v1/chat").body(format!("{{\"message\": {question}"));
    assert_eq!(pair.at_a.send(no_json).await.unwrap().status, 400);
    let mut stranger = pair.at_a.clone();
    stranger.key = format!("ok_{}", "5".repeat(64));
    assert_eq!(stranger.chat(Uuid::new_v4(), CONVERSATION, &question).await.status, 401);
    let mut bound = pair.at_a.clone();
    bound.key.clone_from(&subject_key);
    assert_eq!(bound.chat(Uuid::new_v4(), "c2", &question).await.status, 200);

    pair.a.signal("TERM").await;
    pair.a.until_event("draining", |_| true).await;
    let log = pair.a.raw_log();
    assert!(log.len() > 20);
    let credential = "sk-test-0123456789";
    let keys = [&pair.at_a.key, &subject_key, &stranger.key];
    let secret_parts = keys.map(|key| key.strip_prefix("ok_").unwrap().to_owned());
    for private in [&question, &answer, &system, &metadata, credential]
        .map(ToOwned::to_owned)
        .iter()
        .chain(&secret_parts)
    {
        let found = log.iter().find(|line| line.contains(private.as_str()));
        assert!(found.is_none(), "{private} is in the log: {}", found.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_private_is_in_it() {
    nothing_private_is_logged_at("info").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_private_is_in_it_at_level_debug_either() {
    nothing_private_is_logged_at("debug").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_at_level_trace() {
    nothing_private_is_logged_at("trace").await;
}
