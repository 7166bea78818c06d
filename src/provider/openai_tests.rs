//! What is sent to those who speak OpenAI's form.

use super::*;
use crate::domain::prompt::{Message, Parameters, Role};
use std::sync::Arc;

#[test]
fn the_limit_has_the_name_that_the_host_knows() {
    for (host, name) in [
        ("api.openai.com", LimitName::MaxCompletionTokens),
        ("openai.com", LimitName::MaxCompletionTokens),
        ("eu.api.openai.com", LimitName::MaxCompletionTokens),
        ("mine.openai.azure.com", LimitName::MaxCompletionTokens),
        ("notopenai.com", LimitName::MaxTokens),
        ("openai.com.example", LimitName::MaxTokens),
        ("localhost", LimitName::MaxTokens),
        ("", LimitName::MaxTokens),
    ] {
        assert_eq!(LimitName::of_host(host), name, "{host}");
    }
}

#[test]
fn the_body_on_the_wire() {
    let user = Message { role: Role::User, content: "Hi".into() };
    let mut request = CallRequest {
        upstream: "gpt".to_owned(),
        system: "Be kind.".into(),
        messages: [user].into(),
        images: [].into(),
        tool: None,
        max_tokens: 5,
        temperature: Some(0.5),
        left_out: Parameters::NONE,
    };
    let sent: Value =
        serde_json::from_slice(&body(&request, LimitName::MaxCompletionTokens)).unwrap();
    let expected = serde_json::json!({
        "model": "gpt", "max_completion_tokens": 5, "temperature": 0.5, "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
        ],
    });
    assert_eq!(sent, expected);

    request.system = "".into();
    request.temperature = None;
    let sent: Value = serde_json::from_slice(&body(&request, LimitName::MaxTokens)).unwrap();
    let expected = serde_json::json!({
        "model": "gpt", "max_tokens": 5, "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Hi"}],
    });
    assert_eq!(sent, expected);
}

#[test]
fn what_a_model_refused_is_left_out_and_a_limit_takes_its_other_name() {
    let user = Message { role: Role::User, content: "Hi".into() };
    let left_out = [Parameter::Temperature, Parameter::StreamOptions, Parameter::MaxTokens]
        .into_iter()
        .fold(Parameters::NONE, Parameters::with);
    let request = CallRequest {
        upstream: "gpt".to_owned(),
        system: "".into(),
        messages: [user].into(),
        images: [].into(),
        tool: None,
        max_tokens: 5,
        temperature: Some(0.5),
        left_out,
    };
    let sent: Value = serde_json::from_slice(&body(&request, LimitName::MaxTokens)).unwrap();
    let expected = serde_json::json!({
        "model": "gpt", "max_completion_tokens": 5, "stream": true,
        "messages": [{"role": "user", "content": "Hi"}],
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
    let image = PromptImage {
        media_type: "image/png".to_owned(),
        bytes: b"\xff\xfe\xfd".as_slice().into(),
    };
    CallRequest {
        upstream: "gpt".to_owned(),
        system: "Be kind.".into(),
        messages: [Message { role: Role::User, content: "Read.".into() }].into(),
        images: [image].into(),
        tool: Some(Arc::new(tool)),
        max_tokens: 5,
        temperature: Some(0.5),
        left_out: Parameters::NONE,
    }
}

/// Members in this order and none more: what was sent before there were tools.
#[test]
fn a_chat_is_sent_byte_for_byte_as_ever() {
    let chat = CallRequest { tool: None, images: [].into(), ..parse_request() };
    let expected = concat!(
        r#"{"model":"gpt","messages":[{"role":"system","content":"Be kind."},"#,
        r#"{"role":"user","content":"Read."}],"max_tokens":5,"temperature":0.5,"stream":true,"#,
        r#""stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(String::from_utf8(body(&chat, LimitName::MaxTokens)).unwrap(), expected);
}

#[test]
fn a_tool_is_pinned_and_pictures_stand_before_the_text() {
    let sent = String::from_utf8(body(&parse_request(), LimitName::MaxTokens)).unwrap();
    assert!(sent.contains(r#""properties": {"b": {}, "a": {}}"#), "{sent}");
    let sent: Value = serde_json::from_str(&sent).unwrap();
    let schema = serde_json::json!({"type": "object", "properties": {"a": {}, "b": {}}});
    let function =
        serde_json::json!({"name": "save", "description": "Saves.", "parameters": schema});
    assert_eq!(sent["tools"], serde_json::json!([{"type": "function", "function": function}]));
    let choice = serde_json::json!({"type": "function", "function": {"name": "save"}});
    assert_eq!(sent["tool_choice"], choice);
    let picture = serde_json::json!({
        "type": "image_url", "image_url": {"url": "data:image/png;base64,//79"},
    });
    let text = serde_json::json!({"type": "text", "text": "Read."});
    assert_eq!(sent["messages"][1]["content"], serde_json::json!([picture, text]));
    assert_eq!(sent["messages"][0]["content"], "Be kind.");
}
