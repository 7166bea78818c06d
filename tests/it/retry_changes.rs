//! What a wait cannot cure is cured by a change: a rule that an answer broke is told to the model, a
//! parameter that it refuses is left out, a filtered answer goes down the ladder, a refused region goes
//! by another route. The same bytes are never sent twice after such a failure.

use std::collections::HashSet;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::node::{NodeOptions, TestNode, assert_clean, provider_variables};
use crate::support::provider::{Reply, Request, ScriptedProvider, Wire};
use crate::support::{Client, TestDatabase};

struct House {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    client: Client,
}

impl House {
    async fn with(wire: Wire, options: NodeOptions) -> House {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let variables = provider_variables(&provider, wire);
        let node = TestNode::start_with(&database, variables, options).await;
        let client = node.client("t1").await;
        House { database, provider, node, client }
    }

    async fn ask(&self, message: &str) -> Answer {
        self.client.chat(Uuid::new_v4(), "c1", message).await
    }

    /// What each kept call changed, in order.
    async fn changes(&self) -> Vec<String> {
        let sql = "select coalesce(string_agg(coalesce(changed, '-'), '; ' order by started_at, call_no), '')
            from provider_calls";
        let text = self.database.text(sql).await;
        text.split("; ").map(str::to_owned).collect()
    }

    async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await);
    }
}

/// No two requests that the provider got are the same.
fn assert_no_request_came_twice(provider: &ScriptedProvider) {
    let mut seen = HashSet::new();
    for Request { number, path, body, .. } in provider.requests() {
        assert!(seen.insert(format!("{path} {body}")), "request {number} came before");
    }
}

fn last_message(request: &Request) -> String {
    request.messages().last().unwrap().1.clone()
}

