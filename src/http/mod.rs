//! The door: routes, extractors, wire types, and the one place where an outcome becomes a response.
//! It parses, authenticates and waits; it decides nothing and stores nothing.

mod answer;
mod auth;
mod body;
mod chat;
mod conversations;
mod event_stream;
mod events;
mod fallback;
mod health;
mod impatient;
mod linger;
pub mod openapi;
mod parse;
mod prefer;
mod request_id;
mod requests;
mod running;
mod server;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{delete, get, post};
use tower::ServiceBuilder;
use tower_http::decompression::RequestDecompressionLayer;

pub use server::{ServerSettings, serve};

use crate::clock::Clock;
use crate::operation::{Operations, PEER_PATH};

/// Renders the metrics of the process as Prometheus text.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// What handlers stand on.
#[derive(Clone)]
pub struct Http {
    pub operations: Operations,
    pub clock: Clock,
    pub render_metrics: RenderMetrics,
    /// The largest body after decompression, in bytes.
    pub max_body: usize,
    /// The longest wait that a client gets.
    pub max_wait: Duration,
}

/// All routes. Whatever they do not know is answered in the shape of every other problem.
pub fn router(http: Http) -> Router {
    Router::new()
        .route("/v1/chat", post(chat::post_chat))
        .route("/v1/parse", post(parse::post_parse))
        .route("/v1/requests/{key}", get(requests::get_request))
        .route("/v1/requests/{key}/events", get(events::get_events))
        .route("/v1/requests/{key}/cancel", post(requests::cancel_request))
        .route("/v1/conversations/{id}", delete(conversations::delete_conversation))
        .route("/v1/conversations/{id}/turns", get(conversations::get_turns))
        .route("/v1/usage", get(usage::get_usage))
        .route(PEER_PATH, get(events::get_for_peer))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::get_openapi))
        .route("/docs", get(openapi::get_docs))
        .fallback(fallback::not_found)
        .method_not_allowed_fallback(fallback::method_not_allowed)
        // One layer of four: each that a router is given by itself is boxed, and cloned with every request.
        .layer(
            ServiceBuilder::new()
                .layer(axum::middleware::from_fn_with_state(http.clone(), request_id::mark))
                .layer(axum::middleware::from_fn_with_state(http.clone(), linger::hear_out))
                .layer(axum::middleware::map_request(body::name_encoding))
                .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true)),
        )
        .with_state(http)
}
