//! The event of a committed operation, as it stands in the outbox.

use rust_decimal::Decimal;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::domain::ids::{ConversationId, OperationId, RequestId, Subject, TurnId};
use crate::domain::usage::Usage;

/// What `call_completed` tells.
pub(super) struct CallCompleted<'a> {
    pub operation_id: OperationId,
    pub request_id: RequestId,
    pub idempotency_key: uuid::Uuid,
    pub endpoint: &'static str,
    pub subject: Option<&'a Subject>,
    pub conversation_id: Option<&'a ConversationId>,
    pub turn_id: Option<TurnId>,
    pub model: &'a str,
    pub usage: Usage,
    pub cost: Option<Decimal>,
}

#[derive(Serialize)]
struct Payload<'a> {
    operation_id: OperationId,
    request_id: RequestId,
    idempotency_key: uuid::Uuid,
    endpoint: &'static str,
    subject: Option<&'a Subject>,
    conversation_id: Option<&'a ConversationId>,
    turn_id: Option<TurnId>,
    model: &'a str,
    usage: Usage,
    /// A JSON number with all its places.
    cost_usd: Option<Box<RawValue>>,
}

impl CallCompleted<'_> {
    /// The payload.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Payload {
            operation_id: self.operation_id,
            request_id: self.request_id,
            idempotency_key: self.idempotency_key,
            endpoint: self.endpoint,
            subject: self.subject,
            conversation_id: self.conversation_id,
            turn_id: self.turn_id,
            model: self.model,
            usage: self.usage,
            cost_usd: self.cost.map(|it| RawValue::from_string(it.to_string())).transpose()?,
        })
    }
}
