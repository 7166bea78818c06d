//! Which codes an operation may answer with, and what they look like. The codes are the domain's own.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use utoipa::openapi::example::{Example, ExampleBuilder};
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use uuid::Uuid;

use super::parts::{arrival_headers, header, response, text, verdict_headers};
use crate::domain::ids::RequestId;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::verdict::is_final;

use ErrorCode as Code;

const PROBLEM: &str = "application/problem+json";

/// What everything under `/v1` may answer: who asks, and whether we can answer at all.
const OF_V1: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthorized,
    Code::Forbidden,
    Code::Internal,
    Code::DatabaseUnavailable,
];

/// What everything that runs something may answer.
const OF_RUNS: &[Code] = &[
    Code::IdempotencyKeyInvalid,
    Code::IdempotencyKeyRequired,
    Code::NotFound,
    Code::InProgress,
    Code::Cancelled,
    Code::Erased,
    Code::TooLarge,
    Code::UnsupportedMediaType,
    Code::IdempotencyKeyReuse,
    Code::ContentFiltered,
    Code::InputRejected,
    Code::OutputLimit,
    Code::GaveUp,
    Code::QuotaExhausted,
    Code::ProviderAuth,
    Code::ProviderConfig,
    Code::ProviderFailed,
    Code::MalformedOutput,
    Code::ProviderTimeout,
    Code::ProviderBusy,
    Code::RegionRefused,
    Code::SlotTimeout,
    Code::WaitTimeout,
    Code::Draining,
    Code::OutcomeUnknown,
    Code::RunLost,
];

/// An operation of `/v1` that runs something: its own codes, beside those of all.
pub fn of_run(operation: OperationBuilder, own: &[Code]) -> OperationBuilder {
    let codes = [OF_V1, OF_RUNS, own].concat();
    with(operation, &codes, |status, response| {
        let response = if is_stored(status) { verdict_headers(response) } else { response };
        // Who may not ask is told nothing of the operation.
        if matches!(status, 401 | 403) { response } else { arrival_headers(response) }
    })
}

/// An operation of `/v1` that runs nothing.
pub fn of_read(operation: OperationBuilder, own: &[Code]) -> OperationBuilder {
    with(operation, &[OF_V1, own].concat(), |_, response| response)
}

/// An operation of the node's.
pub fn of_node(operation: OperationBuilder, own: &[Code]) -> OperationBuilder {
    with(operation, &[&[Code::Internal], own].concat(), |_, response| response)
}

/// Whether an answer with this status may be a verdict that is told again.
fn is_stored(status: u16) -> bool {
    Code::ALL.into_iter().any(|code| code.status() == status && is_final(code))
}

fn with(
    mut operation: OperationBuilder,
    codes: &[Code],
    more: impl Fn(u16, ResponseBuilder) -> ResponseBuilder,
) -> OperationBuilder {
    let mut by_status = BTreeMap::<u16, Vec<Code>>::new();
    for code in codes {
        by_status.entry(code.status()).or_default().push(*code);
    }
    for (status, codes) in by_status {
        operation = operation.response(status.to_string(), more(status, of_status(status, &codes)));
    }
    operation
}

fn of_status(status: u16, codes: &[Code]) -> ResponseBuilder {
    let words = codes.iter().map(|code| code.as_str());
    let narrowed =
        ObjectBuilder::new().property("error", text().enum_values(Some(words.clone()))).property(
            "status",
            ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([status])),
        );
    let schema = AllOfBuilder::new().item(Ref::from_schema_name("Problem")).item(narrowed);
    let examples = codes.iter().map(|code| (code.as_str(), example(*code)));
    let content = ContentBuilder::new().schema(Some(schema)).examples_from_iter(examples).build();
    let about = words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let mut response = response(&about).content(PROBLEM, content);
    if codes.iter().any(|code| code.may_name_a_time()) {
        let about =
            "Whole seconds until asking again helps; to the millisecond in `retry_after_ms`.";
        let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).build();
        response = response.header("Retry-After", header(seconds, about));
    }
    if codes.contains(&Code::Unauthorized) {
        let bearer = text().enum_values(Some(["Bearer"])).build();
        response = response.header("WWW-Authenticate", header(bearer, "How to say who asks."));
    }
    response
}

fn example(code: Code) -> Example {
    let id = RequestId(Uuid::from_u128(0x0198_c9a2_7d3e_7c61_9a57_3c6f_2d1e_8b91));
    let waits = matches!(code, Code::InProgress | Code::ConversationBusy);
    let problem = Problem::new(code, id, format!("{}.", code.title()))
        .retry_after(waits.then_some(Duration::from_millis(1_500)))
        .because((code == Code::UnreadableInput).then_some("password_required"));
    let value = serde_json::from_slice::<Value>(&problem.to_json()).unwrap_or(json!({}));
    ExampleBuilder::new().summary(code.title()).value(Some(value)).build()
}
