//! A parse from a text to a stored result: what the pieces are, what comes back, what is written, and
//! what of a model's answer is mended.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::parse::{echo, found_in, piece_of, rows, script};
use crate::support::provider::{Reply, ScriptedProvider, fixture};
use crate::support::{Client, TestDatabase};

pub struct Scene {
    pub database: TestDatabase,
    pub provider: ScriptedProvider,
    pub node: TestNode,
    pub client: Client,
    pub key: Uuid,
}

impl Scene {
    pub async fn start(options: NodeOptions) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, options).await;
        let client = node.client("t1").await;
        Self { database, provider, node, client, key: Uuid::new_v4() }
    }

    /// Results, receipts and events.
    pub async fn written(&self) -> (i64, i64, i64) {
        let results = self.database.count("select count(*) from parse_results").await;
        let receipts = self.database.count("select count(*) from usage_receipts").await;
        let events = self.database.count("select count(*) from outbox").await;
        (results, receipts, events)
    }

    pub async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}

/// Pieces of this many characters.
pub fn pieces_of(chars: usize) -> NodeOptions {
    NodeOptions::default().set("ONCEKEY_PARSE__CHUNK_CHARS", &chars.to_string())
}

fn text_file(name: &str) -> String {
    String::from_utf8(fixture(&format!("texts/{name}"))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_becomes_a_result_that_is_stored_once_and_replayed() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply(Reply::tool_file("ok.txt"));
    let first = scene.client.parse(scene.key, "MARA: Is it boiling?\nOTTO: Not yet.\n").await;
    assert_eq!(first.status, 200, "{}", String::from_utf8_lossy(&first.bytes));
    let expected: Value = serde_json::from_slice(&fixture("tool/ok.txt")).unwrap();
    let body = first.json();
    assert_eq!(body["result"], expected);
    assert_eq!(body["gaps"], json!([]));
    assert!(body["usage"]["input_tokens"].as_i64().unwrap() > 0, "{body}");
    assert_eq!(body["request_id"], first.header("x-request-id").unwrap());

    let again = scene.client.parse(scene.key, "MARA: Is it boiling?\nOTTO: Not yet.\n").await;
    assert!(again.replayed());
    assert_eq!(again.bytes, first.bytes);
    let other = scene.client.parse(scene.key, "MARA: Is it boiling now?\n").await;
    assert_eq!(other.error(), "idempotency_key_reuse");

    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.written().await, (1, 1, 1));
    let event = scene.database.text("select payload::text from outbox").await;
    let event: Value = serde_json::from_str(&event).unwrap();
    assert_eq!(event["endpoint"], "parse");
    assert_eq!(event["conversation_id"], Value::Null);
    let aggregate = "select count(*) from outbox where aggregatetype = 'parse'
        and aggregateid = payload ->> 'operation_id'";
    assert_eq!(scene.database.count(aggregate).await, 1);
    let stored =
        "select count(*) from captures c join parse_results p using (tenant_id, capture_id)
        where c.operation_id = p.operation_id and c.request_id = p.request_id";
    assert_eq!(scene.database.count(stored).await, 1);
    assert_eq!(scene.database.count("select count(*) from parse_chunks").await, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_is_pinned_and_the_profile_speaks() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    assert_eq!(rows(&scene.client.parse(scene.key, "MARA: Yes.\n").await).len(), 1);
    let sent = &scene.provider.requests()[0].body;
    assert_eq!(sent["tool_choice"]["name"], sent["tools"][0]["name"]);
    assert!(sent["system"].as_str().is_some_and(|system| system.contains("script")), "{sent}");
    assert!(sent.get("temperature").is_none(), "none is sent where none is asked for");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_the_same_whatever_its_label_and_way() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    let file = b"MARA: One.\r\nOTTO: Two.\r\n";
    let raw = scene.client.parse_file(scene.key, file, "application/pdf", "").await;
    assert_eq!(
        rows(&raw),
        [
            json!({"character": "MARA", "line": "One."}),
            json!({"character": "OTTO", "line": "Two."}),
        ]
    );
    let form = |fields: &[(&str, &str)]| {
        let mut body = Vec::new();
        for (name, value) in fields {
            body.extend(
                format!(
                    "--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
                )
                .bytes(),
            );
        }
        body.extend(b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n");
        body.extend(file);
        body.extend(b"\r\n--b--\r\n");
        body
    };
    let label = "multipart/form-data; boundary=b";
    let again = scene.client.parse_file(scene.key, &form(&[]), label, "").await;
    assert!(again.replayed(), "{}", String::from_utf8_lossy(&again.bytes));
    assert_eq!(again.bytes, raw.bytes);
    // Another option is another request.
    let fields = form(&[("allow_gaps", "true")]);
    assert_eq!(scene.client.parse_file(scene.key, &fields, label, "").await.status, 422);
    let query = "?allow_gaps=true&profile=script";
    let fresh = Uuid::new_v4();
    assert_eq!(scene.client.parse_file(fresh, file, "text/plain", query).await.status, 200);
    let same = scene.client.parse_file(fresh, &fields, label, "").await;
    assert!(same.replayed());
    assert_eq!(scene.provider.count(), 2);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_request_is_named_and_leaves_nothing() {
    let scene = Scene::start(NodeOptions::default()).await;
    for (body, part) in [
        (json!({"text": "A: b", "profile": "novel"}), "novel"),
        (json!({"text": "A: b", "model": "none"}), "none"),
        (json!({"text": "A: b", "allow_gap": true}), "allow_gap"),
        (json!({"text": "A: b", "allow_gaps": "yes"}), "boolean"),
        (json!({}), "text"),
        (json!({"text": "a\u{0}b"}), "U+0000"),
    ] {
        let answer = scene.client.parse_with(scene.key, body.clone()).await;
        assert_eq!(answer.error(), "invalid_request", "{body}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(part), "{body} said {detail}");
    }
    let label = "multipart/form-data; boundary=b";
    let file = scene.client.parse_file(scene.key, b"--b--\r\n", label, "").await;
    assert_eq!(file.error(), "invalid_request");
    let query = scene.client.parse_file(scene.key, b"A: b", "text/plain", "?alow_gaps=true").await;
    assert_eq!(query.error(), "invalid_request");
    let heic = fixture("upload/heic_header_named.jpg");
    let heic = scene.client.parse_file(scene.key, &heic, "image/jpeg", "").await;
    assert_eq!(heic.error(), "unsupported_media_type");
    assert_eq!(scene.provider.count(), 0);
    assert_eq!(scene.database.count("select count(*) from request_records").await, 0);
    assert_eq!(scene.database.count("select count(*) from captures").await, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_is_cut_where_somebody_begins_to_speak() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    let text = text_file("turn_across_12000.txt");
    let answer = scene.client.parse(scene.key, &text).await;
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    let mut pieces: Vec<String> = scene.provider.requests().iter().map(piece_of).collect();
    assert_eq!(pieces.len(), 2);
    pieces.sort_by_key(|piece| text.find(piece.as_str()));
    assert_eq!(pieces.concat(), text, "nothing is lost and nothing doubled");
    assert_eq!(scene.written().await, (1, 1, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_characters_reach_the_model_and_the_result_whole() {
    let scene = Scene::start(NodeOptions::default()).await;
    // A text without a speech is read as one, so that its characters are all that is looked at.
    scene.provider.reply_by(|request| {
        let mut found = found_in(&piece_of(request));
        let rows = found["dialogue"].as_array_mut().unwrap();
        if rows.is_empty() {
            rows.push(json!({"character": "TEXT", "line": piece_of(request)}));
        }
        Reply::tool(found.to_string())
    });
    for (name, calls) in
        [("emoji_on_12000.txt", 2), ("bom_crlf_rtl.txt", 1), ("cp1252_quotes.txt", 1)]
    {
        let before = scene.provider.count();
        let file = fixture(&format!("texts/{name}"));
        let answer = scene.client.parse_file(Uuid::new_v4(), &file, "text/plain", "").await;
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(scene.provider.count() - before, calls, "{name}");
        let text = String::from_utf8(answer.bytes.clone()).unwrap();
        for bad in ["\u{fffd}", "\\r", "\u{feff}", "\\ufeff"] {
            assert!(!text.contains(bad), "{name} has {bad:?}: {text}");
        }
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_were_written_as_text_are_unwrapped_with_one_call() {
    let scene = Scene::start(NodeOptions::default()).await;
    let expected: Value = serde_json::from_slice(&fixture("tool/ok.txt")).unwrap();
    let files = ["array_as_string.txt", "array_double_encoded.txt", "whole_input_as_string.txt"];
    for (done, name) in files.into_iter().enumerate() {
        scene.provider.reply(Reply::tool_file(name));
        let answer = scene.client.parse(Uuid::new_v4(), "MARA: Is it boiling?\n").await;
        assert_eq!(answer.json()["result"], expected, "{name}");
        assert_eq!(scene.provider.count(), done + 1);
    }
    assert_eq!(scene.written().await, (3, 3, 3));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_that_the_database_refuses_are_cleaned_and_paid_for_once() {
    let scene = Scene::start(NodeOptions::default()).await;
    let files = [
        ("nul_in_line.txt", "Is it boiling?"),
        ("lone_surrogate.txt", "Tea \u{fffd} and"),
        ("literal_backslash_u0000.txt", "type \\u0000 please"),
    ];
    for (done, (name, line)) in files.into_iter().enumerate() {
        scene.provider.reply(Reply::tool_file(name));
        let answer = scene.client.parse(Uuid::new_v4(), "MARA: something\n").await;
        let said = rows(&answer)[0]["line"].as_str().unwrap().to_owned();
        let same = said == line || said.replace('\u{fffd}', "") == line;
        assert!(same, "{name} became {said:?}");
        assert_eq!(scene.provider.count(), done + 1, "{name}");
    }
    assert_eq!(scene.written().await, (3, 3, 3));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pieces_at_once_and_never_more_than_allowed() {
    let options = pieces_of(400).set("ONCEKEY_PARSE__PARALLEL", "3");
    let scene = Scene::start(options).await;
    let gate = crate::support::provider::Gate::closed();
    let held = gate.clone();
    scene.provider.reply_by(move |request| {
        echo(request).before_head(crate::support::provider::Action::Hold(held.clone()))
    });
    let text = script(24);
    let (client, key, sent) = (scene.client.clone(), scene.key, text.clone());
    let asked = tokio::spawn(async move { client.parse(key, &sent).await });
    scene.provider.until_requests(3).await;
    gate.until_reached(3).await;
    assert_eq!(scene.provider.count(), 3, "the fourth waits for one of them");
    gate.open();
    let answer = asked.await.unwrap();
    assert_eq!(rows(&answer), found_in(&text)["dialogue"].as_array().unwrap().clone());
    assert!(scene.provider.count() >= 6);
    scene.end().await;
}
