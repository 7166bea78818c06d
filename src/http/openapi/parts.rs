//! What operations are put together from: parameters, headers and bodies that several of them have.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{Content, ContentBuilder, Ref, Required, ResponseBuilder};

use crate::domain::key::MAX_KEY_CHARS;

pub const JSON: &str = "application/json";
pub const EVENT_STREAM: &str = "text/event-stream";

/// As of a client's own: printable ASCII without blanks and commas, and no quote at either end; or the
/// same between quotes, where a backslash stands before a quote and a backslash.
const KEY_PATTERN: &str = "^(?:[!#-+\\--~](?:[!-+\\--~]*[!#-+\\--~])?\
    |\"(?:[!#-+\\--\\[\\]-~]|\\\\\\\\)(?:(?:[!#-+\\--\\[\\]-~]|\\\\[\"\\\\])*(?:[!#-+\\--\\[\\]-~]|\\\\\\\\))?\")$";
/// Printable ASCII and tabs, with no blank at either end. UTF-8 is taken too, of which a header's schema knows
/// nothing.
const SUBJECT_PATTERN: &str = "^[!-~](?:[\\t -~]{0,253}[!-~])?$";
const A_KEY: &str = "0198c9a2-7d3e-7c61-9a57-3c6f2d1e8b90";

pub fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub fn uuid() -> ObjectBuilder {
    text().format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
}

/// Bytes that are no text.
pub fn binary() -> ObjectBuilder {
    text().format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
}

fn key_schema() -> Object {
    // Of a bare one: quotes and backslashes are not counted, which no length can say.
    text().min_length(Some(1)).max_length(Some(MAX_KEY_CHARS)).pattern(Some(KEY_PATTERN)).build()
}

