//! What is particular to a chat: the prompt it sends and what a good answer leaves behind.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::attempts::{Answered, Attempts, Failed};
use super::calls::CallLog;
use super::commit::Effects;
use super::event::CallCompleted;
use super::models::Model;
use super::request::Prompt;
use super::routes::Routes;
use super::scope::{Run, kind_of};
use crate::clock::Clock;
use crate::domain::chat::{self, ChatRequest};
use crate::domain::failure::{Cause, FailureKind};
use crate::domain::ids::{EventId, RequestId, Subject, TurnId};
use crate::domain::prompt::{Answer, Message, Role, StopReason};
use crate::domain::rules::AnswerRules;
use crate::domain::text::storable;
use crate::domain::usage::Usage;
use crate::store::{ChatCommit, Claim, Store, StoreError};

/// Asks, and makes of the answer all that the run will write.
pub(super) async fn perform(
    run: &Run<'_>,
    request: &ChatRequest,
    calls: &CallLog,
) -> Result<Effects, Failed> {
    let inner = run.inner;
    let prompt = prompt(&inner.store, run.claim, request, inner.settings.max_history_turns)
        .await
        .map_err(|error| {
        tracing::error!(event = "run_failed", %error, "the conversation could not be read");
        Failed::of(kind_of(&error))
    })?;
    let (ladder, routes) = (run.ladder(), Routes::default());
    let rules = &run.model.rules;
    let accept = |answer: &Answer| accept(rules, answer);
    let attempts = run.attempts(&ladder, &routes, calls, &inner.settings.retry, &accept);
    let attempts = Attempts { stream: Some(run.stream), ..attempts };
    let Answered { answer, model, .. } = attempts.run(&prompt).await?;
    let built = commit(&inner.clock, run.claim, request, run.subject, model, &answer, calls);
    built.map(|commit| Effects::Chat(Arc::new(commit))).map_err(|error| {
        tracing::error!(event = "run_failed", %error, "the answer could not be written as JSON");
        Failed::of(FailureKind::Internal)
    })
}

/// The prompt: every earlier turn of the conversation up to the head that the claim found, at most
/// the last `max_history_turns`, and the new message.
async fn prompt(
    store: &Store,
    claim: &Claim,
    request: &ChatRequest,
    max_history_turns: u32,
) -> Result<Prompt, StoreError> {
    // Whole pairs, so that the first message stays a user's.
    let limit = i64::from(max_history_turns - max_history_turns % 2);
    if claim.head_seq > limit {
        tracing::warn!(
            event = "history_cut",
            turns = claim.head_seq,
            max_history_turns,
            "the prompt leaves out the oldest turns"
        );
    }
    let mut messages = store
        .history(claim.at.tenant.clone(), request.conversation_id.clone(), claim.head_seq, limit)
        .await?;
    messages.push(Message { role: Role::User, content: request.message.as_str().into() });
    Ok(Prompt {
        messages: messages.into(),
        system: None,
        images: Arc::default(),
        tool: None,
        max_tokens: request.max_tokens,
        temperature: request.temperature,
    })
}

/// What is wrong with an answer of a model, by that model's rules.
fn accept(rules: &AnswerRules, answer: &Answer) -> Result<(), Cause> {
    // The reason why it stopped is read before what it says: half a JSON value is no wrong value.
    if answer.stop == StopReason::MaxTokens && rules.need_the_whole() {
        return Err(Cause::OutputLimit);
    }
    rules.check(&answer.text).map_err(Cause::RuleBroken)
}

/// The answer to a chat, the same bytes for every repeat.
#[derive(Serialize, ToSchema)]
#[schema(as = ChatAnswer)]
pub struct AnswerBody<'a> {
    /// The run that gave it.
    #[schema(value_type = uuid::Uuid)]
    request_id: RequestId,
    conversation_id: &'a str,
    /// The assistant's turn in the conversation.
    #[schema(value_type = uuid::Uuid)]
    turn_id: TurnId,
    message: AnswerMessage<'a>,
    model: &'a str,
    /// `end` or `max_tokens`: whether the model was done, or cut off.
    stop_reason: &'static str,
    usage: Usage,
}

/// What the assistant said.
#[derive(Serialize, ToSchema)]
pub struct AnswerMessage<'a> {
    /// `assistant`.
    role: &'static str,
    content: &'a str,
}

/// Everything that a committed chat writes, from the answer and nothing else: repeating the
/// transaction repeats these bytes.
fn commit(
    clock: &Clock,
    claim: &Claim,
    request: &ChatRequest,
    subject: Option<&Subject>,
    model: &Model,
    answer: &Answer,
    calls: &CallLog,
) -> Result<ChatCommit, serde_json::Error> {
    let text = storable(&answer.text).into_owned();
    let (user_turn, assistant_turn) = (TurnId(clock.new_id()), TurnId(clock.new_id()));
    let event = EventId(clock.new_id());
    let cost = answer.usage.cost(&model.prices);
    let response = serde_json::to_vec(&AnswerBody {
        request_id: claim.guard.request_id,
        conversation_id: request.conversation_id.as_str(),
        turn_id: assistant_turn,
        message: AnswerMessage { role: Role::Assistant.as_str(), content: &text },
        model: &model.name,
        stop_reason: answer.stop.as_str(),
        usage: answer.usage,
    })?;
    let event_payload = CallCompleted {
        operation_id: claim.operation_id,
        request_id: claim.guard.request_id,
        idempotency_key: claim.at.key,
        endpoint: chat::ENDPOINT,
        subject,
        conversation_id: Some(&request.conversation_id),
        turn_id: Some(assistant_turn),
        model: &model.name,
        usage: answer.usage,
        cost,
    }
    .to_json()?;
    Ok(ChatCommit {
        at: claim.at.clone(),
        guard: claim.guard,
        based_on_seq: claim.head_seq,
        response,
        user_turn,
        assistant_turn,
        message: request.message.clone(),
        answer: text,
        metadata: request.metadata.clone(),
        model: model.name.clone(),
        usage: answer.usage,
        usage_source: answer.usage.source(),
        cost,
        price: model.price,
        event,
        event_payload,
        calls: calls.committed(),
    })
}

#[derive(Deserialize)]
struct StoredChat {
    /// A parse's answer has none.
    message: Option<StoredMessage>,
}

#[derive(Deserialize)]
struct StoredMessage {
    content: String,
}

/// The text of a stored answer, as a stream tells it; empty where it has none.
pub fn text_of(body: &[u8]) -> String {
    match serde_json::from_slice::<StoredChat>(body) {
        Ok(chat) => chat.message.map(|message| message.content).unwrap_or_default(),
        Err(error) => {
            tracing::error!(event = "internal", %error, "a stored answer has no text to stream");
            String::new()
        }
    }
}
