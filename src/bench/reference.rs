//! The bare handlers: what the same work costs where nothing is promised but the one thing asked.
//!
//! `/commit` claims a key with one insert and writes the outcome (record, two turns, receipt, event)
//! with one statement, with the provider's 20 ms between them for the model that has them; `/select` reads
//! a stored answer; `/forward` hands a provider's stream on, byte by byte. They take the same JSON as the
//! service, with the same libraries and the same number of connections. What they lack is what the service
//! is for:
//! API keys, a hash of the meaning, leases, fences, heartbeats, takeovers, partitions, retries,
//! errors that mean something, logs and metrics.

use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;
use uuid::Uuid;

use super::paced::prompt;
use super::workload::{DELAY, DELAYED, TENANT};
use super::{BenchError, direct};
use crate::clock::Clock;

const SCHEMA: &str = "
    create table if not exists bare_records (
        tenant_id text not null, idempotency_key uuid not null,
        state text not null default 'in_progress', response bytea,
        claimed_at timestamptz not null default clock_timestamp(), completed_at timestamptz,
        primary key (tenant_id, idempotency_key));
    create table if not exists bare_turns (
        tenant_id text not null, conversation_id text not null, seq bigint not null,
        role text not null, content text not null,
        created_at timestamptz not null default clock_timestamp(),
        primary key (tenant_id, conversation_id, seq));
    create table if not exists bare_receipts (
        tenant_id text not null, idempotency_key uuid not null, model text not null,
        input_tokens bigint, output_tokens bigint,
        created_at timestamptz not null default clock_timestamp(),
        primary key (tenant_id, idempotency_key));
    create table if not exists bare_events (
        tenant_id text not null, id uuid not null, payload jsonb not null,
        created_at timestamptz not null default clock_timestamp(),
        primary key (tenant_id, id));";

#[derive(Clone)]
struct Bare {
    pool: PgPool,
    clock: Clock,
    provider: reqwest::Client,
}

#[derive(Deserialize)]
struct Asked {
    conversation_id: String,
    message: String,
    model: String,
}

#[derive(Serialize)]
struct Told<'a> {
    request_id: Uuid,
    conversation_id: &'a str,
    content: &'a str,
    model: &'a str,
    input_tokens: usize,
    output_tokens: usize,
}

/// Serves the bare handlers on a free port of loopback until the process ends; `announce` hears
/// which.
pub async fn serve(
    url: &str,
    clock: Clock,
    announce: impl FnOnce(SocketAddr),
) -> Result<(), BenchError> {
    let pool = direct::pool(url).await?;
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    // Fails where the process has chosen one already; either will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .build()
        .map_err(|error| BenchError::failed(error.to_string()))?;
    let router = Router::new()
        .route("/commit", post(commit))
        .route("/select", post(select))
        .route("/forward", post(forward))
        .with_state(Bare { pool, clock, provider });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(listener.local_addr()?);
    axum::serve(listener.tap_io(prompt), router).await?;
    Ok(())
}

/// The stream of the provider that the header names, as it comes.
async fn forward(State(bare): State<Bare>, headers: HeaderMap, body: Bytes) -> Response {
    let to = headers.get("x-bench-provider").and_then(|value| value.to_str().ok());
    let request = bare.provider.post(to.unwrap_or_default()).header(CONTENT_TYPE, JSON).body(body);
    #[expect(clippy::disallowed_methods, reason = "an instrument beside the product")]
    let answered = request.send().await;
    match answered {
        Ok(response) if response.status() == StatusCode::OK => {
            let body = Body::from_stream(response.bytes_stream());
            ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
        }
        Ok(response) => (StatusCode::BAD_GATEWAY, response.status().to_string()).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

const JSON: &str = "application/json";

async fn commit(
    State(bare): State<Bare>,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> Response {
    match try_commit(&bare, key_of(&headers), &asked).await {
        Ok(body) => answer(body),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn try_commit(bare: &Bare, key: Uuid, asked: &Asked) -> Result<Vec<u8>, BenchError> {
    // Like the service's: a claim may be forgotten by a crash, a commit may not.
    let claimed = sqlx::query(
        "with setting as (select set_config('synchronous_commit', 'off', true) as off)
        insert into bare_records (tenant_id, idempotency_key)
        select $1, $2 from setting where off is not null on conflict do nothing",
    )
    .bind(TENANT)
    .bind(key)
    .execute(&bare.pool)
    .await?;
    if claimed.rows_affected() == 0 {
        return Err(BenchError::failed("the key is taken"));
    }
    if asked.model == DELAYED {
        bare.clock.sleep(DELAY).await;
    }
    let content = format!("This is a simulated answer to message 1, which says: {}", asked.message);
    let (input, output) = (words(&asked.message), words(&content));
    let told = Told {
        request_id: bare.clock.new_id(),
        conversation_id: &asked.conversation_id,
        content: &content,
        model: &asked.model,
        input_tokens: input,
        output_tokens: output,
    };
    let body = serde_json::to_vec(&told).map_err(|error| BenchError::failed(error.to_string()))?;
    sqlx::query(
        "with done as (
            update bare_records set state = 'committed', response = $3,
                completed_at = clock_timestamp()
            where tenant_id = $1 and idempotency_key = $2 and state = 'in_progress' returning tenant_id),
        turns as (
            insert into bare_turns (tenant_id, conversation_id, seq, role, content)
            select tenant_id, $4, 1, 'user', $5 from done
            union all select tenant_id, $4, 2, 'assistant', $6 from done),
        receipt as (
            insert into bare_receipts (tenant_id, idempotency_key, model, input_tokens, output_tokens)
            select tenant_id, $2, $7, $8, $9 from done)
        insert into bare_events (tenant_id, id, payload) select tenant_id, $10, $11::text::jsonb from done",
    )
    .bind(TENANT)
    .bind(key)
    .bind(&body)
    .bind(&asked.conversation_id)
    .bind(&asked.message)
    .bind(&content)
    .bind(&asked.model)
    .bind(i64::try_from(input).unwrap_or(i64::MAX))
    .bind(i64::try_from(output).unwrap_or(i64::MAX))
    .bind(bare.clock.new_id())
    .bind(String::from_utf8_lossy(&body).into_owned())
    .execute(&bare.pool)
    .await?;
    Ok(body)
}

async fn select(
    State(bare): State<Bare>,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> Response {
    let found: Result<Option<Vec<u8>>, _> = sqlx::query_scalar(
        "select response from bare_records
        where tenant_id = $1 and idempotency_key = $2 and state = 'committed'",
    )
    .bind(TENANT)
    .bind(key_of(&headers))
    .fetch_optional(&bare.pool)
    .await;
    match found {
        Ok(Some(body)) => answer(body),
        Ok(None) => (StatusCode::NOT_FOUND, asked.conversation_id).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn key_of(headers: &HeaderMap) -> Uuid {
    let text = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn answer(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, JSON)], body).into_response()
}
