//! What a caller is told of events, against the table that all client libraries share.

use serde_json::{Value, json};

use super::*;
use crate::client::operation::Chat;
use crate::client::request::ChatRequest;
use crate::client::transport::head_of;
use crate::client::vectors;

#[derive(Deserialize)]
struct Row {
    name: String,
    events: Vec<Came>,
    told: Vec<Value>,
}

#[derive(Deserialize)]
struct Came {
    event: String,
    data: String,
}

fn plain(event: StreamEvent<<Chat as Endpoint>::Answer>) -> Value {
    match event {
        StreamEvent::Started { request_id } => json!({"started": request_id}),
        StreamEvent::Delta(text) => json!({"delta": text}),
        StreamEvent::Progress { done, chunks } => json!({"progress": [done, chunks]}),
        StreamEvent::Restarted => json!({"restarted": true}),
        StreamEvent::Completed(reply) => json!({"completed": reply.answer.message.content}),
    }
}

#[test]
fn every_stream_of_the_table() {
    let client = Client::builder("http://127.0.0.1:1", "ok_x").build().unwrap();
    let head =
        Head { status: 200, retry_after: None, replayed: false, request_id: None, is_stream: true };
    for row in vectors::section::<Vec<Row>>("streams") {
        let operation = client.begin(ChatRequest::new("c1", "hello"));
        let mut stream = client.stream(&operation);
        let mut end = None;
        for came in row.events {
            end = stream.take(&head, &came.event, came.data).err().or(end);
        }
        let mut told: Vec<Value> = stream.ready.drain(..).map(plain).collect();
        told.extend(end.map(|setback| match setback {
            Setback::Refused(problem) => json!({"failed": problem.status}),
            Setback::Unreadable(_) => json!({"unreadable": true}),
            Setback::Lost(_) | Setback::TimedOut => panic!("{}", row.name),
        }));
        assert_eq!(told, row.told, "{}", row.name);
    }
}

#[tokio::test]
async fn a_failure_that_calls_itself_a_success_is_our_side() {
    let client = Client::builder("http://127.0.0.1:1", "ok_x").build().unwrap();
    let mut stream = client.stream(&client.begin(ChatRequest::new("c1", "hello")));
    let head =
        Head { status: 200, retry_after: None, replayed: false, request_id: None, is_stream: true };
    let failed = json!({"status": 200, "error": "x"}).to_string();
    let setback = stream.take(&head, "failed", failed).unwrap_err();
    match client.0.wait_or_end(setback, "k", &mut stream.tries).await {
        Err(ClientError::OurSide(failed)) => assert_eq!(failed.problem.error, "x"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_that_is_none_is_not_shown() {
    for server in ["ok_secret", "ftp://me:secret@h", "http://me:secret@h:x"] {
        let error = Client::builder(server, "ok_x").build().err().unwrap();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_kind_of_answer_may_be_written_in_any_case() {
    let answer = axum::http::Response::builder()
        .header("Content-Type", "Text/Event-Stream; charset=UTF-8")
        .body("")
        .unwrap();
    assert!(head_of(&answer.into()).is_stream);
}
