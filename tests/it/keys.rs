//! What a client may send as a key: each spelling of one key is one operation, and whatever could be
//! read in two ways is refused before anything is spent.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase};

async fn start(options: NodeOptions) -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

/// A chat with these key headers, as bytes.
async fn send(client: &Client, keys: &[&[u8]], conversation: &str) -> Answer {
    let body = json!({"conversation_id": conversation, "message": "hello"});
    let mut request = client
        .request("POST", "/v1/chat")
        .header("content-type", "application/json")
        .body(body.to_string());
    for key in keys {
        let value = reqwest::header::HeaderValue::from_bytes(key).unwrap();
        request = request.header("Idempotency-Key", value);
    }
    client.send(request).await.unwrap()
}

/// A chat with a key header of any bytes at all. The status line and what follows it.
async fn send_raw(client: &Client, node: &TestNode, header: &[u8]) -> String {
    let body = r#"{"conversation_id": "c1", "message": "hello"}"#;
    let mut socket = TcpStream::connect(node.address()).await.unwrap();
    let head = format!(
        "POST /v1/chat HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\n\
        content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        client.key,
        body.len()
    );
    let request = [head.as_bytes(), header, b"\r\n\r\n", body.as_bytes()].concat();
    socket.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    // A server that refuses the head may reset the connection behind its answer.
    drop(socket.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_can_be_read_in_two_ways_is_refused_before_anything_is_spent() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    let key = Uuid::new_v4().to_string();
    let long = "k".repeat(256);
    let quoted_long = format!("\"{long}\"");
    let (joined, joined_close) = (format!("{key}, {key}"), format!("{key},{key}"));
    let other = Uuid::new_v4().to_string();
    let refused: [&[&[u8]]; 22] = [
        &[key.as_bytes(), key.as_bytes()],
        &[key.as_bytes(), other.as_bytes()],
        &[key.as_bytes(), b""],
        &[joined.as_bytes()],
        &[joined_close.as_bytes()],
        &[b""],
        &[b"   "],
        &[b"\"\""],
        &[b"\""],
        &[b"\"open"],
        &[b"close\""],
        &[b"\"in\"side\""],
        &[b"\"back\\slash\""],
        &[b"two words"],
        &[b"\" padded\""],
        &[b"tab\tinside"],
        &["caf\u{e9}".as_bytes()],
        &[b"latin-\xe9"],
        &[b"not-utf8-\xff\xfe"],
        &["\u{1f511}".as_bytes()],
        &[long.as_bytes()],
        &[quoted_long.as_bytes()],
    ];
    for keys in refused {
        let answer = send(&client, keys, "c1").await;
        let shown: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        assert_eq!(answer.status, 400, "{shown:?}");
        assert_eq!(answer.error(), "idempotency_key_invalid", "{shown:?}");
        assert!(answer.header("idempotency-key").is_none());
    }
    // What no client library sends, and HTTP itself refuses.
    for control in [b"\x00", b"\x01", b"\x0b", b"\x7f"] {
        let header = [b"idempotency-key: a", &control[..], b"b"].concat();
        let answer = send_raw(&client, &node, &header).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{control:?}: {answer}");
    }
    // A header that goes on in a second line, which the standard gave up.
    let answer = send_raw(&client, &node, b"idempotency-key: a\r\n b").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");

    assert_eq!(provider.count(), 0);
    for table in ["request_keys", "request_records", "derived_keys", "conversations"] {
        assert_eq!(database.count(&format!("select count(*) from {table}")).await, 0, "{table}");
    }
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_a_uuid_is_one_operation() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    let key = "0b1f8c3a-52a7-4f0e-9a57-3c6f2d1e8b90";
    let spellings = [
        format!("\"{key}\""),
        key.to_owned(),
        key.to_uppercase(),
        format!("\"{}\"", key.to_uppercase()),
        format!("  {key}  "),
    ];
    let first = send(&client, &[spellings[0].as_bytes()], "c1").await;
    assert_eq!(first.status, 200);
    for spelling in &spellings {
        let again = send(&client, &[spelling.as_bytes()], "c1").await;
        assert_eq!((again.status, &again.bytes), (200, &first.bytes), "{spelling}");
        assert!(again.replayed());
        // The client knows its own key.
        assert!(again.header("idempotency-key-source").is_none());
    }
    let raw = format!("IDEMPOTENCY-KEY: {key}");
    let answer = send_raw(&client, &node, raw.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("idempotency-replayed: true"), "{answer}");

    for path in [key.to_owned(), key.to_uppercase(), format!("%22{key}%22")] {
        let record = client.get(&format!("/v1/requests/{path}")).await;
        assert_eq!(record.status, 200, "{path}");
        assert_eq!(record.json()["key_source"], "client");
        assert_eq!(record.json()["request_id"].as_str(), first.header("x-request-id"));
    }
    assert_eq!(provider.count(), 1);
    assert_eq!(database.count("select count(*) from request_keys").await, 1);
    assert_eq!(database.text("select idempotency_key::text from request_keys").await, key);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert!(node.shut_down().await);
}

/// Percent-encodes all but letters and digits.
fn in_path(key: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    key.bytes().map(encoded).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_text_is_a_key_in_its_own_letters() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    let long = "k".repeat(255);
    let no_hyphens = Uuid::new_v4().simple().to_string();
    let braced = Uuid::new_v4().braced().to_string();
    let urn = Uuid::new_v4().urn().to_string();
    // Those that could be taken for one another are.
    let keys = [
        "order-17",
        "Order-17",
        "1",
        "01",
        "a/b?c=d#e%20f",
        "..",
        "x;y=(z)[!]",
        "null",
        r#"in"side"#,
        r"back\slash",
        &long,
        &no_hyphens,
        &braced,
        &urn,
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (number, key) in keys.iter().enumerate() {
        let conversation = format!("c{number}");
        let first = send(&client, &[key.as_bytes()], &conversation).await;
        assert_eq!(first.status, 200, "{key}");
        let quoted = format!("\"{}\"", key.replace('\\', r"\\").replace('"', r#"\""#));
        let again = send(&client, &[quoted.as_bytes()], &conversation).await;
        assert_eq!(again.bytes, first.bytes, "{key}");
        let sql = format!(
            "select idempotency_key::text || ' ' || key_source || ' ' || key_text
            from request_records where conversation_id = '{conversation}'"
        );
        let row = database.text(&sql).await;
        let (id, rest) = row.split_once(' ').unwrap();
        assert_eq!(rest, format!("opaque {key}"));
        assert_eq!(Uuid::parse_str(id).unwrap().get_version_num(), 8);
        assert!(seen.insert(id.to_owned()), "{key}");
        if *key == ".." {
            continue; // A path of two dots is another path, for every client.
        }
        let record = client.get(&format!("/v1/requests/{}", in_path(key))).await;
        assert_eq!(record.status, 200, "{key}");
        assert_eq!(record.json()["key_source"], "opaque");
        let quoted = client.get(&format!("/v1/requests/{}", in_path(&quoted))).await;
        assert_eq!(quoted.json(), record.json(), "{key}");
    }
    // A version 8 of the client's own is such a text too: the two cannot meet.
    let theirs = seen.first().unwrap();
    let answer = send(&client, &[theirs.as_bytes()], "c-v8").await;
    assert_eq!(answer.status, 200);
    assert!(!answer.replayed());
    let record = client.get(&format!("/v1/requests/{theirs}")).await.json();
    assert_eq!(record["request_id"].as_str(), answer.header("x-request-id"));
    assert_eq!(record["key_source"], "opaque");

    assert_eq!(provider.count(), keys.len() + 1);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_told_to_its_own_tenant_and_subject() {
    let (_database, provider, node, client) = start(NodeOptions::default()).await;
    let key = Uuid::new_v4();
    let path = format!("/v1/requests/{key}");
    assert_eq!(client.get(&path).await.error(), "not_found");
    let body = json!({"conversation_id": "c1", "message": "hello"});
    let request = client.chat_request(key, &body).header("x-end-user", "ann");
    let answer = client.send(request).await.unwrap();
    assert_eq!(answer.status, 200);

    let record = client.get(&path).await.json();
    let members: Vec<&String> = record.as_object().unwrap().keys().collect();
    let known = [
        "attempts",
        "claimed_at",
        "completed_at",
        "endpoint",
        "key_source",
        "operation_id",
        "request_id",
        "state",
    ];
    assert_eq!(members, known);
    assert_eq!(record["request_id"].as_str(), answer.header("x-request-id"));
    assert_eq!(
        (&record["state"], &record["endpoint"], &record["attempts"]),
        (&json!("committed"), &json!("chat"), &json!(1))
    );
    let time = |name: &str| record[name].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>();
    assert!(time("claimed_at").unwrap() <= time("completed_at").unwrap());

    let may = [
        node.client_as("t1", "operator", None).await,
        node.client_as("t1", "client", Some("ann")).await,
    ];
    for client in may {
        let mut told = client.get(&path).await.json();
        told.as_object_mut().unwrap().remove("calls"); // the operator's own
        assert_eq!(told, record);
    }
    for (client, status) in [
        (node.client("t2").await, 404),
        (node.client_as("t1", "client", Some("bob")).await, 404),
        (node.client_as("t1", "finance", None).await, 403),
    ] {
        assert_eq!(client.get(&path).await.status, status);
    }
    for (path, error) in [
        ("/v1/requests/%20", "idempotency_key_invalid"),
        ("/v1/requests/a%2Cb", "idempotency_key_invalid"),
        ("/v1/requests/%FF", "idempotency_key_invalid"),
        ("/v1/requests/", "not_found"),
    ] {
        assert_eq!(client.get(path).await.error(), error, "{path}");
    }

    // A failed one tells its failure; one that runs anew does not.
    provider.reply(Reply::file("413_edge.json"));
    let failed = Uuid::new_v4();
    assert_eq!(client.chat(failed, "c2", "hello").await.error(), "too_large");
    let record = client.get(&format!("/v1/requests/{failed}")).await.json();
    assert_eq!(record["state"], "failed");
    let failure = json!({"kind": "too_large", "error": "too_large", "final": true});
    assert_eq!(record["failure"], failure);
    assert!(node.shut_down().await);
}
