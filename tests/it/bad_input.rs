//! What a client may send, and what it hears otherwise: a 4xx that says what is wrong, with nothing
//! stored and nothing paid for.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{ScriptedProvider, fixture};
use crate::support::{Answer, Client, TestDatabase};

/// The largest body here, in bytes.
const MAX_BODY: usize = 64 * 1024;

pub struct Scene {
    pub database: TestDatabase,
    pub provider: ScriptedProvider,
    pub node: TestNode,
    pub client: Client,
}

impl Scene {
    pub async fn start() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let options = NodeOptions::default().set("ONCEKEY_LIMITS__MAX_BODY", "64KiB");
        let node = TestNode::start(&database, &provider, options).await;
        let client = node.client("t1").await;
        Self { database, provider, node, client }
    }

    /// A body as it stands, as JSON under this key.
    pub async fn post(&self, key: Option<Uuid>, body: impl Into<reqwest::Body>) -> Answer {
        self.post_as(key, &[("content-type", "application/json")], body).await
    }

    pub async fn post_as(
        &self,
        key: Option<Uuid>,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let mut request = self.client.request("POST", "/v1/chat");
        if let Some(key) = key {
            request = request.header("idempotency-key", key.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client.send(request.body(body)).await.unwrap()
    }

    /// Nothing was stored and nothing was asked, with a key and without one.
    pub async fn refuses(&self, body: &[u8], status: u16, error: &str) -> String {
        let mut detail = String::new();
        for key in [Some(Uuid::new_v4()), None] {
            let answer = self.post(key, body.to_vec()).await;
            detail = is_problem(&answer, status, error);
        }
        self.assert_nothing_happened().await;
        detail
    }

    pub async fn assert_nothing_happened(&self) {
        assert_eq!(self.provider.count(), 0);
        for table in ["request_keys", "request_records", "derived_keys", "conversations", "turns"] {
            let count = format!("select count(*) from {table}");
            assert_eq!(self.database.count(&count).await, 0, "{table}");
        }
    }

    pub async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await);
    }
}

