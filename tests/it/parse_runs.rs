//! A parse over several runs, readers and nodes: what a killed process had finished is not paid for
//! again, how far it is can be read along, and it is cancelled like any other operation.

use serde_json::json;
use uuid::Uuid;

use crate::parse_answers::{Scene, pieces_of};
use crate::support::events::names_of;
use crate::support::node::{NodeOptions, TestNode, assert_clean, provider_variables};
use crate::support::parse::{echo, found_in, piece_of, rows, script};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, Wire, patiently};
use crate::support::{Events, TestDatabase, eventually};

const CHARS: usize = 450;

/// A text of several pieces, and the pieces.
fn pieces() -> (String, Vec<String>) {
    let text = script(24);
    let pieces = oncekey::domain::parse::chunk(&text, CHARS);
    let pieces = pieces.iter().map(|piece| piece.text(&text).to_owned()).collect();
    (text, pieces)
}

/// Answers all pieces but the last, which waits at the gate.
fn hold_the_last(provider: &ScriptedProvider, last: &str, gate: &Gate) {
    let (last, gate) = (last.to_owned(), gate.clone());
    provider.reply_by(move |request| {
        let reply = echo(request);
        if piece_of(request) == last {
            reply.before_head(Action::Hold(gate.clone()))
        } else {
            reply
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_had_finished_is_not_paid_for_again() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let (text, pieces) = pieces();
    let gate = Gate::closed();
    hold_the_last(&provider, pieces.last().unwrap(), &gate);
    let chars = ("ONCEKEY_PARSE__CHUNK_CHARS".to_owned(), CHARS.to_string());
    let mut first = ProcessNode::on(&database, &provider, &[(&chars.0, &chars.1)]).await;
    let second = TestNode::start(&database, &provider, pieces_of(CHARS)).await;
    let client = second.client("t1").await;
    database.age_epoch().await;

    let key = Uuid::new_v4();
    let (asking, sent) = (client.at(first.address), text.clone());
    let asked = tokio::spawn(async move {
        let body = json!({"text": sent});
        asking.send(asking.parse_request(key, &body)).await.map(drop)
    });
    gate.until_reached(1).await;
    let all_but_one = i64::try_from(pieces.len()).unwrap() - 1;
    eventually("all but one are kept", || async {
        database.count("select count(*) from parse_chunks").await == all_but_one
    })
    .await;
    first.kill().await;
    assert!(asked.await.unwrap().is_err(), "a killed process answers nobody");
    gate.open();

    let mut answer = client.parse(key, &text).await;
    while answer.status == 409 {
        eventually("the dead node is known", || async {
            database.count("select count(*) from nodes where dead_at is not null").await > 0
        })
        .await;
        answer = client.parse(key, &text).await;
    }
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    assert_eq!(provider.count(), pieces.len() + 1, "only the last one was asked about again");
    let runs = "select count(distinct request_id) from provider_calls where counted";
    assert_eq!(database.count(runs).await, 2);
    let receipts = "select provider_calls::bigint from usage_receipts";
    assert_eq!(database.count(receipts).await, i64::try_from(pieces.len()).unwrap());
    assert_eq!(database.count("select count(*) from parse_chunks").await, 0);
    assert_eq!(database.count("select count(*) from captures").await, 1, "stored once");
    assert_clean(second.store()).await;
    assert!(second.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn how_far_it_is_can_be_read_along_and_the_end_is_the_plain_answer() {
    let scene = Scene::start(pieces_of(CHARS)).await;
    let (text, pieces) = pieces();
    let gate = Gate::closed();
    hold_the_last(&scene.provider, pieces.last().unwrap(), &gate);
    let body = json!({"text": text, "stream": true});
    let mut stream = Events::open(scene.client.parse_request(scene.key, &body)).await;
    let mut events = vec![stream.event().await];
    while events.last().unwrap().data["chunks_done"] != pieces.len() - 1 {
        events.push(stream.event().await);
    }
    // A second reader gets what there was, from the start.
    let mut along = scene.client.events(scene.key, None).await;
    for event in &events {
        assert_eq!(along.event().await.data, event.data);
    }
    gate.open();
    events.extend(stream.rest().await);
    let names = names_of(&events);
    assert_eq!((names[0], *names.last().unwrap()), ("started", "completed"));
    assert!(names[1..names.len() - 1].iter().all(|name| *name == "progress"), "{names:?}");
    let done: Vec<_> = events[1..events.len() - 1].iter().map(|event| &event.data).collect();
    let expected: Vec<_> = (0..=pieces.len())
        .map(|done| json!({"chunks_done": done, "chunks": pieces.len()}))
        .collect();
    assert_eq!(done, expected.iter().collect::<Vec<_>>());
    assert_eq!(along.rest().await.last().unwrap().data, events.last().unwrap().data);

    let plain = scene.client.parse(scene.key, &text).await;
    assert!(plain.replayed());
    assert_eq!(plain.json(), events.last().unwrap().data);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_cancelled_with_all_its_calls_and_goes_on_from_what_it_had() {
    let options = pieces_of(CHARS).set("ONCEKEY_PARSE__PARALLEL", "2");
    let scene = Scene::start(options).await;
    let (text, pieces) = pieces();
    let first = pieces[0].clone();
    scene.provider.reply_by(
        move |request| {
            if piece_of(request) == first { echo(request) } else { Reply::hang() }
        },
    );
    let (client, key, sent) = (scene.client.clone(), scene.key, text.clone());
    let asked = tokio::spawn(async move { client.parse(key, &sent).await });
    scene.provider.until_requests(3).await;
    let path = format!("/v1/requests/{key}/cancel");
    let cancelled = scene.client.send(scene.client.request("POST", &path)).await.unwrap();
    assert_eq!(cancelled.json()["failure"]["error"], "cancelled");
    let told = patiently("the run's own client", asked).await.unwrap();
    assert_eq!((told.status, told.error().as_str()), (409, "cancelled"));
    scene.provider.until_idle().await;

    scene.provider.reply_by(echo);
    assert_eq!(scene.client.parse(key, &text).await.status, 200);
    assert_eq!(scene.provider.count(), 3 + pieces.len() - 1);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_input_is_parsed_once_more_as_a_new_operation() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    let file = b"MARA: \x93Yes\x94.\n";
    let first = scene.client.parse_file(scene.key, file, "text/plain", "").await;
    assert_eq!(first.status, 200);
    let capture = scene.database.text("select capture_id::text from captures").await;
    let body = json!({"capture_id": capture});
    let again = Uuid::new_v4();
    let second = scene.client.parse_with(again, body.clone()).await;
    assert_eq!(second.json()["result"], first.json()["result"]);
    assert_ne!(second.json()["request_id"], first.json()["request_id"]);
    // It is the same request as the file itself.
    let same = scene.client.parse_file(again, file, "text/plain", "").await;
    assert!(same.replayed());
    assert_eq!(scene.written().await, (2, 2, 2));

    let stranger = scene.node.client("t2").await;
    assert_eq!(stranger.parse_with(Uuid::new_v4(), body).await.error(), "not_found");
    let both = json!({"capture_id": capture, "text": "A: b"});
    assert_eq!(scene.client.parse_with(Uuid::new_v4(), both).await.error(), "invalid_request");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_wire_forms_pin_the_tool_and_are_read() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    provider.reply_by(echo);
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let variables = provider_variables(&provider, wire);
        let node = TestNode::start_with(&database, variables, NodeOptions::default()).await;
        let client = node.client(&format!("{wire:?}").to_lowercase()).await;
        let answer = client.parse(Uuid::new_v4(), "MARA: Yes.\nOTTO: No.\n").await;
        assert_eq!(rows(&answer).len(), 2);
        assert_clean(node.store()).await;
        assert!(node.shut_down().await);
    }
}
