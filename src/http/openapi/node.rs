//! What needs no API key and tells nothing of any tenant.

use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Content, HttpMethod, PathItem};

use super::parts::{JSON, header, of, operation, plain, response, text};
use super::problems;
use crate::domain::problem::ErrorCode;
use crate::http::health::Health;

pub const TAG: &str = "node";

pub fn healthz() -> PathItem {
    let alive = response("It answers.").content(JSON, of::<Health>().build());
    get(free("healthz", "Is it alive?", "Alive as long as it answers.").response("200", alive), &[])
}

pub fn readyz() -> PathItem {
    let about =
        "Ready while the database answers, today has a partition and the node is not draining.";
    let ready = response("It may get traffic.").content(JSON, of::<Health>().build());
    let ready = free("readyz", "May it get traffic?", about).response("200", ready);
    get(ready, &[ErrorCode::Draining, ErrorCode::DatabaseUnavailable])
}

pub fn metrics() -> PathItem {
    let text = response("Prometheus text.").content("text/plain", plain());
    get(free("metrics", "Metrics", "For Prometheus.").response("200", text), &[])
}

pub fn openapi() -> PathItem {
    let object = ObjectBuilder::new().schema_type(Type::Object);
    let document = response("OpenAPI 3.1.").content(JSON, Content::new(Some(object)));
    get(free("openapi", "This document", "For programs.").response("200", document), &[])
}

pub fn docs() -> PathItem {
    let policy = header(text().build(), "Nothing is loaded, and nothing runs.");
    let page =
        response("HTML.").header("Content-Security-Policy", policy).content("text/html", plain());
    get(free("docs", "This document as a page", "For people.").response("200", page), &[])
}

/// An operation that anybody may ask for.
fn free(id: &str, summary: &str, about: &str) -> OperationBuilder {
    operation(id, TAG, summary, about).securities(Some([] as [SecurityRequirement; 0]))
}

fn get(operation: OperationBuilder, codes: &[ErrorCode]) -> PathItem {
    PathItem::new(HttpMethod::Get, problems::of_node(operation, codes))
}
