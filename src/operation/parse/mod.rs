//! A parse: one operation, made of many model calls.
//!
//! Its input is stored first, then read, then asked about in pieces; pieces that are done are kept, so
//! that a run after this one does not pay for them again. What the pieces gave is merged in order and
//! committed with everything else.

mod effects;
mod input;
mod piece;
mod pieces;

use std::collections::BTreeMap;

pub use effects::AnswerBody as ParseAnswer;
pub use input::input_of;

use super::Inner;
use super::attempts::Failed;
use super::calls::CallLog;
use super::commit::Effects;
use super::scope::{Run, kind_of};
use crate::captures::Captures;
use crate::documents::{Documents, Kind, kind_of as kind_of_bytes};
use crate::domain::failure::FailureKind;
use crate::domain::ids::{Fence, RequestId};
use crate::domain::parse::{Input, ParseRequest, Profile};
use crate::domain::problem::{ErrorCode, Problem};
use crate::store::KeptChunk;

/// What parses stand on.
#[derive(Clone)]
pub struct Parsing {
    /// By the name that requests say.
    pub profiles: BTreeMap<String, Profile>,
    pub documents: Documents,
    pub captures: Captures,
    /// Characters of one piece.
    pub chunk_chars: usize,
    /// Pieces that are asked about at once.
    pub parallel: usize,
}

/// Refuses what no run could do anything with, before there is one.
pub(super) fn acceptable(
    inner: &Inner,
    request: &ParseRequest,
    id: RequestId,
) -> Result<(), Problem> {
    let profiles = &inner.parsing.profiles;
    if !profiles.contains_key(&request.profile) {
        let known = profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let wanted = &request.profile;
        let detail = format!("The profiles here are: {known}; {wanted:?} is none of them.");
        return Err(Problem::new(ErrorCode::InvalidRequest, id, detail));
    }
    match &request.input {
        Input::File(bytes) => match kind_of_bytes(bytes) {
            Kind::Other(what) => Err(unsupported(id, what)),
            Kind::Pdf | Kind::Png | Kind::Jpeg | Kind::Webp | Kind::Text => Ok(()),
        },
        Input::Text(_) => Ok(()),
    }
}

fn unsupported(id: RequestId, what: &str) -> Problem {
    let detail = format!("This is {what}. Send a PDF, a PNG, JPEG or WebP picture, or plain text.");
    Problem::new(ErrorCode::UnsupportedMediaType, id, detail)
}

/// Reads, asks, and makes of the answers all that the run will write.
pub(super) async fn perform(
    run: &Run<'_>,
    request: &ParseRequest,
    calls: &CallLog,
) -> Result<Effects, Failed> {
    let parsing = &run.inner.parsing;
    let Some(profile) = parsing.profiles.get(&request.profile) else {
        return Err(Failed::of(FailureKind::Internal));
    };
    let capture = input::keep(run, request).await?;
    let content = input::read(run, request).await?;
    let kept = kept_chunks(run).await?;
    let asking = pieces::Asking::new(run, profile, &content, calls, kept);
    let found = asking.all(request.allow_gaps).await?;
    effects::of(run, request, profile, capture, found, calls)
}

/// What earlier runs of the operation finished.
async fn kept_chunks(run: &Run<'_>) -> Result<Vec<KeptChunk>, Failed> {
    let claim = run.claim;
    if claim.guard.fence <= Fence(1) {
        return Ok(Vec::new());
    }
    let (tenant, operation) = (claim.at.tenant.clone(), claim.operation_id);
    run.inner.store.kept_chunks(tenant, operation).await.map_err(|error| {
        tracing::error!(event = "run_failed", %error, "the chunks that are done could not be read");
        Failed::of(kind_of(&error))
    })
}
