//! What is particular to a chat: the prompt it sends and what a good answer leaves behind.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::calls::CallLog;
use super::models::Model;
use super::request::Prompt;
use crate::clock::Clock;
use crate::domain::chat::{self, ChatRequest};
use crate::domain::failure::Cause;
use crate::domain::ids::{EventId, RequestId, Subject, TurnId};
use crate::domain::prompt::{Answer, Message, Role, StopReason};
use crate::domain::rules::AnswerRules;
use crate::domain::text::storable;
use crate::domain::usage::Usage;
use crate::store::{ChatCommit, Claim, Store, StoreError};

/// The prompt: every earlier turn of the conversation up to the head that the claim found, at most
/// the last `max_history_turns`, and the new message.
pub async fn prompt(
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
        max_tokens: request.max_tokens,
        temperature: request.temperature,
    })
}

/// What is wrong with an answer of a model, by that model's rules.
pub fn accept(rules: &AnswerRules, answer: &Answer) -> Result<(), Cause> {
    // The reason why it stopped is read before what it says: half a JSON value is no wrong value.
    if answer.stop == StopReason::MaxTokens && rules.need_the_whole() {
        return Err(Cause::OutputLimit);
    }
    rules.check(&answer.text).map_err(Cause::RuleBroken)
}

#[derive(Serialize)]
struct AnswerBody<'a> {
    request_id: RequestId,
    conversation_id: &'a str,
    turn_id: TurnId,
    message: AnswerMessage<'a>,
    model: &'a str,
    stop_reason: &'static str,
    usage: Usage,
}

#[derive(Serialize)]
struct AnswerMessage<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct EventPayload<'a> {
    operation_id: crate::domain::ids::OperationId,
    request_id: RequestId,
    idempotency_key: uuid::Uuid,
    endpoint: &'static str,
    subject: Option<&'a str>,
    conversation_id: &'a str,
    turn_id: TurnId,
    model: &'a str,
    usage: Usage,
    /// A JSON number with all its places.
    cost_usd: Option<Box<RawValue>>,
}

/// Everything that a committed chat writes, from the answer and nothing else: repeating the
/// transaction repeats these bytes.
pub fn commit(
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
    let event_payload = serde_json::to_string(&EventPayload {
        operation_id: claim.operation_id,
        request_id: claim.guard.request_id,
        idempotency_key: claim.at.key,
        endpoint: chat::ENDPOINT,
        subject: subject.map(Subject::as_str),
        conversation_id: request.conversation_id.as_str(),
        turn_id: assistant_turn,
        model: &model.name,
        usage: answer.usage,
        cost_usd: cost.map(|cost| RawValue::from_string(cost.to_string())).transpose()?,
    })?;
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
        event,
        event_payload,
        calls: calls.committed(),
    })
}

/// A chat with all that its run needs.
#[derive(Debug, Clone)]
pub struct ChatJob {
    pub request: Arc<ChatRequest>,
    pub subject: Option<Subject>,
}

#[derive(Deserialize)]
struct StoredChat {
    message: StoredMessage,
}

#[derive(Deserialize)]
struct StoredMessage {
    content: String,
}

/// The text of a stored chat answer.
pub fn text_of(body: &[u8]) -> String {
    match serde_json::from_slice::<StoredChat>(body) {
        Ok(chat) => chat.message.content,
        Err(error) => {
            tracing::error!(event = "internal", %error, "a stored answer has no text to stream");
            String::new()
        }
    }
}