fn parameter(
    place: ParameterIn,
    name: &str,
    schema: impl Into<Schema>,
    about: &str,
) -> ParameterBuilder {
    let required = if place == ParameterIn::Path { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .schema(Some(schema.into()))
        .description(Some(about))
}

fn head(name: &str, schema: impl Into<Schema>, about: &str) -> Parameter {
    parameter(ParameterIn::Header, name, schema, about).build()
}

/// The key in a path.
pub fn path_key() -> Parameter {
    let about = "The idempotency key of the operation, percent-encoded where it is no UUID.";
    parameter(ParameterIn::Path, "key", key_schema(), about).example(Some(json!(A_KEY))).build()
}

/// The conversation in a path.
pub fn path_conversation() -> Parameter {
    let schema = text().min_length(Some(1)).max_length(Some(255)).build();
    let about = "The conversation's id, as its client made it.";
    parameter(ParameterIn::Path, "id", schema, about).example(Some(json!("c-17"))).build()
}

pub fn idempotency_key() -> Parameter {
    let about = "Names the operation: a fresh UUID for each action of a user, the same on every repeat. \
        Bare or quoted; a UUID in any letter case; other printable ASCII without blanks and commas is taken \
        too. Without it the service goes by its `missing_key` policy: by default it derives a key from what \
        is asked, and says so.";
    let schema = key_schema();
    parameter(ParameterIn::Header, "Idempotency-Key", schema, about)
        .example(Some(json!(A_KEY)))
        .build()
}

pub fn end_user() -> Parameter {
    let about = "The end user on whose behalf the tenant's server asks, 1 to 255 characters in UTF-8. A \
        conversation belongs to the one who began it, and does not exist for another.";
    let schema = text().pattern(Some(SUBJECT_PATTERN)).build();
    head("X-End-User", schema, about)
}

pub fn prefer() -> Parameter {
    let about = "`wait=N`: wait up to N seconds (at most 900) for a run in progress in place of its 409. \
        Other preferences are passed over.";
    let prefer = parameter(ParameterIn::Header, "Prefer", text().build(), about);
    prefer.example(Some(json!("wait=30"))).build()
}

pub fn last_event_id() -> Parameter {
    let about = "The `id` of the last event that arrived; the stream goes on behind it. Any other text gets \
        `restarted` and the stream from its start.";
    head("Last-Event-ID", text().build(), about)
}

pub fn traceparent() -> Parameter {
    let about =
        "The span (W3C Trace Context) that this request is a part of; what is none is passed over.";
    head("traceparent", text().build(), about)
}

/// A header of an answer.
pub fn header(schema: impl Into<Schema>, about: &str) -> Header {
    HeaderBuilder::new().schema(Some(schema.into())).description(Some(about)).build()
}

/// A response, with what every response says.
pub fn response(about: &str) -> ResponseBuilder {
    let id = header(uuid().build(), "The id of this request, in every log line of it.");
    ResponseBuilder::new().description(about).header("X-Request-Id", id)
}

/// Headers of a verdict, which may be told again, under a key that the service may have made.
pub fn verdict_headers(response: ResponseBuilder) -> ResponseBuilder {
    let yes = text().enum_values(Some(["true"])).build();
    response
        .header(
            "Idempotency-Replayed",
            header(yes, "There where an earlier run's verdict is told again."),
        )
        .header("X-Idempotent-Replay", header(uuid().build(), "The run that came to it."))
}

/// Headers of every answer to an arrival that had an operation to ask about.
pub fn arrival_headers(response: ResponseBuilder) -> ResponseBuilder {
    let sources = text().enum_values(Some(["derived", "absent"])).build();
    let applied = text().pattern(Some("^wait=[0-9]+$")).build();
    response
        .header("Idempotency-Key", header(key_schema(), "The key, where the service made it."))
        .header("Idempotency-Key-Source", header(sources, "How it was made."))
        .header("Preference-Applied", header(applied, "The wait that was given."))
}

/// Headers of a stream.
pub fn stream_headers(response: ResponseBuilder) -> ResponseBuilder {
    let about = "Of a stream: nothing on the way is to hold back what it says.";
    no_store(response).header("X-Accel-Buffering", header(text().build(), about))
}

/// The response to whoever comes back to a stream that is over.
pub fn over() -> ResponseBuilder {
    no_store(response(
        "To a reader that names the last event: nothing can follow it. A browser's `EventSource` stops at \
        that, and at nothing else.",
    ))
}

fn no_store(response: ResponseBuilder) -> ResponseBuilder {
    let about = "Of a stream: nothing on the way is to keep what it says.";
    response.header("Cache-Control", header(text().enum_values(Some(["no-store"])).build(), about))
}

/// What one event of a stream is.
pub fn stream_event() -> Object {
    let names = ["started", "delta", "progress", "completed", "failed", "restarted"];
    let id = text().pattern(Some("^[0-9]+-r?[0-9]+$")).description(Some(
        "To come back with in `Last-Event-ID`: the fence of the run, and its place in what that said.",
    ));
    let data = text().content_media_type(JSON).description(Some("On one line."));
    let example = json!({"id": "1-2", "event": "delta", "data": "{\"text\":\"Not yet.\"}"});
    ObjectBuilder::new()
        .description(Some("One server-sent event."))
        .property("event", text().enum_values(Some(names)))
        .property("id", id)
        .property("data", data)
        .required("event")
        .required("data")
        .examples([example])
        .build()
}

/// The body of a stream. Its schema is that of each event.
pub fn stream() -> Content {
    Content::new(Some(Ref::from_schema_name("StreamEvent")))
}

/// A body of this type.
pub fn of<T: ToSchema>() -> ContentBuilder {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name())))
}

/// A body that is text of some form.
pub fn plain() -> Content {
    Content::new(Some(text().build()))
}

pub fn example(content: ContentBuilder, example: Value) -> Content {
    content.example(Some(example)).build()
}

/// An operation that begins with these.
pub fn operation(id: &str, tag: &str, summary: &str, about: &str) -> OperationBuilder {
    OperationBuilder::new()
        .operation_id(Some(id))
        .tag(tag)
        .summary(Some(summary))
        .description(Some(about))
}
