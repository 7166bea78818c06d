//! Pieces that fail: what is asked again and how it is changed, what becomes a gap, what ends the parse,
//! and what a later run does not pay for again.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::parse_answers::{Scene, pieces_of};
use crate::support::node::{NodeOptions, assert_clean, new_key};
use crate::support::parse::{echo, found_in, piece_of, rows, script};
use crate::support::process::ProcessNode;
use crate::support::provider::{Reply, ScriptedProvider, fixture};
use crate::support::{Client, TestDatabase};

const ONE_LINE: &str = "MARA: Is it boiling?\n";

/// Nothing of a parse but its record.
async fn nothing_written(scene: &Scene) {
    assert_eq!(scene.written().await, (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_answer_is_asked_for_once_more_hotter_and_told_why() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply(Reply::tool_file("array_string_corrupt.txt"));
    scene.provider.reply(Reply::tool_file("ok.txt"));
    let answer = scene.client.parse(scene.key, ONE_LINE).await;
    assert_eq!(answer.status, 200);
    let requests = scene.provider.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].body["temperature"], 0.5);
    assert_ne!(requests[0].body["messages"], requests[1].body["messages"], "it is told why");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_answer_twice_passes_and_costs_two_calls() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_times(2, &Reply::tool_file("array_string_corrupt.txt"));
    let answer = scene.client.parse(scene.key, ONE_LINE).await;
    assert_eq!((answer.status, &*answer.error()), (502, "malformed_output"));
    assert_eq!(scene.provider.count(), 2);
    nothing_written(&scene).await;
    scene.provider.reply_by(echo);
    assert_eq!(scene.client.parse(scene.key, ONE_LINE).await.status, 200);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_temperature_is_left_out_and_another_change_made() {
    let scene = Scene::start(NodeOptions::default()).await;
    let mut calls = 0;
    scene.provider.reply_by(move |request| {
        calls += 1;
        match request.body.get("temperature") {
            _ if calls == 1 => Reply::tool_file("array_string_corrupt.txt"),
            Some(_) => Reply::file("400_temperature_deprecated.json"),
            None => Reply::events_file("anthropic_tool_ok.sse"),
        }
    });
    let answer = scene.client.parse(scene.key, ONE_LINE).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    let requests = scene.provider.requests();
    assert!(requests.len() <= 3, "{}", requests.len());
    assert_ne!(requests[0].body, requests.last().unwrap().body);
    assert_eq!(scene.written().await, (1, 1, 1));
    scene.end().await;
}

/// Answers piece 2 of 3 with what is given, as often as it is asked about whole, and halves well.
fn second_piece_is(scene: &Scene, second: String, reply: Reply) {
    scene.provider.reply_by(move |request| {
        if piece_of(request) == second { reply.clone() } else { echo(request) }
    });
}

/// Three pieces of a text.
fn three_pieces() -> (String, Vec<String>) {
    let text = script(12);
    let pieces = oncekey::domain::parse::chunk(&text, 450);
    let pieces: Vec<String> = pieces.iter().map(|piece| piece.text(&text).to_owned()).collect();
    assert_eq!(pieces.len(), 3, "{pieces:?}");
    (text, pieces)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_is_asked_for_in_halves_and_never_taken_for_whole() {
    for cut in [
        Reply::events_file("tool_truncated_max_tokens.sse"),
        Reply::events_file("tool_truncated_valid_json.sse"),
    ] {
        let scene = Scene::start(pieces_of(450)).await;
        let (text, pieces) = three_pieces();
        second_piece_is(&scene, pieces[1].clone(), cut);
        let answer = scene.client.parse(scene.key, &text).await;
        assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
        assert_eq!(scene.provider.count(), 5, "three pieces and two halves");
        let counted = "select count(*) from provider_calls where counted";
        assert_eq!(scene.database.count(counted).await, 4);
        let wasted = "select string_agg(failure_kind, ',') from provider_calls where not counted";
        assert_eq!(scene.database.text(wasted).await, "truncated");
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_is_always_cut_is_a_gap_where_gaps_are_allowed_and_the_end_where_not() {
    let scene = Scene::start(pieces_of(450)).await;
    let (text, pieces) = three_pieces();
    let second = pieces[1].clone();
    scene.provider.reply_by(move |request| {
        let piece = piece_of(request);
        let is_cut = second.contains(&piece);
        if is_cut { Reply::tool_cut_by_max_tokens("{\"title\":\"\"}") } else { echo(request) }
    });
    let refused = scene.client.parse(scene.key, &text).await;
    assert_eq!((refused.status, &*refused.error()), (422, "output_limit"));
    nothing_written(&scene).await;

    let body = json!({"text": text, "allow_gaps": true});
    let answer = scene.client.parse_with(Uuid::new_v4(), body).await;
    assert_eq!(answer.status, 200);
    let gaps = answer.json()["gaps"].as_array().unwrap().clone();
    let at = text.find(&pieces[1]).unwrap() as u64;
    let end = at + pieces[1].len() as u64;
    assert_eq!(gaps.first().map(|gap| gap["from"].as_u64().unwrap()), Some(at));
    assert_eq!(gaps.last().map(|gap| gap["to"].as_u64().unwrap()), Some(end));
    assert!(gaps.iter().all(|gap| gap["chunk"] == 1 && gap["reason"] == "output_limit"));
    let rest = [&*pieces[0], &*pieces[2]].concat();
    assert_eq!(rows(&answer), found_in(&rest)["dialogue"].as_array().unwrap().clone());
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_piece_does_not_sink_the_good_ones() {
    let scene = Scene::start(pieces_of(450)).await;
    let (text, pieces) = three_pieces();
    second_piece_is(&scene, pieces[1].clone(), Reply::tool("{\"title\": 7"));
    let body = json!({"text": text, "allow_gaps": true});
    let answer = scene.client.parse_with(scene.key, body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["gaps"][0]["reason"], "malformed_output");
    assert_eq!(scene.provider.count(), 4, "one changed call for the bad one");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poster_without_a_speech_costs_two_calls_and_says_so_in_words() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_times(2, &Reply::tool_file("empty_dialogue.txt"));
    let poster = fixture("texts/no_dialogue_poster.txt");
    for replayed in [false, true] {
        let answer = scene.client.parse_file(scene.key, &poster, "text/plain", "").await;
        assert_eq!((answer.status, &*answer.error()), (422, "nothing_found"));
        assert_eq!(answer.replayed(), replayed);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("dialogue"), "{detail}");
        assert_eq!(scene.provider.count(), 2);
    }
    nothing_written(&scene).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_without_a_speech_is_looked_at_once_more_and_not_piece_by_piece() {
    let scene = Scene::start(pieces_of(450)).await;
    scene.provider.reply_by(|_| Reply::tool_file("empty_dialogue.txt"));
    let (text, pieces) = three_pieces();
    let answer = scene.client.parse(scene.key, &text).await;
    assert_eq!((answer.status, &*answer.error()), (422, "nothing_found"));
    assert_eq!(scene.provider.count(), pieces.len() + 1);
    assert_eq!(scene.provider.requests().last().unwrap().body["temperature"], 0.5);

    // What the second look finds counts, and the others are looked at again as well.
    let mut calls = 0;
    scene.provider.reply_by(move |request| {
        calls += 1;
        if calls <= 3 { Reply::tool_file("empty_dialogue.txt") } else { echo(request) }
    });
    let answer = scene.client.parse(Uuid::new_v4(), &text).await;
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    let counted = "select count(*) from provider_calls where counted";
    assert_eq!(scene.database.count(counted).await, 3, "the empty answers are not in the result");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_refused_with_its_reason_and_without_a_call() {
    let scene = Scene::start(NodeOptions::default()).await;
    for (name, reason) in [
        ("upload/encrypted_user_password.pdf", "password_required"),
        ("upload/zero_bytes.pdf", "empty"),
        ("upload/header_only.pdf", "broken"),
        ("upload/truncated_middle.pdf", "broken"),
        ("upload/no_pages.pdf", "no_pages"),
        ("texts/only_whitespace.txt", "empty"),
    ] {
        let key = Uuid::new_v4();
        for replayed in [false, true] {
            let file = fixture(name);
            let answer = scene.client.parse_file(key, &file, "application/pdf", "").await;
            assert_eq!((answer.status, &*answer.error()), (422, "unreadable_input"), "{name}");
            assert_eq!(answer.json()["reason"], reason, "{name}");
            assert_eq!(answer.replayed(), replayed, "{name}");
        }
    }
    assert_eq!(scene.provider.count(), 0);
    nothing_written(&scene).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_and_pictures_reach_the_model_as_what_they_are() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(|_| Reply::tool_file("ok.txt"));
    for (name, media_type) in [
        ("two_lines.pdf", None),
        ("encrypted_owner_only.pdf", None),
        ("pdf_named.jpg", None),
        ("scanned_no_text_layer.pdf", Some("image/")),
        ("page.jpg", Some("image/jpeg")),
        ("jpeg_named.png", Some("image/jpeg")),
        ("png_named.jpg", Some("image/png")),
        ("rotated_exif6.jpg", Some("image/")),
    ] {
        let before = scene.provider.count();
        let file = fixture(&format!("upload/{name}"));
        let answer = scene.client.parse_file(Uuid::new_v4(), &file, "image/png", "").await;
        assert_eq!(answer.status, 200, "{name}: {}", String::from_utf8_lossy(&answer.bytes));
        assert_eq!(scene.provider.count(), before + 1, "{name}");
        let sent = scene.provider.requests().last().unwrap().body["messages"][0].to_string();
        match media_type {
            None => assert!(!sent.contains("media_type"), "{name}"),
            Some(media_type) => {
                assert!(sent.contains(&format!("\"media_type\":\"{media_type}")), "{name}");
            }
        }
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_that_are_done_are_not_paid_for_again_after_a_passing_failure() {
    let scene = Scene::start(pieces_of(450).set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1")).await;
    let (text, pieces) = three_pieces();
    second_piece_is(&scene, pieces[1].clone(), Reply::status(500, &[], "boom"));
    let failed = scene.client.parse(scene.key, &text).await;
    assert_eq!((failed.status, &*failed.error()), (502, "provider_failed"));
    assert_eq!(scene.provider.count(), 3);
    nothing_written(&scene).await;

    scene.provider.reply_by(echo);
    let answer = scene.client.parse(scene.key, &text).await;
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    assert_eq!(scene.provider.count(), 4, "one piece was left");
    let receipt: Value = serde_json::from_str(
        &scene.database.text("select to_jsonb(u)::text from usage_receipts u").await,
    )
    .unwrap();
    assert_eq!(receipt["provider_calls"], 3);
    let runs = "select count(distinct request_id) from provider_calls where counted";
    assert_eq!(scene.database.count(runs).await, 2, "two runs are in the bill");
    let paid: i64 = scene.provider.ledger().iter().map(|charge| charge.tokens.output).sum();
    assert_eq!(receipt["output_tokens"].as_i64(), Some(paid));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_with_one_place_still_reads_a_long_text() {
    let options = pieces_of(450)
        .set("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "1")
        .set("ONCEKEY_PROVIDERS__MAIN__SLOT_WAIT", "0s");
    let scene = Scene::start(options).await;
    scene.provider.reply_by(echo);
    let (text, _) = three_pieces();
    let answer = scene.client.parse(scene.key, &text).await;
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_without_a_place_wait_and_do_not_ask_for_one_over_and_over() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    provider.reply_by(echo);
    let one_place = [
        ("ONCEKEY_PARSE__CHUNK_CHARS", "450"),
        ("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "1"),
        ("ONCEKEY_PROVIDERS__MAIN__SLOT_WAIT", "0s"),
    ];
    let node = ProcessNode::on(&database, &provider, &one_place).await;
    let store = database.store();
    let client = Client::new(node.address, &new_key(&store, "t1", "client", None).await);
    let text = script(100);
    let answer = client.parse(Uuid::new_v4(), &text).await;
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    let pieces = provider.count();
    assert!(pieces > 20, "{pieces}");
    let refused = node.events("run_failed").len();
    assert!(refused <= 2 * pieces, "{refused} times no place for {pieces} pieces");
    assert_clean(&store).await;
}
