//! Vendors' error objects, in the shapes that they and the gateways before them send.

use serde_json::Value;

use super::text::{parse_json, snippet};
use crate::domain::failure::VendorError;

/// What is read of the body of a refusal; the rest of it tells nothing more.
pub(super) const MAX_ERROR_BYTES: usize = 64 * 1024;
/// What is kept of each text of an error.
const MAX_TEXT_BYTES: usize = 2 * 1024;

/// The error in the body of a refusal, and whether the body is a page for people.
pub(super) fn from_body(content_type: &str, body: &[u8]) -> (bool, VendorError) {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if let Some(error) = parse_json(text).ok().as_ref().and_then(from_json) {
        return (false, error);
    }
    let html = content_type.starts_with("text/html") || text.starts_with('<');
    let detail = (!text.is_empty()).then(|| snippet(text, MAX_TEXT_BYTES));
    (html, VendorError { detail, ..VendorError::default() })
}

/// The error in a JSON body or event; `None` where it holds none.
///
/// Known shapes: `{"error": {…}}`, with or without `"type": "error"` around it, `{"error": "text"}`,
/// `{"type": "error", "message": …}`, `{"message": …}`, `{"detail": …}`, and a list of one of them.
pub(super) fn from_json(value: &Value) -> Option<VendorError> {
    let value = match value {
        Value::Array(list) => list.first()?,
        value => value,
    };
    match &value["error"] {
        Value::Object(_) => Some(from_object(&value["error"])),
        Value::String(message) if !message.is_empty() => Some(VendorError {
            message: Some(snippet(message, MAX_TEXT_BYTES)),
            code: word(&value["code"]),
            ..VendorError::default()
        }),
        // An empty text, or no text at all, is a field that says there is no error.
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            let told = ["message", "detail"].iter().any(|name| value[name].is_string());
            (told || value["type"] == "error").then(|| from_object(value))
        }
    }
}

fn from_object(error: &Value) -> VendorError {
    VendorError {
        kind: word(&error["type"]).or_else(|| word(&error["status"])),
        code: word(&error["code"]),
        message: word(&error["message"]).or_else(|| word(&error["detail"])),
        param: word(&error["param"]),
        // What a gateway got from the provider behind it.
        detail: word(&error["metadata"]["raw"]),
    }
}

fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(snippet(text, MAX_TEXT_BYTES)),
        Value::Number(number) => Some(number.to_string()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(body: &str) -> VendorError {
        let (html, error) = from_body("application/json", body.as_bytes());
        assert!(!html);
        error
    }

    #[test]
    fn the_shapes_of_an_error() {
        let error = decoded(r#"{"type":"error","error":{"type":"api_error","message":"m"}}"#);
        assert_eq!(error.kind.as_deref(), Some("api_error"));
        assert_eq!(error.message.as_deref(), Some("m"));
        let error = decoded(r#"{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}"#);
        assert_eq!(error.kind.as_deref(), Some("INVALID_ARGUMENT"));
        assert_eq!(error.code.as_deref(), Some("400"));
        let error = decoded(r#"[{"error":{"code":429,"message":"m"}}]"#);
        assert_eq!(error.code.as_deref(), Some("429"));
        assert_eq!(decoded(r#"{"error":"no"}"#).message.as_deref(), Some("no"));
        assert_eq!(decoded(r#"{"message":"no"}"#).message.as_deref(), Some("no"));
        assert_eq!(decoded(r#"{"detail":"no"}"#).message.as_deref(), Some("no"));
        let gateway = r#"{"error":{"code":400,"metadata":{"raw":"prompt is too long"}}}"#;
        assert_eq!(decoded(gateway).detail.as_deref(), Some("prompt is too long"));
        let param = r#"{"error":{"message":"m","param":"temperature","code":null}}"#;
        assert_eq!(decoded(param).param.as_deref(), Some("temperature"));
    }

    /// What is JSON is somebody's answer to the request, and no page of a box in between.
    #[test]
    fn json_of_another_shape_or_too_long_to_be_read_whole_is_the_vendors_own_words() {
        let list = r#"{"detail":[{"loc":["body","messages"],"msg":"Field required"}]}"#;
        let error = decoded(list);
        assert!(error.is_json() && error.detail.unwrap().contains("Field required"));
        assert!(decoded(r#"{"errors": ["no"]}"#).is_json());
        let echo = "x".repeat(2 * MAX_ERROR_BYTES);
        let long = format!(r#"{{"error":{{"type":"invalid_request_error","message":"{echo}"}}}}"#);
        let error = decoded(&long[..MAX_ERROR_BYTES]);
        assert!(error.is_json() && error.detail.unwrap().contains("invalid_request_error"));
        for other in ["", "null", "Bad Request", "upstream: {}"] {
            assert!(!decoded(other).is_json(), "{other}");
        }
    }

    #[test]
    fn what_holds_no_error() {
        assert_eq!(from_json(&serde_json::json!({"error": null, "id": "x"})), None);
        assert_eq!(from_json(&serde_json::json!({"error": "", "choices": []})), None);
        assert_eq!(from_json(&serde_json::json!("text")), None);
        assert_eq!(from_json(&serde_json::json!([])), None);
    }

    #[test]
    fn bodies_that_are_no_json_keep_a_bounded_piece() {
        let (html, error) = from_body("text/html; charset=utf-8", b"<html>413</html>");
        assert!(html && !error.is_json());
        assert_eq!(error.detail.as_deref(), Some("<html>413</html>"));
        let (html, error) = from_body("", b"upstream connect error");
        assert!(!html && !error.is_json());
        assert!(error.detail.is_some());
        let (_, error) = from_body("", &vec![b'x'; MAX_ERROR_BYTES]);
        assert_eq!(error.detail.map(|text| text.len()), Some(MAX_TEXT_BYTES));
        let (_, error) = from_body("", b"\xff\xfe");
        assert!(error.detail.is_some());
        assert_eq!(from_body("", b" "), (false, VendorError::default()));
    }
}
