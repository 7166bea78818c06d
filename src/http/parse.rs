//! `POST /v1/parse`: a text as JSON, a file in a form, or a file as it is.
//!
//! What a file is, its bytes decide; its name and the type it is sent under are not looked at.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use multer::Multipart;
use url::form_urlencoded;

use super::answer::ProblemResponse;
use super::running::Asking;
use super::{Http, body};
use crate::domain::ids::RequestId;
use crate::domain::parse::{InvalidParse, JsonRequest, ParseRequest};
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::request::RunRequest;

/// The field of a form that holds the file.
const FILE: &str = "file";
/// Fields of a form beside the file: there are fewer options than that.
const MAX_FIELDS: usize = 16;

/// How the input is sent.
enum Form {
    Json,
    Multipart { boundary: String },
    File,
}

impl Form {
    fn of(headers: &HeaderMap) -> Result<Form, String> {
        let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(Form::File) };
        let text = value.to_str().unwrap_or_default();
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        Ok(match essence.as_str() {
            "application/json" => Form::Json,
            "multipart/form-data" => {
                let boundary = multer::parse_boundary(text)
                    .map_err(|_| "multipart/form-data needs a boundary.".to_owned())?;
                Form::Multipart { boundary }
            }
            _ => Form::File,
        })
    }
}

/// Runs a parse, or answers from what is there.
pub async fn post_parse(
    State(http): State<Http>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ProblemResponse> {
    let (asking, request) = Asking::of(&http, id, request).await?;
    let invalid = |text: String| Problem::new(ErrorCode::InvalidRequest, id, text);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let form = Form::of(request.headers()).map_err(invalid)?;
    if !matches!(form, Form::File) && !query.is_empty() {
        let detail = "Options stand in the body; the query is for those of a file sent as it is.";
        return Err(invalid(detail.to_owned()).into());
    }
    let parse = match form {
        Form::Json => {
            let text = body::json_text(&http, request, id).await?;
            match ParseRequest::read_json(&text).map_err(|error| invalid(error.to_string()))? {
                JsonRequest::Ready(request) => request,
                JsonRequest::Stored(request) => {
                    let caller = &asking.caller;
                    let (tenant, subject) = (caller.bearer.tenant.clone(), caller.subject.clone());
                    let operations = &http.operations;
                    let input =
                        operations.stored_input(id, tenant, subject, request.capture).await?;
                    request.with(input)
                }
            }
        }
        Form::Multipart { boundary } => {
            let bytes = body::bytes(&http, request, id).await?;
            fields(bytes, boundary).await.map_err(|error| invalid(error.to_string()))?
        }
        Form::File => {
            let bytes = body::bytes(&http, request, id).await?;
            let options = form_urlencoded::parse(query.as_bytes());
            ParseRequest::from_options(options, bytes)
                .map_err(|error| invalid(error.to_string()))?
        }
    };
    let stream = parse.stream;
    Ok(asking.answer(&http, RunRequest::Parse(Arc::new(parse)), stream).await)
}

/// The fields of a form: the file, and options beside it.
async fn fields(bytes: Bytes, boundary: String) -> Result<ParseRequest, InvalidParse> {
    let wrong = |error: multer::Error| InvalidParse(format!("The form cannot be read: {error}."));
    let whole = stream::iter([Ok::<_, std::convert::Infallible>(bytes)]);
    let mut form = Multipart::new(whole, boundary);
    let (mut file, mut options) = (None, Vec::new());
    while let Some(field) = form.next_field().await.map_err(wrong)? {
        let Some(name) = field.name().map(str::to_owned) else {
            return Err(InvalidParse("A field of the form has no name.".to_owned()));
        };
        if name == FILE {
            if file.replace(field.bytes().await.map_err(wrong)?).is_some() {
                return Err(InvalidParse("The form holds more than one file.".to_owned()));
            }
            continue;
        }
        if options.len() == MAX_FIELDS {
            return Err(InvalidParse("The form has too many fields.".to_owned()));
        }
        let value = field.bytes().await.map_err(wrong)?;
        let value = String::from_utf8(value.into())
            .map_err(|_| InvalidParse(format!("The field {name:?} is not UTF-8.")))?;
        options.push((name, value));
    }
    let file = file.ok_or_else(|| InvalidParse("The form has no field named file.".to_owned()))?;
    ParseRequest::from_options(options, file)
}
