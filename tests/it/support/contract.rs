//! Every answer that a test's client gets is held against the OpenAPI document: its status, its type, its
//! headers and, of JSON, its body must be told there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::client::Answer;

/// What every answer of HTTP may carry, which no document tells.
const OF_HTTP: [&str; 6] =
    ["allow", "connection", "content-length", "content-type", "date", "transfer-encoding"];
const PROBLEM: &str = "application/problem+json";

/// The document of the program under test.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::to_value(oncekey::http::openapi::document()).unwrap())
}

/// Fails where an answer is one that the document does not tell.
#[track_caller]
pub fn check(method: &str, path: &str, answer: &Answer) {
    let wrong = violations(method, path, answer);
    let body = String::from_utf8_lossy(&answer.bytes);
    let body: String = body.chars().take(1_000).collect();
    assert!(wrong.is_empty(), "{method} {path}: {wrong:?}, in {} {body}", answer.status);
}

/// What an answer has that the document does not tell.
pub fn violations(method: &str, path: &str, answer: &Answer) -> Vec<String> {
    // A HEAD is a GET without its body.
    let (is_head, method) = match method {
        "HEAD" => (true, "get".to_owned()),
        other => (false, other.to_ascii_lowercase()),
    };
    let Some((template, operation)) = operation(&method, path) else {
        // Nodes have paths of their own.
        let strange =
            !path.starts_with("/internal/") && answer.header("content-type") != Some(PROBLEM);
        return strange.then(|| "no problem".to_owned()).into_iter().collect();
    };
    let status = answer.status.to_string();
    let told = &operation["responses"][&status];
    if told.is_null() {
        return vec![format!("the status {status} is not told")];
    }
    let mut wrong = Vec::new();
    for name in answer.headers.keys().map(|name| name.as_str()).filter(|it| !OF_HTTP.contains(it)) {
        let headers = told["headers"].as_object().into_iter().flatten();
        if !headers.map(|(told, _)| told).any(|told| told.eq_ignore_ascii_case(name)) {
            wrong.push(format!("the header {name} is not told"));
        }
    }
    let essence = answer.header("content-type").and_then(|kind| kind.split(';').next());
    let Some(essence) = essence else {
        if !told["content"].is_null() || !answer.bytes.is_empty() {
            wrong.push("it has no type".to_owned());
        }
        return wrong;
    };
    if told["content"][essence].is_null() {
        wrong.push(format!("the type {essence} is not told"));
    } else if essence.ends_with("json") && !is_head {
        let place =
            ["paths", &template, &method, "responses", &status, "content", essence, "schema"];
        wrong.extend(body_violations(&place, &answer.bytes));
    }
    wrong
}

/// The operation of a path, and the path as the document has it.
fn operation(method: &str, path: &str) -> Option<(String, &'static Value)> {
    let paths = document()["paths"].as_object().unwrap();
    let fits = |template: &str| {
        let (template, path) = (template.split('/'), path.split('/'));
        template.clone().count() == path.clone().count()
            && template
                .zip(path)
                .all(|(known, sent)| known.starts_with('{') && !sent.is_empty() || known == sent)
    };
    let (template, item) = paths.iter().find(|(template, _)| fits(template))?;
    let operation = item.get(method)?;
    Some((template.clone(), operation))
}

fn body_violations(place: &[&str], body: &[u8]) -> Vec<String> {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return vec!["it is no JSON".into()];
    };
    let validator = validator(place);
    validator
        .iter_errors(&body)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// The validator of the schema at this place, made once.
fn validator(place: &[&str]) -> Arc<Validator> {
    static KNOWN: OnceLock<Mutex<HashMap<String, Arc<Validator>>>> = OnceLock::new();
    let pointer: String = place
        .iter()
        .map(|step| format!("/{}", step.replace('~', "~0").replace('/', "~1")))
        .collect();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap();
    let make = || {
        let mut schema = document().pointer(&pointer).unwrap().clone();
        schema["components"] = json!({"schemas": document()["components"]["schemas"]});
        Arc::new(jsonschema::validator_for(&schema).unwrap())
    };
    known.entry(pointer.clone()).or_insert_with(make).clone()
}
