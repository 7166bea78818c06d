//! Calls of the scripted provider with the product's own clients.

use std::sync::Arc;
use std::time::Duration;

use oncekey::clock::Clock;
use oncekey::domain::failure::CallFailure;
use oncekey::domain::parse::Profile;
use oncekey::domain::prompt::{Answer, CallRequest, Message, Parameters, Role};
use oncekey::domain::secret::Secret;
use oncekey::provider::{self, Provider, ProviderKind, ProviderSettings, Route};

use super::{Reply, ScriptedProvider, Wire};

/// The credential that the calls carry.
pub const KEY: &str = "sk-test-0123456789";

/// Settings with the contract's deadlines and one route.
pub fn settings(server: &ScriptedProvider, wire: Wire) -> ProviderSettings {
    ProviderSettings {
        name: "main".to_owned(),
        kind: match wire {
            Wire::Anthropic => ProviderKind::Anthropic,
            Wire::OpenAi => ProviderKind::OpenAi,
        },
        api_key: Some(Secret::new(KEY)),
        routes: vec![Route { name: "direct".to_owned(), base_url: server.base_url(wire) }],
        first_byte_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(30),
        call_timeout: Duration::from_secs(600),
        max_answer_bytes: 100_000,
    }
}

/// A prompt of one message.
pub fn request() -> CallRequest {
    CallRequest {
        upstream: "fake-model-1".to_owned(),
        system: "Be kind.".into(),
        messages: [Message { role: Role::User, content: "How are you?".into() }].into(),
        images: [].into(),
        tool: None,
        max_tokens: 100,
        temperature: None,
        left_out: Parameters::NONE,
    }
}

/// A client of its own, on real time.
pub fn connect(server: &ScriptedProvider, wire: Wire) -> Arc<dyn Provider> {
    provider::build(settings(server, wire), Clock::system()).unwrap()
}

/// The same prompt with a script's tool.
pub fn tool_request() -> CallRequest {
    CallRequest { tool: Some(Profile::script().tool().clone()), ..request() }
}

/// One call, and the pieces of text that came on the way.
pub async fn call(provider: &dyn Provider) -> (Result<Answer, CallFailure>, String) {
    call_with(provider, &request()).await
}

/// The same with this prompt.
pub async fn call_with(
    provider: &dyn Provider,
    request: &CallRequest,
) -> (Result<Answer, CallFailure>, String) {
    let mut told = String::new();
    let answer = provider.call(request, 0, &mut |delta| told.push_str(delta)).await;
    if let Ok(answer) = &answer {
        assert_eq!(answer.text, told, "the pieces are the answer");
    }
    (answer, told)
}

/// A call that must fail, of exactly one request.
pub async fn failure(server: &ScriptedProvider, wire: Wire, reply: Reply) -> CallFailure {
    failure_on(server, &*connect(server, wire), reply).await
}

/// The same with a client that was there before.
pub async fn failure_on(
    server: &ScriptedProvider,
    provider: &dyn Provider,
    reply: Reply,
) -> CallFailure {
    let before = server.count();
    server.reply(reply);
    let (answer, _) = call(provider).await;
    assert_eq!(server.count(), before + 1, "one call is one request");
    answer.unwrap_err()
}

/// A call that must succeed.
pub async fn answer(server: &ScriptedProvider, wire: Wire, reply: Reply) -> Answer {
    server.reply(reply);
    call(&*connect(server, wire)).await.0.unwrap()
}
