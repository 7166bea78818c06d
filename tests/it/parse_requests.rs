//! Odd ways of asking for a parse: each is understood, or refused in words with nothing left behind; and
//! what a key stands for is asked before anything else.

use serde_json::json;
use uuid::Uuid;

use crate::parse_answers::{Scene, pieces_of};
use crate::support::Answer;
use crate::support::node::NodeOptions;
use crate::support::parse::{echo, piece_of, rows, script};
use crate::support::provider::{Reply, fixture, patiently};

const FORM: &str = "multipart/form-data; boundary=b";

/// A part of a form, with these headers behind its name.
fn part(name: &str, headers: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{headers}\r\n\r\n");
    [head.as_bytes(), value, b"\r\n"].concat()
}

async fn form(scene: &Scene, key: Uuid, parts: &[Vec<u8>]) -> Answer {
    let body = [&parts.concat()[..], b"--b--\r\n"].concat();
    scene.client.parse_file(key, &body, FORM, "").await
}

fn detail(answer: &Answer) -> String {
    answer.json()["detail"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_that_are_broken_or_say_too_much_are_refused() {
    let scene = Scene::start(NodeOptions::default()).await;
    let file = || part("file", "", b"MARA: yes\n");
    let option = |name: &str, value: &[u8]| part(name, "", value);
    let many: Vec<Vec<u8>> = (0..2_000).map(|n| option(&format!("f{n}"), b"x")).collect();
    for (parts, what) in [
        (vec![file(), file()], "more than one file"),
        (vec![option("model", b"default")], "file"),
        (vec![file(), option("profil", b"script")], "profil"),
        (vec![file(), option("model", b"default"), option("model", b"default")], "model"),
        (vec![file(), option("allow_gaps", b"yes")], "allow_gaps"),
        (vec![file(), option("profile", b"")], "profile"),
        (vec![file(), option("metadata", b"{\"a\": \"\xff\"}")], "metadata"),
        (vec![file(), option("metadata", b"{\"a\": \"\\u0000\"}")], "metadata"),
        (many, "fields"),
    ] {
        let answer = form(&scene, scene.key, &parts).await;
        assert_eq!((answer.status, &*answer.error()), (400, "invalid_request"), "{what}");
        assert!(detail(&answer).contains(what), "{what}: {}", detail(&answer));
    }
    let whole = [&file()[..], b"--b--\r\n"].concat();
    for cut in [10, 40, whole.len() - 20, whole.len() - 8] {
        let answer = scene.client.parse_file(scene.key, &whole[..cut], FORM, "").await;
        assert_eq!((answer.status, &*answer.error()), (400, "invalid_request"), "cut at {cut}");
    }
    for label in
        ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=c"]
    {
        let answer = scene.client.parse_file(scene.key, &whole, label, "").await;
        assert_eq!((answer.status, &*answer.error()), (400, "invalid_request"), "{label}");
    }
    for query in ["?model=default&model=default", "?profile=%FF", "?text=x", "?allow_gaps", "?=x"] {
        let answer = scene.client.parse_file(scene.key, b"MARA: yes", "text/plain", query).await;
        assert_eq!((answer.status, &*answer.error()), (400, "invalid_request"), "{query}");
    }
    assert_eq!(scene.provider.count(), 0);
    assert_eq!(scene.database.count("select count(*) from request_records").await, 0);
    assert_eq!(scene.database.count("select count(*) from captures").await, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_file_is_one_request_whatever_is_around_it() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    let file = b"MARA: yes\n";
    let first = form(&scene, scene.key, &[part("file", "", file)]).await;
    assert_eq!(rows(&first).len(), 1);
    let name = "; filename=\"../../etc/passwd\\\"\"\r\nContent-Type: text/plain; charset=utf-16";
    let trace = part("metadata", "", b"{\"trace\": 7}");
    for again in [
        form(&scene, scene.key, &[part("file", name, file)]).await,
        form(&scene, scene.key, &[trace, part("file", "", file), part("stream", "", b"false")])
            .await,
        scene.client.parse_file(scene.key, file, "image/heic", "?profile=%73cript").await,
        scene.client.parse_file(scene.key, file, "", "").await,
    ] {
        assert!(again.replayed(), "{}", String::from_utf8_lossy(&again.bytes));
        assert_eq!(again.bytes, first.bytes);
    }
    let told = scene.client.parse_file(scene.key, file, "text/plain", "?stream=true").await;
    assert_eq!(told.header("content-type"), Some("text/event-stream"));
    let told = String::from_utf8(told.bytes).unwrap();
    assert!(told.contains("event: started") && told.contains("event: completed"), "{told}");
    // Text with a mark before it, and none.
    let key = Uuid::new_v4();
    let text = scene.client.parse(key, "MARA: yes\n").await;
    let body = format!("\u{feff}{}", json!({"text": "MARA: yes\n"}));
    let marked = scene.client.parse_file(key, body.as_bytes(), "application/json", "").await;
    assert!(marked.replayed());
    assert_eq!(marked.bytes, text.bytes);
    assert_eq!(scene.provider.count(), 2);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_a_file_is_told_whatever_its_form() {
    let scene = Scene::start(NodeOptions::default()).await;
    let empty = form(&scene, scene.key, &[part("file", "", b"")]).await;
    assert_eq!((empty.status, &empty.json()["reason"]), (422, &json!("empty")));
    for body in [&b""[..], b" \n\r\n", b"\xef\xbb\xbf"] {
        let answer = scene.client.parse_file(Uuid::new_v4(), body, "text/plain", "").await;
        assert_eq!((answer.status, &answer.json()["reason"]), (422, &json!("empty")), "{body:?}");
    }
    let answer = scene.client.parse(Uuid::new_v4(), "\u{feff} \n").await;
    assert_eq!((answer.status, &answer.json()["reason"]), (422, &json!("empty")));
    assert_eq!(scene.provider.count(), 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_request_under_the_key_is_refused_whatever_the_state() {
    let scene = Scene::start(NodeOptions::default().set("ONCEKEY_RETRY__MAX_ATTEMPTS", "1")).await;
    scene.provider.reply_by(|request| match &*piece_of(request) {
        "MARA: passing\n" => Reply::status(500, &[], "boom"),
        "MARA: running\n" => Reply::hang(),
        "MARA: filtered\n" => Reply::events_file("tool_truncated_max_tokens.sse"),
        _ => echo(request),
    });
    let heic = fixture("upload/heic_header_named.jpg");
    for (text, status) in [("MARA: passing\n", 502), ("MARA: running\n", 0), ("MARA: done\n", 200)]
    {
        let key = Uuid::new_v4();
        let client = scene.client.clone();
        let asked = tokio::spawn(async move { client.parse(key, text).await });
        let running =
            (status == 0).then(|| scene.provider.until_requests(scene.provider.count() + 1));
        let asked = match running {
            Some(running) => {
                running.await;
                Some(asked)
            }
            None => {
                assert_eq!(asked.await.unwrap().status, status, "{text}");
                None
            }
        };
        let reused = [
            scene.client.parse(key, "MARA: other\n").await,
            scene.client.parse_file(key, text.as_bytes(), "text/plain", "").await,
            scene.client.parse_file(key, &heic, "image/jpeg", "").await,
            scene.client.parse_with(key, json!({"text": text, "profile": "none"})).await,
            scene.client.chat(key, "c1", text).await,
        ];
        for (number, answer) in reused.iter().enumerate() {
            let told = (answer.status, &*answer.error());
            assert_eq!(told, (422, "idempotency_key_reuse"), "{text} {number}");
        }
        if let Some(asked) = asked {
            let path = format!("/v1/requests/{key}/cancel");
            scene.client.send(scene.client.request("POST", &path)).await.unwrap();
            assert_eq!(patiently("the end", asked).await.unwrap().error(), "cancelled");
        }
    }
    assert_eq!(scene.database.count("select count(*) from turns").await, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_users_stored_input_is_that_users_alone() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    let ask = |user: &'static str, body: serde_json::Value| {
        let request = scene.client.parse_request(Uuid::new_v4(), &body).header("x-end-user", user);
        scene.client.send(request)
    };
    let first = ask("ann", json!({"text": "MARA: yes\n"})).await.unwrap();
    assert_eq!(first.status, 200);
    let capture = scene.database.text("select capture_id::text from captures").await;
    let stored = || json!({"capture_id": capture});
    assert_eq!(ask("ben", stored()).await.unwrap().error(), "not_found");
    assert_eq!(rows(&ask("ann", stored()).await.unwrap()), rows(&first));
    let subjects = "select count(*) from usage_receipts where subject = 'ann'";
    assert_eq!(scene.database.count(subjects).await, 2);
    scene.end().await;
}

/// A folder for stored inputs that is this test's own.
fn own_folder(name: &str) -> (std::path::PathBuf, NodeOptions) {
    let id = Uuid::new_v4();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{id}"));
    let options =
        NodeOptions::default().set("ONCEKEY_CAPTURES__LOCATION", folder.to_str().unwrap());
    (folder, options)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_input_that_was_deleted_is_not_found_and_not_asked_for_again() {
    let (folder, options) = own_folder("deleted");
    let scene = Scene::start(options).await;
    scene.provider.reply_by(echo);
    assert_eq!(scene.client.parse(scene.key, "MARA: yes\n").await.status, 200);
    let capture = scene.database.text("select capture_id::text from captures").await;
    let location = scene.database.text("select location from captures").await;
    std::fs::remove_file(folder.join(location)).unwrap();
    let answer = scene.client.parse_with(Uuid::new_v4(), json!({"capture_id": capture})).await;
    assert_eq!((answer.status, &*answer.error()), (404, "not_found"));
    scene.end().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_cannot_be_stored_before_somebody_mends_the_store_is_our_fault() {
    let (folder, options) = own_folder("refused");
    let scene = Scene::start(options).await;
    scene.provider.reply_by(echo);
    // A file where the tenant's folder belongs: for root, too, there is no way.
    std::fs::write(folder.join("t1"), b"").unwrap();
    let answer = scene.client.parse(scene.key, "MARA: yes\n").await;
    assert_eq!((answer.status, &*answer.error()), (500, "internal"));
    assert_eq!(answer.json()["retryable"], false);
    assert_eq!(scene.provider.count(), 0, "nothing is spent on what is not stored");
    std::fs::remove_file(folder.join("t1")).unwrap();
    assert_eq!(scene.client.parse(scene.key, "MARA: yes\n").await.status, 200);
    scene.end().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_input_without_a_key_is_one_operation_within_the_window() {
    let scene = Scene::start(pieces_of(450)).await;
    scene.provider.reply_by(echo);
    let body = json!({"text": script(12)}).to_string();
    let ask = || {
        let request = scene.client.request("POST", "/v1/parse");
        scene.client.send(request.header("content-type", "application/json").body(body.clone()))
    };
    let first = ask().await.unwrap();
    assert_eq!(first.header("idempotency-key-source"), Some("derived"));
    let again = ask().await.unwrap();
    assert!(again.replayed());
    assert_eq!(again.header("idempotency-key"), first.header("idempotency-key"));
    assert_eq!(scene.written().await, (1, 1, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_ever_fails_is_answered_from_memory_from_the_third_key_on() {
    let scene = Scene::start(NodeOptions::default()).await;
    scene.provider.reply_by(|_| Reply::file("400_context_anthropic.json"));
    // It cannot be halved, so no second half is on its way to the provider when the answer is there.
    let text = "M";
    for calls in [1, 2, 2] {
        let answer = scene.client.parse(Uuid::new_v4(), text).await;
        assert_eq!((answer.status, &*answer.error()), (413, "too_large"));
        assert_eq!(scene.provider.count(), calls);
    }
    let refused = "select count(*) from refused_inputs where endpoint = 'parse' and failures >= 2";
    assert_eq!(scene.database.count(refused).await, 1);
    assert_eq!(scene.database.count("select count(*) from captures").await, 2);
    scene.end().await;
}