/// A problem in the contract's shape; its detail.
pub fn is_problem(answer: &Answer, status: u16, error: &str) -> String {
    let text = String::from_utf8_lossy(&answer.bytes);
    assert_eq!((answer.status, answer.error().as_str()), (status, error), "{text}");
    let body = answer.json();
    assert_eq!(body["request_id"].as_str(), answer.header("x-request-id"));
    assert!(body["type"].is_string() && body["title"].is_string(), "{body}");
    assert_eq!(body["retryable"], status >= 502);
    let detail = body["detail"].as_str().unwrap();
    assert!(!detail.is_empty() && detail.len() < 1_000, "{detail}");
    detail.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_on_file_that_cannot_be_meant_are_refused() {
    let scene = Scene::start().await;
    for (file, says) in [
        ("deep.json", "metadata"),
        ("dup_member.json", "message"),
        ("invalid_utf8.json", "UTF-8"),
        ("lone_surrogate.json", "hex escape"),
        ("nul_escape.json", "U+0000"),
    ] {
        let body = fixture(&format!("requests/{file}"));
        let detail = scene.refuses(&body, 400, "invalid_request").await;
        assert!(detail.contains(says), "{file}: {detail}");
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_not_understood_are_refused_by_name() {
    let scene = Scene::start().await;
    let with = |member: &str| format!(r#"{{"conversation_id":"c1","message":"hello",{member}}}"#);
    let long = "c".repeat(256);
    for (body, says) in [
        (String::new(), "object"),
        ("null".into(), "object"),
        ("[]".into(), "object"),
        ("\"hello\"".into(), "object"),
        ("{".into(), "EOF"),
        (r#"{"conversation_id":"c1","message":"hello"} {}"#.into(), "trailing"),
        (r#"{"conversation_id":"c1"}"#.into(), "message"),
        (r#"{"message":"hello"}"#.into(), "conversation_id"),
        (r#"{"conversation_id":"c1","message":null}"#.into(), "string"),
        (r#"{"conversation_id":"c1","message":""}"#.into(), "message"),
        (r#"{"conversation_id":"c1","message":" \n\t"}"#.into(), "message"),
        (r#"{"conversation_id":"","message":"hello"}"#.into(), "conversation_id"),
        (format!(r#"{{"conversation_id":"{long}","message":"hello"}}"#), "conversation_id"),
        (r#"{"conversation_id":"c\u0000","message":"hello"}"#.into(), "conversation_id"),
        (with(r#""mesage":"x""#), "mesage"),
        (with(r#""system":"x""#), "system"),
        (with(r#""model":"no-such-model""#), "model"),
        (with(r#""model":"""#), "model"),
        (with(r#""model":7"#), "string"),
        (with(r#""stream":"yes""#), "boolean"),
        (with(r#""options":[1]"#), "options"),
        (with(r#""options":{"top_p":1}"#), "top_p"),
        (with(r#""options":{"temperature":1,"temperature":1}"#), "temperature"),
        (with(r#""options":{"temperature":2.01}"#), "temperature"),
        (with(r#""options":{"temperature":-0.1}"#), "temperature"),
        (with(r#""options":{"temperature":"1"}"#), "options"),
        (with(r#""options":{"temperature":1e999}"#), "options"),
        (with(r#""options":{"max_tokens":0}"#), "max_tokens"),
        (with(r#""options":{"max_tokens":-1}"#), "options"),
        (with(r#""options":{"max_tokens":1.5}"#), "options"),
        (with(r#""options":{"max_tokens":4294967296}"#), "options"),
        (with(r#""metadata":[1]"#), "metadata"),
        (with(r#""metadata":"x""#), "metadata"),
        (with(r#""metadata":{"a":{"b":1,"b":1}}"#), "`b`"),
        (with(r#""metadata":{"a":"\u0000"}"#), "U+0000"),
        (with(r#""metadata":{"a":1e99999}"#), "number"),
    ] {
        let detail = scene.refuses(body.as_bytes(), 400, "invalid_request").await;
        assert!(detail.contains(says), "{body} said {detail:?}");
    }
    let deep = format!(r#""metadata":{{"a":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    let detail = scene.refuses(with(&deep).as_bytes(), 400, "invalid_request").await;
    assert!(detail.contains("recursion"), "{detail}");
    // However long a name is, the answer is short.
    let endless = "m".repeat(50_000);
    scene.refuses(with(&format!(r#""{endless}":1"#)).as_bytes(), 400, "invalid_request").await;
    let model = with(&format!(r#""model":"{endless}""#));
    scene.refuses(model.as_bytes(), 400, "invalid_request").await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_meaning_is_one_operation_however_it_is_written() {
    let scene = Scene::start().await;
    let key = Uuid::new_v4();
    let first = scene.post(Some(key), fixture("requests/a.json")).await;
    assert_eq!(first.content(), "Answer to message 1: hello");
    for file in [
        "a_reordered_spaced.json",
        "a_escaped.json",
        "a_with_client_meta_1.json",
        "a_with_client_meta_2.json",
    ] {
        let again = scene.post(Some(key), fixture(&format!("requests/{file}"))).await;
        assert!(again.replayed(), "{file}");
        assert_eq!(again.bytes, first.bytes, "{file}");
    }
    for body in [
        r#"{"conversation_id":"c1","message":"hello","options":{"temperature":1,"max_tokens":64.0}}"#,
        r#"{"conversation_id":"c1","message":"hello","options":{"temperature":10e-1,"max_tokens":6.4e1}}"#,
        r#"{"conversation_id":"c1","message":"hello","options":{"temperature":1,"max_tokens":64},"stream":false,"model":"default","metadata":null}"#,
    ] {
        assert!(scene.post(Some(key), body).await.replayed(), "{body}");
    }
    let other = scene.post(Some(key), fixture("requests/b_different_message.json")).await;
    is_problem(&other, 422, "idempotency_key_reuse");
    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.database.outcomes().await, (1, 1, 1));

    // Text is not normalised: two different strings are two questions.
    let key = Uuid::new_v4();
    assert_eq!(scene.post(Some(key), fixture("requests/nfc.json")).await.status, 200);
    let decomposed = scene.post(Some(key), fixture("requests/nfd.json")).await;
    is_problem(&decomposed, 422, "idempotency_key_reuse");
    assert_eq!(scene.provider.count(), 2);
    assert_eq!(scene.database.outcomes().await, (2, 2, 2));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_zips_and_huge_numbers_are_taken() {
    let scene = Scene::start().await;
    let plain = r#"{"conversation_id":"c1","message":"hello"}"#;
    let key = Uuid::new_v4();
    let first = scene.post(Some(key), fixture("requests/bom.json")).await;
    assert_eq!(first.status, 200);
    assert!(scene.post(Some(key), plain).await.replayed());
    let json = ("content-type", "application/json");
    for headers in [
        &[json, ("content-encoding", "gzip")][..],
        &[("content-type", "application/json; charset=utf-8"), ("content-encoding", "GZIP")],
        &[json, ("content-encoding", "x-gzip")],
    ] {
        let zipped = scene.post_as(Some(key), headers, fixture("requests/gzip_ok.json.gz")).await;
        assert!(zipped.replayed(), "{headers:?} {}", String::from_utf8_lossy(&zipped.bytes));
    }
    for headers in [
        &[("content-type", "APPLICATION/JSON")][..],
        &[json, ("content-encoding", "identity")],
        &[],
    ] {
        assert!(scene.post_as(Some(key), headers, plain).await.replayed(), "{headers:?}");
    }

    // The number is in no hash and is stored as it was sent.
    assert!(scene.post(Some(key), fixture("requests/big_int.json")).await.replayed());
    let answer = scene.post(Some(Uuid::new_v4()), fixture("requests/big_int.json")).await;
    assert_eq!(answer.status, 200);
    let stored = "select metadata ->> 'n' from turns where metadata is not null";
    assert_eq!(scene.database.text(stored).await, "123456789012345678901234567890");
    assert_eq!(scene.provider.count(), 2);
    assert_eq!(scene.database.outcomes().await, (2, 2, 2));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn media_types_and_encodings_that_are_not_taken_are_refused() {
    let scene = Scene::start().await;
    let plain = br#"{"conversation_id":"c1","message":"hello"}"#;
    let zipped = fixture("requests/gzip_ok.json.gz");
    let json = ("content-type", "application/json");
    let key = || Some(Uuid::new_v4());
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/problem+json",
        "json",
        "",
    ] {
        let answer = scene.post_as(key(), &[("content-type", kind)], plain.to_vec()).await;
        is_problem(&answer, 415, "unsupported_media_type");
    }
    for encoding in ["br", "deflate", "gzip, gzip", "zstd", "x"] {
        let headers = [json, ("content-encoding", encoding)];
        let answer = scene.post_as(key(), &headers, plain.to_vec()).await;
        is_problem(&answer, 415, "unsupported_media_type");
    }
    let gzip = [json, ("content-encoding", "gzip")];
    let mut flipped = zipped.clone();
    let last = flipped.len() - 6;
    flipped[last] ^= 0xff;
    for broken in [plain.to_vec(), zipped[..30].to_vec(), flipped, b"\x1f\x8b".to_vec()] {
        is_problem(&scene.post_as(key(), &gzip, broken).await, 400, "invalid_request");
    }
    // Zipped, and not said so.
    is_problem(&scene.post(key(), zipped).await, 400, "invalid_request");
    scene.assert_nothing_happened().await;
    scene.end().await;
}

/// A chat of exactly this many bytes.
fn body_of(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"conversation_id":"c1","message":"hello""#.to_vec();
    body.resize(bytes - 1, b' ');
    body.push(b'}');
    body
}

/// The same body without a length: in pieces.
fn in_pieces(body: &[u8]) -> reqwest::Body {
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        body.chunks(10_000).map(|piece| Ok(piece.to_vec())).collect();
    reqwest::Body::wrap_stream(futures_util::stream::iter(pieces))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_makes_no_claim_however_it_is_sent() {
    let scene = Scene::start().await;
    let key = || Some(Uuid::new_v4());
    let answer = scene.post(key(), body_of(MAX_BODY + 1)).await;
    let detail = is_problem(&answer, 413, "too_large");
    assert!(detail.contains("65536"), "{detail}");
    is_problem(&scene.post(key(), in_pieces(&body_of(MAX_BODY + 1))).await, 413, "too_large");
    // A thousandth of it on the wire.
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let answer = scene.post_as(key(), &headers, fixture("requests/bomb.json.gz")).await;
    is_problem(&answer, 413, "too_large");
    let answer = scene.post_as(key(), &headers, in_pieces(&fixture("requests/bomb.json.gz"))).await;
    is_problem(&answer, 413, "too_large");
    scene.assert_nothing_happened().await;

    // A refusal for its size is not stored: the same key goes with a body that fits.
    let key = key();
    is_problem(&scene.post(key, body_of(MAX_BODY + 1)).await, 413, "too_large");
    assert_eq!(scene.post(key, body_of(MAX_BODY)).await.status, 200);
    assert!(scene.post(key, in_pieces(&body_of(MAX_BODY))).await.replayed());
    assert_eq!(scene.provider.count(), 1);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_refused_hears_why_though_they_are_still_sending() {
    let scene = Scene::start().await;
    let long = body_of(MAX_BODY * 20);
    let json = ("content-type", "application/json");
    for _ in 0..10 {
        let key = Some(Uuid::new_v4());
        is_problem(&scene.post(key, long.clone()).await, 413, "too_large");
        is_problem(&scene.post(key, in_pieces(&long)).await, 413, "too_large");
        let kind = [("content-type", "text/plain")];
        let answer = scene.post_as(key, &kind, in_pieces(&long)).await;
        is_problem(&answer, 415, "unsupported_media_type");
        let answer = scene.post_as(None, &[json, ("idempotency-key", "a b")], long.clone()).await;
        is_problem(&answer, 400, "idempotency_key_invalid");
        let stranger = Client::new(scene.node.address(), "ok_nobody");
        let request = stranger.request("POST", "/v1/chat").body(in_pieces(&long));
        is_problem(&stranger.send(request).await.unwrap(), 401, "unauthorized");
    }
    // Who asks before sending is not asked to send.
    let head = format!(
        "POST /v1/chat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 99999999\r\n\r\n",
        scene.client.key
    );
    let answer = raw(&scene.client, &head).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    scene.assert_nothing_happened().await;
    scene.end().await;
}

/// Sends bytes and reads what comes back until the other side closes.
async fn raw(client: &Client, request: &str) -> String {
    let address = client.base.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = socket.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_cut_short_or_announced_falsely_makes_no_claim() {
    let scene = Scene::start().await;
    let head = format!(
        "POST /v1/chat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\nconnection: close\r\n",
        scene.client.key
    );
    // Refused by its announcement alone, though not one byte of it comes.
    let answer = raw(&scene.client, &format!("{head}content-length: 99999999\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    // The client goes away in the middle.
    let address = scene.client.base.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let cut = format!("{head}content-length: 42\r\n\r\n{{\"conversation_id\":\"c1\"");
    socket.write_all(cut.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut rest = Vec::new();
    drop(socket.read_to_end(&mut rest).await);
    assert!(!String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 2"));
    scene.assert_nothing_happened().await;
    scene.end().await;
}
