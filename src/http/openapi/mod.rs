//! What the service takes and answers, as an OpenAPI 3.1 document (`/openapi.json`) and as a page made of
//! it (`/docs`).
//!
//! Schemas come from the types that are read and written; what no type can say (which header, which code
//! under which status) stands beside them in a file for each group of routes. A new route gets an entry in
//! [`document`]; a test fails until it has one. The document is made at the first request for it and kept
//! as text, so that a node whose document nobody reads pays nothing for it.

mod node;
mod page;
mod parts;
mod problems;
mod reads;
mod runs;

use std::sync::OnceLock;

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::ToSchema;
use utoipa::openapi::path::PathsBuilder;
use utoipa::openapi::schema::{Components, ComponentsBuilder};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Tag};

use super::conversations::PageBody;
use super::health::Health;
use super::requests::RecordBody;
use super::usage::UsageBody;
use crate::domain::chat::ChatBody;
use crate::domain::parse::JsonBody;
use crate::domain::problem::Wire;
use crate::operation::{ChatAnswer, ParseAnswer};

/// The name of the security scheme.
const API_KEY: &str = "api_key";

const ABOUT: &str = "\
One durable outcome for each operation that a client meant. Send `Idempotency-Key` with every chat and \
parse: a fresh UUID for each action of a user, the same one on every repeat. A repeat gets the answer that \
is stored, or learns that it is not there yet; nothing is paid for twice.\n\n\
Every answer carries `X-Request-Id`. Whatever is no success is `application/problem+json` with a stable \
`error`, also on paths and methods that are not listed here (404, 405). A status is a promise about \
repeating: 409 with `retry_after_ms`, 502, 503 and 504 ask for the same request again, under the same key; \
every other one says stop.\n\n\
Bodies may be sent with `Content-Encoding: gzip`. Members of a JSON body that are not known, or that are \
given twice, are refused.";

/// `GET /openapi.json`.
pub async fn get_openapi() -> Response {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        // Texts and numbers under names that are texts: nothing in it can fail to be JSON.
        document().to_json().unwrap_or_default().into()
    });
    ([(CONTENT_TYPE, "application/json")], text.clone()).into_response()
}

/// `GET /docs`.
pub async fn get_docs() -> Response {
    static PAGE: OnceLock<(Bytes, HeaderValue)> = OnceLock::new();
    let (html, policy) = PAGE.get_or_init(|| {
        let page = page::of(&document());
        // Of our own letters; without a policy the page only lacks a second lock.
        let policy = HeaderValue::try_from(page.policy);
        (page.html.into(), policy.unwrap_or(HeaderValue::from_static("default-src 'none'")))
    });
    let html_type = HeaderValue::from_static("text/html; charset=utf-8");
    let heads = [(CONTENT_TYPE, html_type), (CONTENT_SECURITY_POLICY, policy.clone())];
    (heads, html.clone()).into_response()
}

/// The whole document.
pub fn document() -> OpenApi {
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0"));
    let info = InfoBuilder::new()
        .title("oncekey")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(license.build()));
    let paths = PathsBuilder::new()
        .path("/v1/chat", runs::chat())
        .path("/v1/parse", runs::parse())
        .path("/v1/requests/{key}", reads::request())
        .path("/v1/requests/{key}/events", reads::events())
        .path("/v1/requests/{key}/cancel", reads::cancel())
        .path("/v1/conversations/{id}", reads::conversation())
        .path("/v1/conversations/{id}/turns", reads::turns())
        .path("/v1/usage", reads::usage())
        .path("/healthz", node::healthz())
        .path("/readyz", node::readyz())
        .path("/metrics", node::metrics())
        .path("/openapi.json", node::openapi())
        .path("/docs", node::docs());
    OpenApiBuilder::new()
        .info(info.build())
        .paths(paths)
        .components(Some(components()))
        .security(Some([SecurityRequirement::new(API_KEY, [""; 0])]))
        .tags(Some([
            Tag::new(runs::TAG),
            Tag::new(reads::REQUESTS),
            Tag::new(reads::CONVERSATIONS),
            Tag::new(reads::USAGE),
            Tag::new(node::TAG),
        ]))
        .build()
}

fn components() -> Components {
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("ok_…")
        .description(Some(
            "A key of a tenant, made with `oncekey key create`. It belongs on the tenant's server, never in an app.",
        ));
    let mut schemas = Vec::new();
    add::<ChatBody<'static>>(&mut schemas);
    add::<ChatAnswer<'static>>(&mut schemas);
    add::<JsonBody<'static>>(&mut schemas);
    add::<ParseAnswer<'static>>(&mut schemas);
    add::<RecordBody<'static>>(&mut schemas);
    add::<PageBody<'static>>(&mut schemas);
    add::<UsageBody>(&mut schemas);
    add::<Health>(&mut schemas);
    add::<Wire<'static>>(&mut schemas);
    schemas.push(("StreamEvent".to_owned(), parts::stream_event().into()));
    ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(API_KEY, SecurityScheme::Http(bearer.build()))
        .build()
}

/// Named schemas, as the library collects them.
type Schemas = Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>;

/// A type's schema, with those that it is made of.
fn add<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into(), T::schema()));
    T::schemas(schemas);
}

#[cfg(test)]
mod tests;
