//! What can be asked, ended and deleted: requests, conversations and usage.

use utoipa::IntoParams;
use utoipa::openapi::path::{OperationBuilder, ParameterIn};
use utoipa::openapi::{HttpMethod, PathItem};

use super::parts::{
    EVENT_STREAM, JSON, end_user, last_event_id, of, operation, over, path_conversation, path_key,
    plain, response, stream, stream_headers,
};
use super::problems;
use super::runs::EVENTS;
use crate::domain::problem::ErrorCode;
use crate::http::conversations::{PageBody, Paging};
use crate::http::requests::RecordBody;
use crate::http::usage::{Asked, UsageBody};

pub const REQUESTS: &str = "requests";
pub const CONVERSATIONS: &str = "conversations";
pub const USAGE: &str = "usage";

pub fn request() -> PathItem {
    let about = "The record of an operation, whatever became of it. Operators see its provider calls too. \
        Roles `client`, `operator`.";
    let read = operation("get_request", REQUESTS, "What became of an operation", about);
    PathItem::new(HttpMethod::Get, recorded(read))
}

pub fn cancel() -> PathItem {
    let about = "Ends a run in progress as a passing failure, at whatever node, and frees its conversation; \
        otherwise nothing changes. Roles `client`, `operator`.";
    let cancel = operation("cancel_request", REQUESTS, "Cancel a run", about);
    PathItem::new(HttpMethod::Post, recorded(cancel))
}

fn recorded(operation: OperationBuilder) -> OperationBuilder {
    let record =
        response("The record as it is then.").content(JSON, of::<RecordBody<'static>>().build());
    let operation = operation.parameter(path_key()).parameter(end_user()).response("200", record);
    problems::of_read(operation, &[ErrorCode::IdempotencyKeyInvalid, ErrorCode::NotFound])
}

pub fn events() -> PathItem {
    let about = "Attaches to the stream of a run, from its start or behind `Last-Event-ID`, at any node; of \
        an operation that ended, tells what it left. Roles `client`, `operator`.";
    let told = stream_headers(response(EVENTS)).content(EVENT_STREAM, stream());
    let attach = operation("get_events", REQUESTS, "Attach to a stream", about)
        .parameter(path_key())
        .parameter(end_user())
        .parameter(last_event_id())
        .response("200", told)
        .response("204", over());
    let own = [
        ErrorCode::IdempotencyKeyInvalid,
        ErrorCode::NotFound,
        ErrorCode::Erased,
        ErrorCode::SlotTimeout,
    ];
    PathItem::new(HttpMethod::Get, problems::of_read(attach, &own))
}

pub fn conversation() -> PathItem {
    let about = "Its turns are gone then, and so are the stored answers of its operations: a repeat of one \
        is 410 `erased`. Receipts stay. Roles `client`, `operator`.";
    let delete = operation("delete_conversation", CONVERSATIONS, "Delete a conversation", about)
        .parameter(path_conversation())
        .parameter(end_user())
        .response("204", response("It is gone."));
    let own = [ErrorCode::NotFound, ErrorCode::ConversationBusy];
    PathItem::new(HttpMethod::Delete, problems::of_read(delete, &own))
}

pub fn turns() -> PathItem {
    let about = "Roles `client`, `operator`.";
    let page =
        response("A page, oldest turn first.").content(JSON, of::<PageBody<'static>>().build());
    let mut read = operation("get_turns", CONVERSATIONS, "Read a conversation", about)
        .parameter(path_conversation())
        .parameter(end_user());
    for paging in Paging::into_params(|| Some(ParameterIn::Query)) {
        read = read.parameter(paging);
    }
    let read = read.response("200", page);
    PathItem::new(HttpMethod::Get, problems::of_read(read, &[ErrorCode::NotFound]))
}

pub fn usage() -> PathItem {
    let about = "What the tenant's operations cost, or those of one end user. `Accept: text/csv` gives the \
        same columns as text. Roles `finance`, `operator`.";
    let sums = response("Sums of receipts.")
        .content(JSON, of::<UsageBody>().build())
        .content("text/csv", plain());
    let mut read = operation("get_usage", USAGE, "Sum up usage", about).parameter(end_user());
    for asked in Asked::into_params(|| Some(ParameterIn::Query)) {
        read = read.parameter(asked);
    }
    PathItem::new(HttpMethod::Get, problems::of_read(read.response("200", sums), &[]))
}
