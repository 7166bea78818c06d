//! All that a committed parse writes, from what was found and nothing else.

use std::sync::Arc;

use rust_decimal::Decimal;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::pieces::{Found, Gap};
use crate::domain::failure::FailureKind;
use crate::domain::ids::{EventId, RequestId};
use crate::domain::parse::{ENDPOINT, ParseRequest, Profile};
use crate::domain::usage::{Usage, UsageSource, common_price};
use crate::domain::verdict::code_of;
use crate::operation::attempts::Failed;
use crate::operation::calls::CallLog;
use crate::operation::commit::Effects;
use crate::operation::event::CallCompleted;
use crate::operation::scope::Run;
use crate::store::ParseCommit;

/// What a parse found, the same bytes for every repeat.
#[derive(Serialize, ToSchema)]
#[schema(as = ParseAnswer)]
pub struct AnswerBody<'a> {
    /// The run that found it.
    #[schema(value_type = Uuid)]
    request_id: RequestId,
    /// In the form of the profile; of `script`: `title`, `characters` and `dialogue`.
    #[schema(value_type = Object)]
    result: &'a RawValue,
    /// What is missing, where `allow_gaps` was given.
    #[schema(value_type = Vec<GapBody>)]
    gaps: &'a RawValue,
    usage: Usage,
}

/// A piece that was left out.
#[derive(Serialize, ToSchema)]
#[schema(as = Gap)]
pub struct GapBody {
    /// Counted from 0.
    chunk: usize,
    /// In characters of the text that was read.
    from: usize,
    to: usize,
    /// The code that the whole would have ended with.
    reason: &'static str,
}

impl From<&Gap> for GapBody {
    fn from(gap: &Gap) -> Self {
        let Gap { chunk, from, to, kind } = *gap;
        Self { chunk, from, to, reason: code_of(kind).as_str() }
    }
}

/// What is written. Repeating the transaction repeats these bytes.
pub fn of(
    run: &Run<'_>,
    request: &ParseRequest,
    profile: &Profile,
    capture: Uuid,
    found: Found,
    calls: &CallLog,
) -> Result<Effects, Failed> {
    commit(run, request, profile, capture, found, calls)
        .map(|commit| Effects::Parse(Arc::new(commit)))
        .map_err(|error| {
            tracing::error!(event = "run_failed", %error, "the result could not be written as JSON");
            Failed::of(FailureKind::Internal)
        })
}

fn commit(
    run: &Run<'_>,
    request: &ParseRequest,
    profile: &Profile,
    capture: Uuid,
    found: Found,
    calls: &CallLog,
) -> Result<ParseCommit, serde_json::Error> {
    let claim = run.claim;
    let calls = calls.committed();
    let counted = calls.iter().filter(|call| call.counted).map(|call| (call.usage, call.cost));
    let paid = found.paid.iter().map(|call| (call.usage, call.cost));
    let bill = Bill::of(counted.chain(paid));
    let prices = calls.iter().filter(|call| call.counted).map(|call| call.price);
    let price = common_price(prices.chain(found.paid.iter().map(|call| call.price)));
    let result = serde_json::value::to_raw_value(&found.result)?;
    let gaps: Vec<GapBody> = found.gaps.iter().map(GapBody::from).collect();
    let gaps = serde_json::value::to_raw_value(&gaps)?;
    let response = serde_json::to_vec(&AnswerBody {
        request_id: claim.guard.request_id,
        result: &result,
        gaps: &gaps,
        usage: bill.usage,
    })?;
    let event_payload = CallCompleted {
        operation_id: claim.operation_id,
        request_id: claim.guard.request_id,
        idempotency_key: claim.at.key,
        endpoint: ENDPOINT,
        subject: run.subject,
        conversation_id: None,
        turn_id: None,
        model: &run.model.name,
        usage: bill.usage,
        cost: bill.cost,
    }
    .to_json()?;
    Ok(ParseCommit {
        at: claim.at.clone(),
        guard: claim.guard,
        response,
        capture,
        profile: profile.name().to_owned(),
        result: Box::<str>::from(result).into(),
        gaps: Box::<str>::from(gaps).into(),
        metadata: request.metadata.clone(),
        model: run.model.name.clone(),
        usage: bill.usage,
        usage_source: bill.source,
        cost: bill.cost,
        price,
        event: EventId(run.inner.clock.new_id()),
        event_payload,
        calls,
        paid: found.paid,
    })
}

/// What all counted calls cost together.
struct Bill {
    /// The sum of what was told.
    usage: Usage,
    /// Unknown as soon as one of them is.
    source: UsageSource,
    cost: Option<Decimal>,
}

impl Bill {
    fn of(calls: impl Iterator<Item = (Usage, Option<Decimal>)>) -> Bill {
        let nothing = Bill {
            usage: Usage::default(),
            source: UsageSource::Provider,
            cost: Some(Decimal::ZERO),
        };
        calls.fold(nothing, |sum, (usage, cost)| Bill {
            usage: sum.usage.plus(&usage),
            source: if usage.source() == UsageSource::Unknown {
                UsageSource::Unknown
            } else {
                sum.source
            },
            cost: sum.cost.zip(cost).and_then(|(sum, cost)| sum.checked_add(cost)),
        })
    }
}
