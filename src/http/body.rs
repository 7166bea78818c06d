//! Reading a body: bounded in size and in time, decompressed, and text.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, Entry};
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::Http;
use super::answer::ProblemResponse;
use crate::domain::ids::RequestId;
use crate::domain::problem::{ErrorCode, Problem};

/// A body that takes longer holds a connection for nothing.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const BOM: char = '\u{FEFF}';

/// Writes the encoding's name as the layer behind reads it: it is a word in any letter case, and
/// `x-gzip` is its old form.
pub async fn name_encoding(mut request: Request) -> Request {
    if let Entry::Occupied(mut encoding) = request.headers_mut().entry(CONTENT_ENCODING) {
        let is_gzip = [&b"gzip"[..], b"x-gzip"]
            .iter()
            .any(|name| encoding.get().as_bytes().trim_ascii().eq_ignore_ascii_case(name));
        if is_gzip && encoding.iter().count() == 1 {
            encoding.insert(HeaderValue::from_static("gzip"));
        }
    }
    request
}

/// The bytes of a request, whatever they are.
pub async fn bytes(
    http: &Http,
    request: Request,
    request_id: RequestId,
) -> Result<Bytes, ProblemResponse> {
    expect_plain(request.headers(), request_id)?;
    read(http, request, request_id).await
}

/// The JSON text of a request.
pub async fn json_text(
    http: &Http,
    request: Request,
    request_id: RequestId,
) -> Result<String, ProblemResponse> {
    let problem = |code, detail: String| ProblemResponse(Problem::new(code, request_id, detail));
    expect_json(request.headers(), request_id)?;
    let bytes = read(http, request, request_id).await?;
    let text = String::from_utf8(bytes.into()).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        problem(ErrorCode::InvalidRequest, format!("The body is not UTF-8 at byte {place}."))
    })?;
    Ok(text.strip_prefix(BOM).map(str::to_owned).unwrap_or(text))
}

fn expect_json(headers: &HeaderMap, request_id: RequestId) -> Result<(), Problem> {
    match headers.get(CONTENT_TYPE).map(essence).as_deref() {
        None | Some("application/json") => expect_plain(headers, request_id),
        Some(_) => Err(Problem::new(
            ErrorCode::UnsupportedMediaType,
            request_id,
            "Send the body as application/json.",
        )),
    }
}

fn essence(value: &HeaderValue) -> String {
    let text = value.to_str().unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Refuses an encoding that is still there.
fn expect_plain(headers: &HeaderMap, request_id: RequestId) -> Result<(), Problem> {
    // The layer before has taken gzip off together with its header.
    match headers.get(CONTENT_ENCODING).map(essence).as_deref() {
        None | Some("identity") => Ok(()),
        Some(_) => Err(Problem::new(
            ErrorCode::UnsupportedMediaType,
            request_id,
            "Send the body as it is, or with Content-Encoding: gzip.",
        )),
    }
}

async fn read(http: &Http, request: Request, id: RequestId) -> Result<Bytes, ProblemResponse> {
    let problem = |code, detail: String| ProblemResponse(Problem::new(code, id, detail));
    let too_large = || {
        problem(
            ErrorCode::TooLarge,
            format!("The body is over the limit of {} bytes.", http.max_body),
        )
    };
    let announced = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > http.max_body as u64) {
        return Err(too_large());
    }
    let body: Body = request.into_body();
    let collected = http.clock.timeout(BODY_TIMEOUT, Limited::new(body, http.max_body).collect());
    match collected.await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if is_too_long(&*error) => Err(too_large()),
        Ok(Err(_)) => Err(problem(
            ErrorCode::InvalidRequest,
            "The body could not be read: it was cut short, or its encoding is broken.".into(),
        )),
        Err(_) => Err(problem(
            ErrorCode::InvalidRequest,
            format!("The body did not arrive within {} s.", BODY_TIMEOUT.as_secs()),
        )),
    }
}

fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<LengthLimitError>() {
            return true;
        }
        next = error.source();
    }
    false
}
