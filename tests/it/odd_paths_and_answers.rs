//! Paths and methods that are not there, and characters in an answer that no database takes.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::bad_input::{Scene, is_problem};
use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Reply, ScriptedProvider, Wire};

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_methods_that_are_not_there_say_so_in_the_same_shape() {
    let scene = Scene::start().await;
    let client = &scene.client;
    let ask =
        async |method: &str, path: &str| client.send(client.request(method, path)).await.unwrap();
    for path in
        ["/", "/v1", "/v1/", "/v1/nope", "/v1/chat/", "/V1/chat", "/v1/requests", "/v1/requests/"]
    {
        for method in ["GET", "POST", "DELETE"] {
            is_problem(&ask(method, path).await, 404, "not_found");
        }
    }
    for (method, path, allowed) in [
        ("GET", "/v1/chat", "POST"),
        ("PUT", "/v1/chat", "POST"),
        ("OPTIONS", "/v1/chat", "POST"),
        ("BREW", "/v1/chat", "POST"),
        ("DELETE", "/v1/requests/k", "GET"),
        ("GET", "/v1/requests/k/cancel", "POST"),
        ("GET", "/v1/conversations/c1", "DELETE"),
        ("POST", "/v1/conversations/c1/turns", "GET"),
        ("POST", "/healthz", "GET"),
        ("DELETE", "/metrics", "GET"),
    ] {
        let answer = ask(method, path).await;
        is_problem(&answer, 405, "method_not_allowed");
        let allow = answer.header("allow").unwrap_or_default();
        assert!(allow.contains(allowed), "{method} {path}: allow {allow:?}");
    }
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/v1/chat", 405), ("/nope", 404)] {
        let answer = ask("HEAD", path).await;
        assert_eq!((answer.status, answer.bytes.len()), (status, 0), "{path}");
        assert!(answer.header("x-request-id").is_some());
    }
    for path in
        ["/v1/requests/%FF", "/v1/requests/a%2Cb", "/v1/requests/a%20b", "/v1/requests/%22open"]
    {
        is_problem(&ask("GET", path).await, 400, "idempotency_key_invalid");
    }
    for query in
        ["limit=0", "limit=1001", "limit=x", "limit=", "after=-1", "after=1&after=2", "page=1"]
    {
        let answer = ask("GET", &format!("/v1/conversations/c1/turns?{query}")).await;
        is_problem(&answer, 400, "invalid_request");
    }
    is_problem(&ask("GET", "/v1/conversations/%FF/turns").await, 400, "invalid_request");
    for path in ["/v1/conversations/%00/turns", "/v1/conversations/none/turns", "/v1/requests/none"]
    {
        is_problem(&ask("GET", path).await, 404, "not_found");
    }
    scene.assert_nothing_happened().await;
    scene.end().await;
}

/// One content delta of this raw JSON string, in the form of either vendor.
fn answer_with(wire: Wire, json_string: &str) -> Reply {
    let events = match wire {
        Wire::Anthropic => format!(
            "event: message_start\ndata: {}\n\n\
             event: content_block_start\ndata: {}\n\n\
             event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":{json_string}}}}}\n\n\
             event: content_block_stop\ndata: {}\n\n\
             event: message_delta\ndata: {}\n\n\
             event: message_stop\ndata: {}\n\n",
            json!({"type": "message_start", "message": {"id": "m", "type": "message",
                "role": "assistant", "model": "fake-model-1", "content": [], "stop_reason": null,
                "usage": {"input_tokens": 3, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 5}}),
            json!({"type": "message_stop"}),
        ),
        Wire::OpenAi => format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":{json_string}}},\"finish_reason\":null}}]}}\n\n\
             data: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
            json!({"id": "c", "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
            json!({"id": "c", "object": "chat.completion.chunk", "choices": [],
                "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}),
        ),
    };
    Reply::events(events)
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_that_no_database_takes_are_cleaned_from_an_answer_before_they_cost_it() {
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let variables = crate::support::node::provider_variables(&provider, wire);
        let node = TestNode::start_with(&database, variables, NodeOptions::default()).await;
        let client = node.client("t1").await;
        let cases = [
            (r#""a\u0000b""#, "a\u{FFFD}b"),
            (r#""tea \ud83d""#, "tea \u{FFFD}"),
            (r#""\ude00 tea""#, "\u{FFFD} tea"),
            (r#""tea \ud83e\udd73""#, "tea \u{1F973}"),
            (r#""type \\u0000 and \\ud83d""#, r"type \u0000 and \ud83d"),
            (r#""\u0001\u001f\u007f\ufffe\uffff""#, "\u{1}\u{1f}\u{7f}\u{fffe}\u{ffff}"),
        ];
        for (number, (sent, stored)) in cases.into_iter().enumerate() {
            provider.reply(answer_with(wire, sent));
            let (key, conversation) = (Uuid::new_v4(), format!("c{number}"));
            let answer = client.chat(key, &conversation, "hello").await;
            assert_eq!(answer.content(), stored, "{sent}");
            assert_eq!(client.chat(key, &conversation, "hello").await.bytes, answer.bytes);
            let turns = client.get(&format!("/v1/conversations/{conversation}/turns")).await.json();
            assert_eq!(turns["turns"][1]["content"], Value::from(stored), "{sent}");
            assert_eq!(provider.count(), number + 1, "{sent} is paid for once");
        }
        let all = i64::try_from(cases.len()).unwrap();
        assert_eq!(database.outcomes().await, (all, all, all));
        assert_clean(node.store()).await;
        assert!(node.shut_down().await);
    }
}
