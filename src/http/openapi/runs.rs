//! `POST /v1/chat` and `POST /v1/parse`.

use serde_json::json;
use utoipa::IntoParams;
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Content, ContentBuilder, HttpMethod, PathItem, Required};

use super::parts::{
    EVENT_STREAM, JSON, arrival_headers, binary, end_user, example, idempotency_key, last_event_id,
    of, operation, over, prefer, response, stream, stream_headers, text, traceparent,
    verdict_headers,
};
use super::problems;
use crate::domain::chat::ChatBody;
use crate::domain::parse::{JsonBody, Options};
use crate::domain::problem::ErrorCode;
use crate::operation::{ChatAnswer, ParseAnswer};

pub const TAG: &str = "operations";

const RUN: &str = "0198c9a2-7d3e-7c61-9a57-3c6f2d1e8b91";

/// What a stream says; of chats and parses alike.
pub const EVENTS: &str = "Server-sent events, each with an `id` to come back with in `Last-Event-ID`:\n\n\
    - `started` `{\"request_id\"}`: at the claim\n\
    - `delta` `{\"text\"}`: of a chat, as the model speaks\n\
    - `progress` `{\"chunks_done\", \"chunks\"}`: of a parse\n\
    - `completed`: the JSON of the plain answer; after the commit, never before\n\
    - `failed`: the problem, with `retryable`; in place of `completed`\n\
    - `restarted` `{\"request_id\"}`: forget the text so far, the stream follows from its start\n\n\
    A comment line comes at least every 15 s.";

pub fn chat() -> PathItem {
    let about = "Asks the model with the whole conversation so far. Question and answer become two turns of \
        it when the answer is there, in one transaction with what it cost. Role `client`.";
    let usage = json!({
        "input_tokens": 20, "output_tokens": 5, "cache_read_tokens": 0, "cache_write_tokens": 0
    });
    let answer = json!({
        "request_id": RUN, "conversation_id": "c-17", "turn_id": "0198c9a2-7d3e-7c61-9a57-3c6f2d1e8b92",
        "message": {"role": "assistant", "content": "Not yet."}, "model": "default",
        "stop_reason": "end", "usage": usage,
    });
    let question = json!({"conversation_id": "c-17", "message": "Is it boiling?"});
    let body = RequestBodyBuilder::new()
        .content(JSON, example(of::<ChatBody<'static>>(), question))
        .required(Some(Required::True))
        .build();
    let chat =
        operation("chat", TAG, "Say something in a conversation", about).request_body(Some(body));
    let chat = answered(heads(chat), example(of::<ChatAnswer<'static>>(), answer));
    PathItem::new(HttpMethod::Post, problems::of_run(chat, &[ErrorCode::ConversationBusy]))
}

pub fn parse() -> PathItem {
    let about = "Turns a document into a structured result: by default a script into its title, its \
        characters and its dialogue. What a file is, its bytes say: PDF, PNG, JPEG, WebP or text, whatever \
        its name and its content type; any other content type than the JSON and the form is taken for the \
        file as it is. The options stand in the query only beside a file that is sent as it is. Role \
        `client`.";
    let usage = json!({
        "input_tokens": 812, "output_tokens": 64, "cache_read_tokens": 0, "cache_write_tokens": 0
    });
    let result = json!({
        "title": null, "characters": ["MARA"],
        "dialogue": [{"character": "MARA", "line": "Is it boiling?"}],
    });
    let answer = json!({"request_id": RUN, "result": result, "gaps": [], "usage": usage});
    let mut parse =
        operation("parse", TAG, "Parse a document", about).request_body(Some(document()));
    for option in options() {
        parse = parse.parameter(option);
    }
    let parse = answered(heads(parse), example(of::<ParseAnswer<'static>>(), answer));
    let own = [ErrorCode::NothingFound, ErrorCode::UnreadableInput];
    PathItem::new(HttpMethod::Post, problems::of_run(parse, &own))
}

fn heads(operation: OperationBuilder) -> OperationBuilder {
    operation
        .parameter(idempotency_key())
        .parameter(end_user())
        .parameter(prefer())
        .parameter(last_event_id())
        .parameter(traceparent())
}

/// The answer in both of its forms.
fn answered(operation: OperationBuilder, answer: Content) -> OperationBuilder {
    let told = "The stored verdict, the same bytes for every repeat; or, where a stream was asked for, events \
        until there is one. A stream answers 200 from the claim on, and its end says how it went.";
    let about = format!("{told}\n\n{EVENTS}");
    let response = response(&about).content(JSON, answer).content(EVENT_STREAM, stream());
    let response = stream_headers(arrival_headers(verdict_headers(response)));
    operation.response("200", response).response("204", arrival_headers(verdict_headers(over())))
}

/// The options as query parameters.
fn options() -> Vec<Parameter> {
    let read = Options::into_params(|| Some(ParameterIn::Query));
    read.into_iter()
        .map(|option| if option.name == "metadata" { as_json(option) } else { option })
        .collect()
}

/// An object that stands in a query as its JSON text.
fn as_json(parameter: Parameter) -> Parameter {
    let content = Content::new(parameter.schema.clone());
    ParameterBuilder::from(parameter)
        .schema(None::<utoipa::openapi::Schema>)
        .content(JSON, content)
        .build()
}

/// The input in its three forms.
fn document() -> RequestBody {
    let text_form = json!({"text": "MARA: Is it boiling?"});
    let mut form = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("file", binary().description(Some("PDF, PNG, JPEG, WebP or text.")))
        .required("file");
    for option in Options::into_params(|| None) {
        if let Some(schema) = option.schema {
            form = form.property(option.name, schema);
        }
    }
    let form = form.additional_properties(Some(
        utoipa::openapi::schema::AdditionalProperties::FreeForm(false),
    ));
    let mut body = RequestBodyBuilder::new()
        .description(Some("A text as JSON, a file in a form, or a file as it is."))
        .required(Some(Required::True))
        .content(JSON, example(of::<JsonBody<'static>>(), text_form))
        .content("multipart/form-data", Content::new(Some(form)))
        .content(
            "text/plain",
            ContentBuilder::new()
                .schema(Some(text()))
                .example(Some(json!("MARA: Is it boiling?")))
                .build(),
        );
    for kind in
        ["application/pdf", "image/png", "image/jpeg", "image/webp", "application/octet-stream"]
    {
        body = body.content(kind, Content::new(Some(binary())));
    }
    body.build()
}
