//! What is frozen with a key, what varies, and that an operation survives being kept.

use super::*;
use crate::client::request::{ChatRequest, ParseRequest, Request};
use crate::client::vectors;
use crate::domain::chat::ChatRequest as ServersChat;
use crate::domain::parse::{JsonRequest, ParseRequest as ServersParse};

const KEY: &str = "0198f3a2-6d1c-7e30-9c55-2f4b8f0f6a11";

fn operation<R: Request>(request: R) -> Operation<R::Endpoint> {
    let parts = request.into_parts();
    Operation::new(KEY.to_owned(), parts.body, parts.metadata)
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// As the server reads it.
fn chat(sending: &Sending) -> ServersChat {
    assert_eq!((sending.content_type, &sending.query), ("application/json", &None));
    ServersChat::read(std::str::from_utf8(&sending.body).unwrap()).unwrap()
}

#[test]
fn two_sendings_mean_the_same_and_say_which_they_are() {
    let request = ChatRequest::new("c\"1", "Is it }boiling?{\n")
        .model("m")
        .temperature(0.5)
        .max_tokens(64)
        .metadata("trace", "t-1")
        .metadata("attempt", "the caller's own gives way");
    let operation = operation(request);
    let first = chat(&operation.sending(1, at("2026-08-19T00:36:57.5Z")));
    let second = chat(&operation.sending(2, at("2026-08-19T00:36:59Z")));
    assert_eq!(first.meaning(None), second.meaning(None));
    assert_eq!((first.conversation_id.as_str(), first.model.as_str()), ("c\"1", "m"));
    assert_eq!(first.message, "Is it }boiling?{\n");
    assert_eq!((first.temperature, first.max_tokens, first.stream), (Some(0.5), Some(64), false));
    let metadata = |chat: &ServersChat| -> Value {
        serde_json::from_str(chat.metadata.as_deref().unwrap()).unwrap()
    };
    let expected = serde_json::json!(
        {"trace": "t-1", "attempt": 1, "sent_at": "2026-08-19T00:36:57.500Z"});
    assert_eq!(metadata(&first), expected);
    assert_eq!(metadata(&second)["attempt"], 2);
}

#[test]
fn a_file_goes_as_it_is_with_its_options_in_the_query() {
    let request = ParseRequest::file(&b"MARA: \xe9\0"[..])
        .profile("a & b")
        .allow_gaps(false)
        .allow_gaps(true)
        .model("m");
    let sending = operation(request).sending(1, at("2026-08-19T00:36:57Z"));
    assert_eq!(&sending.body[..], b"MARA: \xe9\0");
    let query = sending.query.unwrap();
    let options = url::form_urlencoded::parse(query.as_bytes());
    let read = ServersParse::from_options(options, sending.body).unwrap();
    assert_eq!((read.profile.as_str(), read.model.as_str(), read.allow_gaps), ("a & b", "m", true));
    assert!(read.metadata.unwrap().contains("\"attempt\":1"));
}

#[test]
fn a_text_and_a_stored_input_go_as_json() {
    let read = |request: ParseRequest| {
        let sending = operation(request).sending(1, at("2026-08-19T00:36:57Z"));
        ServersParse::read_json(std::str::from_utf8(&sending.body).unwrap()).unwrap()
    };
    match read(ParseRequest::text("MARA: Yes.").allow_gaps(true)) {
        JsonRequest::Ready(request) => {
            assert_eq!(request.input.bytes(), b"MARA: Yes.");
            assert!(request.allow_gaps);
        }
        JsonRequest::Stored(_) => panic!("it has its text"),
    }
    match read(ParseRequest::capture(KEY)) {
        JsonRequest::Stored(request) => assert_eq!(request.capture.to_string(), KEY),
        JsonRequest::Ready(_) => panic!("it has none"),
    }
}

#[test]
fn a_kept_operation_is_the_same_one_in_another_process() {
    let file = operation(ParseRequest::file(&[0, 255, 10][..]).profile("receipts"));
    let text = serde_json::to_string(&file).unwrap();
    let again: Operation<Parse> = Operation::from_kept(text.as_bytes()).unwrap();
    assert_eq!((again.key(), &again.body), (KEY, &file.body));
    assert!(again.resumed() && !file.resumed());
    let sending = again.sending(1, at("2026-08-19T00:36:57Z"));
    assert!(sending.query.unwrap().contains("resumed"), "the server is told");

    let chat = operation(ChatRequest::new("c1", "hello").metadata("a", 1));
    let text = serde_json::to_string(&chat).unwrap();
    let again: Operation<Chat> = Operation::from_kept(text.as_bytes()).unwrap();
    assert_eq!((&again.body, &again.metadata), (&chat.body, &chat.metadata));
    assert!(!format!("{again:?}").contains("hello"), "what a user said is not for logs");
}

#[test]
fn what_is_no_kept_operation_is_not_sent() {
    for (kept, part) in [
        ("", "EOF"),
        (r#"{"endpoint":"parse","key":"k","json":"{\"text\":\"a\"}"}"#, "parse"),
        (r#"{"endpoint":"chat","key":"a b","json":"{\"a\":1}"}"#, "character"),
        (r#"{"endpoint":"chat","key":"k","json":"{}"}"#, "no body"),
    ] {
        match Operation::<Chat>::from_kept(kept.as_bytes()) {
            Err(ClientError::NotSent(text)) => assert!(text.contains(part), "{kept}: {text}"),
            other => panic!("{kept}: {other:?}"),
        }
    }
    for kept in vectors::section::<Vec<String>>("not_kept") {
        let bytes = kept.as_bytes();
        assert!(Operation::<Chat>::from_kept(bytes).is_err(), "{kept}");
        assert!(Operation::<Parse>::from_kept(bytes).is_err(), "{kept}");
    }
}

#[derive(Deserialize)]
struct KeyRow {
    text: String,
    sent: Option<String>,
}

#[test]
fn every_key_of_the_table() {
    for row in vectors::section::<Vec<KeyRow>>("keys") {
        assert_eq!(checked_key(&row.text).ok(), row.sent, "{}", row.text);
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendingRow {
    name: String,
    kept: Value,
    attempt: u32,
    sent_at: DateTime<Utc>,
    path: String,
    content_type: String,
    begins: Option<String>,
    options: Option<Map<String, Value>>,
    file_base64: Option<String>,
    metadata: Value,
}

#[test]
fn every_sending_of_the_table() {
    for row in vectors::section::<Vec<SendingRow>>("sendings") {
        match row.path.as_str() {
            "/v1/chat" => goes_out_as::<Chat>(&row),
            "/v1/parse" => goes_out_as::<Parse>(&row),
            other => panic!("{other}"),
        }
    }
}

fn goes_out_as<E: Endpoint>(row: &SendingRow) {
    let operation: Operation<E> = Operation::from_kept(row.kept.to_string().as_bytes()).unwrap();
    let mut kept = row.kept.clone();
    kept.as_object_mut().unwrap().entry("metadata").or_insert_with(|| Map::new().into());
    assert_eq!(serde_json::to_value(&operation).unwrap(), kept, "{}", row.name);
    let sending = operation.sending(row.attempt, row.sent_at);
    assert_eq!(sending.content_type, row.content_type, "{}", row.name);
    let metadata: Value = match &row.begins {
        Some(begins) => {
            assert_eq!(sending.query, None);
            let text = std::str::from_utf8(&sending.body).unwrap();
            assert!(text.starts_with(begins), "{}: {text}", row.name);
            serde_json::from_str::<Value>(text).unwrap()["metadata"].clone()
        }
        None => {
            assert_eq!(STANDARD.encode(&sending.body), *row.file_base64.as_ref().unwrap());
            let query = sending.query.unwrap();
            let mut options: Map<String, Value> = url::form_urlencoded::parse(query.as_bytes())
                .map(|(name, value)| (name.into_owned(), value.into_owned().into()))
                .collect();
            let metadata = options.remove("metadata").unwrap();
            assert_eq!(Some(&options), row.options.as_ref(), "{}", row.name);
            serde_json::from_str(metadata.as_str().unwrap()).unwrap()
        }
    };
    assert_eq!(metadata, row.metadata, "{}", row.name);
}
