//! Parses as an app sends them, and a model that finds in a text what stands in it.

use oncekey::domain::parse::sent;
use serde_json::{Value, json};
use uuid::Uuid;

use super::client::{Answer, Client};
use super::provider::{Reply, Request};

impl Client {
    pub fn parse_request(&self, key: Uuid, body: &Value) -> reqwest::RequestBuilder {
        self.request("POST", "/v1/parse")
            .header("content-type", "application/json")
            .header("idempotency-key", key.to_string())
            .body(body.to_string())
    }

    /// A parse of a text with every option at its default.
    pub async fn parse(&self, key: Uuid, text: &str) -> Answer {
        self.parse_with(key, json!({"text": text})).await
    }

    pub async fn parse_with(&self, key: Uuid, body: Value) -> Answer {
        self.send(self.parse_request(key, &body)).await.unwrap()
    }

    /// A parse of a file as it is, under a label that may lie.
    pub async fn parse_file(&self, key: Uuid, bytes: &[u8], label: &str, query: &str) -> Answer {
        let request = self
            .request("POST", &format!("/v1/parse{query}"))
            .header("content-type", label)
            .header("idempotency-key", key.to_string())
            .body(bytes.to_vec());
        self.send(request).await.unwrap()
    }
}

/// The piece of the text that a call is about.
pub fn piece_of(request: &Request) -> String {
    let messages = request.messages();
    let (_, last) = messages.last().unwrap();
    sent(last).map_or_else(String::new, |sent| sent.text.to_owned())
}

/// What a careful model finds in a piece: a row for each line of the form `NAME: line`.
pub fn found_in(piece: &str) -> Value {
    let mut characters: Vec<String> = Vec::new();
    let mut dialogue = Vec::new();
    for line in piece.lines() {
        let Some((name, said)) = line.split_once(": ") else { continue };
        if !characters.iter().any(|known| known == name) {
            characters.push(name.to_owned());
        }
        dialogue.push(json!({"character": name, "line": said}));
    }
    json!({"title": "", "characters": characters, "dialogue": dialogue})
}

/// The answer of that model.
pub fn echo(request: &Request) -> Reply {
    Reply::tool(found_in(&piece_of(request)).to_string())
}

/// A script of so many speeches, each of about 100 characters.
pub fn script(speeches: usize) -> String {
    let speech = |number: usize| {
        let name = if number.is_multiple_of(2) { "MARA" } else { "OTTO" };
        format!("{name}: This is speech {number}; {}\n", "it goes on for a while ".repeat(3))
    };
    (0..speeches).map(speech).collect()
}

/// The rows of an answer.
pub fn rows(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    answer.json()["result"]["dialogue"].as_array().unwrap().clone()
}
