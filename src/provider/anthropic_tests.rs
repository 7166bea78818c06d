//! What is sent to Anthropic's interface.

use super::*;
use crate::domain::prompt::{Message, Parameters, Role};
use std::sync::Arc;

#[test]
fn the_body_on_the_wire() {
    let message = |role, content: &str| Message { role, content: content.into() };
    let mut request = CallRequest {
        upstream: "claude".to_owned(),
        system: "Be kind.".into(),
        messages: [message(Role::User, "Hi"), message(Role::Assistant, "Ho")].into(),
        images: [].into(),
        tool: None,
        max_tokens: 5,
        temperature: Some(0.5),
        left_out: Parameters::NONE,
    };
    let sent: Value = serde_json::from_slice(&body(&request)).unwrap();
    let messages = serde_json::json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"},
    ]);
    let expected = serde_json::json!({
        "model": "claude", "max_tokens": 5, "temperature": 0.5, "stream": true,
        "system": "Be kind.", "messages": messages,
    });
    assert_eq!(sent, expected);

    request.system = "".into();
    request.temperature = None;
    let sent: Value = serde_json::from_slice(&body(&request)).unwrap();
    let expected = serde_json::json!({
        "model": "claude", "max_tokens": 5, "stream": true, "messages": messages,
    });
    assert_eq!(sent, expected);
}

fn parse_request() -> CallRequest {
    let schema = r#"{"type": "object", "properties": {"b": {}, "a": {}}}"#.to_owned();
    let tool = Tool {
        name: "save".to_owned(),
        description: "Saves.".to_owned(),
        schema: RawValue::from_string(schema).unwrap(),
    };
    CallRequest {
        upstream: "claude".to_owned(),
        system: "Be kind.".into(),
        messages: [Message { role: Role::User, content: "Read.".into() }].into(),
        images: [].into(),
        tool: Some(Arc::new(tool)),
        max_tokens: 5,
        temperature: None,
        left_out: Parameters::NONE,
    }
}

/// Members in this order and none more: what was sent before there were tools.
#[test]
fn a_chat_is_sent_byte_for_byte_as_ever() {
    let chat = CallRequest { tool: None, temperature: Some(0.5), ..parse_request() };
    let expected = concat!(
        r#"{"model":"claude","max_tokens":5,"system":"Be kind.","#,
        r#""messages":[{"role":"user","content":"Read."}],"temperature":0.5,"stream":true}"#,
    );
    assert_eq!(String::from_utf8(body(&chat)).unwrap(), expected);
}

#[test]
fn a_tool_is_pinned_and_its_schema_sent_as_it_was_written() {
    let sent = String::from_utf8(body(&parse_request())).unwrap();
    assert!(sent.contains(r#""properties": {"b": {}, "a": {}}"#), "{sent}");
    let sent: Value = serde_json::from_str(&sent).unwrap();
    let schema = serde_json::json!({"type": "object", "properties": {"a": {}, "b": {}}});
    let tool = serde_json::json!({
        "name": "save", "description": "Saves.", "input_schema": schema, "eager_input_streaming": true,
    });
    assert_eq!(sent["tools"], serde_json::json!([tool]));
    let choice =
        serde_json::json!({"type": "tool", "name": "save", "disable_parallel_tool_use": true});
    assert_eq!(sent["tool_choice"], choice);
}

#[test]
fn pictures_stand_before_the_text_of_the_last_message() {
    let image = |bytes: &'static [u8]| PromptImage {
        media_type: "image/png".to_owned(),
        bytes: bytes.into(),
    };
    let images = [image(b"\xff\xfe\xfd"), image(b"")].into();
    let earlier = Message { role: Role::User, content: "Look.".into() };
    let last = |content: &str| Message { role: Role::User, content: content.into() };
    let request =
        CallRequest { images, messages: [earlier, last("Read.")].into(), ..parse_request() };
    let sent: Value = serde_json::from_slice(&body(&request)).unwrap();
    let picture = |data: &str| {
        let source = serde_json::json!({"type": "base64", "media_type": "image/png", "data": data});
        serde_json::json!({"type": "image", "source": source})
    };
    assert_eq!(sent["messages"][0]["content"], "Look.");
    let text = serde_json::json!({"type": "text", "text": "Read."});
    let parts = serde_json::json!([picture("//79"), picture(""), text]);
    assert_eq!(sent["messages"][1]["content"], parts);

    let alone = CallRequest { messages: [last(" ")].into(), ..request };
    let sent: Value = serde_json::from_slice(&body(&alone)).unwrap();
    assert_eq!(sent["messages"][0]["content"].as_array().unwrap().len(), 2, "no empty text");
}

#[test]
fn pieces_of_the_input_hold_the_idle_deadline_off_and_empty_ones_do_not() {
    let mut text = String::new();
    let mut on_delta = |piece: &str| text.push_str(piece);
    let mut answer = AnswerText::new(100, &mut on_delta);
    let mut reading = MessageReading { tool: true, ..MessageReading::default() };
    let mut progress = |event: Value| reading.event(&event, &mut answer).unwrap();
    let piece = |text: &str| {
        let delta = serde_json::json!({"type": "input_json_delta", "partial_json": text});
        serde_json::json!({"type": "content_block_delta", "delta": delta})
    };
    let begun = serde_json::json!({
        "type": "content_block_start", "content_block": {"type": "tool_use", "input": {}},
    });
    assert_eq!(progress(begun), Progress::Content);
    assert_eq!(progress(piece("")), Progress::Nothing);
    assert_eq!(progress(piece("{")), Progress::Content);
    assert_eq!(progress(serde_json::json!({"type": "ping"})), Progress::Nothing);
    assert_eq!(progress(piece("}")), Progress::Content);
    assert_eq!(text, "{}");
}
