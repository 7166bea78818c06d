//! The document is whole, and the page shows it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::domain::problem::ErrorCode;

fn value() -> Value {
    serde_json::to_value(document()).unwrap()
}

/// Calls `look` with every value of a JSON tree, the whole first.
fn walk<'a>(value: &'a Value, look: &mut impl FnMut(&'a Value)) {
    look(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, look)),
        Value::Object(members) => members.values().for_each(|member| walk(member, look)),
        _ => {}
    }
}

/// Method and path of every route that is written down in the router.
fn routes() -> BTreeSet<(String, String)> {
    let source = include_str!("../mod.rs");
    let calls: Vec<_> = source.split(".route(").skip(1).collect();
    let routes: BTreeSet<_> = calls
        .iter()
        .filter_map(|call| {
            let (path, rest) = call.strip_prefix('"')?.split_once("\", ")?;
            let (method, _) = rest.split_once('(')?;
            Some((method.to_owned(), path.to_owned()))
        })
        .collect();
    // The one without a literal is between nodes.
    assert!(source.contains(".route(PEER_PATH, "));
    assert_eq!(routes.len() + 1, calls.len(), "a route that this test cannot read");
    routes
}

#[test]
fn every_route_is_in_the_document_and_nothing_else() {
    let document = value();
    let mut told = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        told.extend(item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone())));
    }
    assert_eq!(told, routes());
}

#[test]
fn what_must_be_sent_and_what_may() {
    let document = value();
    let mut needed = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            needed.extend(
                parameters
                    .filter(|parameter| parameter["required"] == true)
                    .map(|parameter| parameter["name"].as_str().unwrap()),
            );
        }
    }
    assert_eq!(needed, BTreeSet::from(["from", "id", "key", "to"]));
}

#[test]
fn every_code_that_is_told_is_one_of_the_domains_under_its_own_status() {
    let document = value();
    let mut told = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let Some(content) = response["content"].get("application/problem+json") else {
                    assert!(status.starts_with('2'), "{status} without a problem: {response}");
                    continue;
                };
                let codes = &content["schema"]["allOf"][1]["properties"]["error"]["enum"];
                for code in codes.as_array().unwrap() {
                    let known = ErrorCode::ALL.into_iter().find(|it| code == it.as_str());
                    assert_eq!(known.unwrap().status().to_string(), *status, "{code}");
                    let example = &content["examples"][code.as_str().unwrap()]["value"];
                    assert_eq!(example["error"], *code);
                    told.insert(code.as_str().unwrap());
                }
            }
        }
    }
    // Told in words alone: it is the answer to what is not in the document.
    let elsewhere = ErrorCode::MethodNotAllowed.as_str();
    let all: BTreeSet<_> =
        ErrorCode::ALL.into_iter().map(ErrorCode::as_str).filter(|it| *it != elsewhere).collect();
    assert_eq!(told, all);
}

#[test]
fn every_reference_leads_somewhere_and_every_answer_names_its_request() {
    let document = value();
    walk(&document, &mut |value| {
        if let Some(place) = value["$ref"].as_str() {
            assert!(document.pointer(place.strip_prefix('#').unwrap()).is_some(), "{place}");
        }
        for (status, response) in value["responses"].as_object().into_iter().flatten() {
            assert!(response["headers"]["X-Request-Id"].is_object(), "{status}: {response}");
        }
    });
}

#[test]
fn examples_are_what_their_schemas_ask_for() {
    let document = value();
    let mut looked = 0;
    walk(&document, &mut |content| {
        let schema = &content["schema"];
        let mut examples: Vec<_> = content.get("example").into_iter().collect();
        let named = content["examples"].as_object().into_iter().flat_map(|it| it.values());
        examples.extend(named.map(|example| &example["value"]));
        if schema.is_null() || examples.is_empty() {
            return;
        }
        // The components lie where the references look for them.
        let mut whole = schema.clone();
        whole["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        for example in examples {
            let errors: Vec<_> = validator.iter_errors(example).map(|it| it.to_string()).collect();
            assert!(errors.is_empty(), "{example}: {errors:?}");
            looked += 1;
        }
    });
    assert!(looked > 50, "{looked}");
}

#[test]
fn the_page_shows_every_operation_and_loads_nothing() {
    let page = page::of(&document());
    for (method, path) in routes() {
        let path = path.replace('/', "<wbr>/");
        let head = format!("<span class=\"method {method}\">{method}</span> <code>{path}</code>");
        assert_eq!(page.html.matches(&head).count(), 2, "{head}, in the list and in its place");
    }
    for part in ["<script", " src=", "url(", "@import", "style=\"", "http://", "https://"] {
        assert!(!page.html.contains(part), "{part}");
    }
    let style =
        page.html.split("<style>").nth(1).and_then(|it| it.split("</style>").next()).unwrap();
    let hash = <sha2::Sha256 as sha2::Digest>::digest(style);
    let hash = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, hash);
    assert!(page.policy.contains(&format!("style-src 'sha256-{hash}'")));
}