fn title(characters: usize) -> Reply {
    Reply::text(&"t".repeat(characters))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_title_of_63_characters_against_58_is_asked_for_once_more_with_both_numbers() {
    let rules = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__MAX_CHARS", "58");
    let house = House::with(Wire::Anthropic, rules).await;
    house.provider.reply(title(63));
    house.provider.reply(title(41));
    let answered = house.ask("A title for this, please.").await;
    assert_eq!((answered.status, answered.content()), (200, "t".repeat(41)));

    let requests = house.provider.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(last_message(&requests[0]), "A title for this, please.");
    let told = last_message(&requests[1]);
    assert!(told.starts_with("A title for this, please.") && told.contains("63 characters"));
    assert!(told.contains("at most 58"), "{told}");
    assert_eq!(requests[0].body.get("temperature"), None);
    assert_eq!(requests[1].body["temperature"], 0.5);
    // The wasted call is kept as what it was, at once, and is in no receipt.
    let wasted =
        "select count(*) from provider_calls where not counted and failure_kind = 'invalid'
        and status = 200 and waited_ms = 0 and output_tokens is not null";
    assert_eq!(house.database.count(wasted).await, 1);
    assert_eq!(house.database.outcomes().await, (1, 1, 1));
    assert_eq!(house.database.count("select provider_calls::bigint from usage_receipts").await, 1);
    assert_eq!(house.changes().await, ["-", "feedback, temperature 0.5"]);
    // The next turn's prompt holds what was said, and nothing of the correction.
    house.provider.reply(title(3));
    assert_eq!(house.ask("Another.").await.status, 200);
    let history = house.provider.requests()[2].messages();
    assert_eq!(history[0].1, "A title for this, please.");
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_keeps_the_rule_ends_within_its_calls_and_frees_the_key() {
    let rules = NodeOptions::default()
        .set("ONCEKEY_MODELS__DEFAULT__MUST_MATCH", "^[A-Z]")
        .set("ONCEKEY_MODELS__DEFAULT__TEMPERATURE", "false");
    let house = House::with(Wire::OpenAi, rules).await;
    house.provider.reply_times(4, &Reply::text("lower"));
    let key = Uuid::new_v4();
    let failed = house.client.chat(key, "c1", "hello").await;
    assert_eq!((failed.status, failed.error().as_str()), (502, "malformed_output"));
    assert_eq!(house.provider.count(), 4);
    assert_no_request_came_twice(&house.provider);
    assert!(house.provider.requests().iter().all(|it| it.body.get("temperature").is_none()));
    let standing = (1, 1, "failed".to_owned(), Some("invalid".to_owned()));
    assert_eq!(house.database.standing(key).await, standing);
    house.provider.reply(Reply::text("Upper"));
    assert_eq!(house.client.chat(key, "c1", "hello").await.content(), "Upper");
    house.end().await;
}

const SCHEMA: &str = r#"{"type": "object", "required": ["title"]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_change_before_the_retry_is_itself_refused_and_something_else_is_changed() {
    let rules = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__JSON_SCHEMA", SCHEMA);
    let house = House::with(Wire::Anthropic, rules).await;
    house.provider.reply_by(|request| match (request.number, request.body.get("temperature")) {
        (1, _) => Reply::text("Certainly! {\"title\":"),
        (_, Some(_)) => Reply::file("400_temperature_deprecated.json"),
        (_, None) => Reply::text("{\"title\": \"Ravens\"}"),
    });
    let answered = house.ask("hello").await;
    assert_eq!((answered.status, answered.content()), (200, "{\"title\": \"Ravens\"}".to_owned()));
    assert_eq!(house.provider.count(), 3);
    assert_no_request_came_twice(&house.provider);
    let third = &house.provider.requests()[2];
    assert!(last_message(third).contains("not valid JSON"), "{}", last_message(third));
    let changes = ["-", "feedback, temperature 0.5", "without temperature"];
    assert_eq!(house.changes().await, changes);
    assert_eq!(house.database.outcomes().await, (1, 1, 1));

    // Remembered for the model: no other operation meets the refusal.
    let body = json!({"conversation_id": "c2", "message": "hi", "options": {"temperature": 0.9}});
    let request = house.client.chat_request(Uuid::new_v4(), &body);
    assert_eq!(house.client.send(request).await.unwrap().status, 200);
    assert_eq!(house.provider.count(), 4);
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_a_model_knows_by_its_newer_name_is_sent_under_that() {
    let house = House::with(Wire::OpenAi, NodeOptions::default()).await;
    let refusal = json!({"error": {"type": "invalid_request_error", "param": "max_tokens",
        "code": "unsupported_parameter", "message": "Unsupported parameter: 'max_tokens' is not \
        supported with this model. Use 'max_completion_tokens' instead."}});
    house.provider.reply_by(move |request| match request.body.get("max_tokens") {
        Some(_) => Reply::status(400, &[("content-type", "application/json")], refusal.to_string()),
        None => Reply::normal(),
    });
    assert_eq!(house.ask("hello").await.status, 200);
    assert_eq!(house.ask("and again").await.status, 200);
    let sent = house.provider.requests();
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[2].body["max_completion_tokens"], sent[0].body["max_tokens"]);
    house.end().await;
}

/// A filter that stops an answer when some of it is out.
fn filtered_output() -> Reply {
    let error = json!({"error": {"type": "invalid_request_error",
        "message": "Output blocked by content filtering policy"}});
    Reply::status(400, &[("content-type", "application/json")], error.to_string())
}

fn with_tiers() -> NodeOptions {
    NodeOptions::default()
        .set("ONCEKEY_MODELS__SOFT__UPSTREAM", "fake-soft")
        .set("ONCEKEY_MODELS__SOFT__SYSTEM", "Be careful.")
        .set("ONCEKEY_MODELS__SOFT__OUTPUT_USD_PER_MTOK", "7.0")
        .set("ONCEKEY_MODELS__SOFTER__UPSTREAM", "fake-softer")
        .set("ONCEKEY_MODELS__DEFAULT__TIERS", r#"["soft", "softer"]"#)
}

fn upstreams(provider: &ScriptedProvider) -> Vec<String> {
    let name = |it: &Request| it.body["model"].as_str().unwrap_or_default().to_owned();
    provider.requests().iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filtered_answer_goes_down_the_ladder_and_is_that_models() {
    let house = House::with(Wire::Anthropic, with_tiers()).await;
    house.provider.reply(filtered_output());
    house.provider.reply(Reply::text("gently"));
    let answered = house.ask("hello").await;
    assert_eq!((answered.status, answered.content()), (200, "gently".to_owned()));
    assert_eq!(upstreams(&house.provider), ["fake-model-1", "fake-soft"]);
    assert_eq!(house.provider.requests()[1].body["system"], "Be careful.");
    assert_eq!(answered.json()["model"], "soft");
    let receipt = "select count(*) from usage_receipts where model = 'soft'
        and cost_usd = (output_tokens * 7.0) / 1000000";
    assert_eq!(house.database.count(receipt).await, 1, "at its own price");
    assert_eq!(house.changes().await, ["-", "tier soft"]);
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tier_is_asked_once_and_then_the_verdict_is_final() {
    let house = House::with(Wire::Anthropic, with_tiers()).await;
    house.provider.reply_times(3, &filtered_output());
    let key = Uuid::new_v4();
    let failed = house.client.chat(key, "c1", "hello").await;
    assert_eq!((failed.status, failed.error().as_str()), (422, "content_filtered"));
    assert_eq!(upstreams(&house.provider), ["fake-model-1", "fake-soft", "fake-softer"]);
    let replay = house.client.chat(key, "c1", "hello").await;
    assert!(replay.replayed() && replay.bytes == failed.bytes);
    assert_eq!(house.provider.count(), 3);
    assert_eq!(house.database.outcomes().await, (0, 0, 0));
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_the_input_stops_at_once_whatever_tiers_there_are() {
    for (wire, file) in
        [(Wire::Anthropic, "refusal_empty.sse"), (Wire::OpenAi, "openai_content_filter.sse")]
    {
        let house = House::with(wire, with_tiers()).await;
        house.provider.reply(Reply::events_file(file));
        let key = Uuid::new_v4();
        let failed = house.client.chat(key, "c1", "hello").await;
        assert_eq!((failed.status, failed.error().as_str()), (422, "content_filtered"), "{file}");
        assert!(house.client.chat(key, "c1", "hello").await.replayed());
        assert_eq!(house.provider.count(), 1, "{file}");
        assert_eq!(house.database.outcomes().await, (0, 0, 0));
        let kept = "select count(*) from provider_calls where failure_kind = 'moderation'
            and input_tokens is not null and not counted";
        assert_eq!(house.database.count(kept).await, 1, "what was spent is kept as cost");
        house.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_ladder_a_filtered_answer_gets_one_changed_call() {
    let house = House::with(Wire::Anthropic, NodeOptions::default()).await;
    house.provider.reply_times(2, &filtered_output());
    let failed = house.ask("hello").await;
    assert_eq!((failed.status, failed.error().as_str()), (422, "content_filtered"));
    assert_eq!(house.provider.count(), 2);
    assert_no_request_came_twice(&house.provider);
    house.end().await;
}

/// One provider, reached by several routes.
async fn with_routes(count: usize) -> (House, Vec<ScriptedProvider>) {
    let mut others = Vec::new();
    for _ in 1..count {
        others.push(ScriptedProvider::start().await);
    }
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let mut variables = provider_variables(&provider, Wire::Anthropic);
    let all = std::iter::once(&provider).chain(&others).enumerate();
    let route = |(at, it): (usize, &ScriptedProvider)| {
        format!("{{ name = \"r{at}\", base_url = \"{}\" }}", it.base_url(Wire::Anthropic))
    };
    let routes = format!("[{}]", all.map(route).collect::<Vec<_>>().join(", "));
    variables.push(("ONCEKEY_PROVIDERS__MAIN__ROUTES".to_owned(), routes));
    let node = TestNode::start_with(&database, variables, NodeOptions::default()).await;
    let client = node.client("t1").await;
    (House { database, provider, node, client }, others)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_region_takes_the_next_route_and_all_refused_is_passing() {
    for file in ["403_region.json", "400_region_other_vendor.json"] {
        let (house, others) = with_routes(3).await;
        house.provider.reply(Reply::file(file));
        assert_eq!(house.ask("hello").await.status, 200, "{file}");
        assert_eq!((house.provider.count(), others[0].count(), others[1].count()), (1, 1, 0));
        assert_eq!(house.changes().await, ["-", "route r1"]);
        assert_eq!(house.database.outcomes().await, (1, 1, 1));

        house.provider.reply(Reply::file(file));
        others.iter().for_each(|other| other.reply(Reply::file(file)));
        let key = Uuid::new_v4();
        let refused = house.client.chat(key, "c1", "again").await;
        assert_eq!((refused.status, refused.error().as_str()), (503, "region_refused"));
        assert_eq!((house.provider.count(), others[0].count(), others[1].count()), (2, 2, 1));
        assert_eq!(house.client.chat(key, "c1", "again").await.status, 200, "the key is free");
        house.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_missing_is_probed_once_and_not_the_inputs_fault() {
    let quick = NodeOptions::default().set("ONCEKEY_RETRY__TOTAL_WAIT", "400ms");
    let house = House::with(Wire::Anthropic, quick).await;
    for file in ["403_permission.json", "401_auth.json"] {
        let before = house.provider.count();
        house.provider.reply(Reply::file(file));
        assert_eq!(house.ask("hello").await.status, 200, "one false {file}");
        assert_eq!(house.provider.count(), before + 2);
        house.provider.reply_times(2, &Reply::file(file));
        let failed = house.ask("hello again").await;
        assert_eq!((failed.status, failed.error().as_str()), (500, "provider_auth"), "{file}");
        assert_eq!(failed.json()["retryable"], false);
        assert_eq!(house.provider.count(), before + 4);
    }
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_the_way_that_an_operation_took_and_nobody_else_does() {
    let rules = NodeOptions::default()
        .set("ONCEKEY_MODELS__DEFAULT__MAX_CHARS", "58")
        .set("ONCEKEY_RETRY__TOTAL_WAIT", "400ms");
    let house = House::with(Wire::Anthropic, rules).await;
    house.provider.reply(Reply::file("529_overloaded.json"));
    house.provider.reply(title(63));
    house.provider.reply(title(5));
    let key = Uuid::new_v4();
    assert_eq!(house.client.chat(key, "c1", "hello").await.status, 200);
    let path = format!("/v1/requests/{key}");
    assert_eq!(house.client.get(&path).await.json().get("calls"), None);
    let operator = house.node.client_as("t1", "operator", None).await;
    let record = operator.get(&path).await.json();
    let calls = record["calls"].as_array().unwrap();
    let seen = |at: usize, name: &str| calls[at][name].clone();
    assert_eq!(calls.len(), 3);
    assert_eq!((seen(0, "status"), seen(0, "failure_kind")), (json!(529), json!("overloaded")));
    assert!(seen(1, "waited_ms").as_i64().unwrap() >= 100);
    assert_eq!((seen(1, "changed"), seen(1, "failure_kind")), (Value::Null, json!("invalid")));
    assert_eq!(seen(2, "changed"), "feedback, temperature 0.5");
    assert_eq!((seen(2, "counted"), seen(2, "failure_kind")), (json!(true), Value::Null));
    assert!(calls.iter().all(|call| call["route"] == "direct" && call["provider"] == "main"));
    // Another tenant's operator sees no such request.
    let stranger = house.node.client_as("t2", "operator", None).await;
    assert_eq!(stranger.get(&path).await.status, 404);
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_cut_by_the_limit_is_no_wrong_json() {
    let rules = NodeOptions::default().set("ONCEKEY_MODELS__DEFAULT__JSON_SCHEMA", SCHEMA);
    let house = House::with(Wire::Anthropic, rules).await;
    house.provider.reply(Reply::cut_by_max_tokens("{\"title\": \"Rav"));
    let failed = house.ask("hello").await;
    assert_eq!((failed.status, failed.error().as_str()), (422, "output_limit"));
    assert_eq!(house.provider.count(), 1);
    house.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_that_was_not_sent_is_no_reason_to_ask_again() {
    let house = House::with(Wire::Anthropic, NodeOptions::default()).await;
    house.provider.reply(Reply::file("400_temperature_deprecated.json"));
    let refused = house.ask("hello").await;
    assert_eq!((refused.status, refused.error().as_str()), (422, "input_rejected"));
    assert_eq!(house.provider.count(), 1, "the same bytes would have been sent");
    // Nothing was learned about the model either.
    let body = json!({"conversation_id": "c1", "message": "hi", "options": {"temperature": 0.9}});
    let request = house.client.chat_request(Uuid::new_v4(), &body);
    assert_eq!(house.client.send(request).await.unwrap().status, 200);
    assert_eq!(house.provider.requests()[1].body["temperature"], 0.9);
    house.end().await;
}
