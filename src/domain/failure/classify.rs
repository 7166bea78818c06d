//! From facts to a kind: pure, and without a wildcard over causes or kinds.
//!
//! Order matters and is the same everywhere: what the error says comes before the status it came
//! with, since gateways wrap a deterministic refusal in any status; an error inside a success is
//! judged by the code inside, as if that had been the status.

use super::facts::{Cause, FailureFacts, ModerationStage, VendorError};
use super::kind::FailureKind;
use super::wordings::{self, says};
use crate::domain::prompt::Parameter;
use crate::domain::rules::ViolationCode;

/// A kind with what else the facts tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    pub kind: FailureKind,
    /// False: no rule spoke, and `transient` is a guess. To be logged, and repeated once at most.
    pub known: bool,
    /// Told for [`FailureKind::Moderation`] alone.
    pub stage: Option<ModerationStage>,
    /// The parameter that this model does not take, with [`FailureKind::Input`] alone.
    pub refused_parameter: Option<Parameter>,
}

impl Diagnosis {
    fn of(kind: FailureKind) -> Diagnosis {
        Diagnosis { kind, known: true, stage: None, refused_parameter: None }
    }

    fn unknown() -> Diagnosis {
        Diagnosis { known: false, ..Diagnosis::of(FailureKind::Transient) }
    }

    fn moderated(stage: ModerationStage) -> Diagnosis {
        Diagnosis { stage: Some(stage), ..Diagnosis::of(FailureKind::Moderation) }
    }
}

/// The kind of a failure. See [`diagnose`] for the rest of what the facts tell.
pub fn classify(facts: &FailureFacts) -> FailureKind {
    diagnose(facts).kind
}

/// The kind of a failure, and what else the facts tell.
pub fn diagnose(facts: &FailureFacts) -> Diagnosis {
    match &facts.cause {
        Cause::Refused { html, error } => refused(facts, facts.status, *html, error),
        Cause::InBand { error } => refused(facts, inner_status(error), false, error),
        Cause::Transport(_) | Cause::Cut | Cause::Unreadable { .. } | Cause::NothingUsable => {
            Diagnosis::of(FailureKind::Transient)
        }
        Cause::NothingFound => Diagnosis::of(FailureKind::Empty),
        Cause::Deadline { .. } => Diagnosis::of(FailureKind::Timeout),
        Cause::OutputLimit => Diagnosis::of(FailureKind::Truncated),
        Cause::Moderated(stage) => Diagnosis::moderated(*stage),
        Cause::AnswerTooLong { .. } => Diagnosis::of(FailureKind::Malformed),
        Cause::RuleBroken(violation) => Diagnosis::of(match violation.code {
            ViolationCode::JsonSyntax | ViolationCode::MaxBytes => FailureKind::Malformed,
            ViolationCode::MaxChars | ViolationCode::MustMatch | ViolationCode::JsonSchema => {
                FailureKind::Invalid
            }
        }),
    }
}

fn refused(
    facts: &FailureFacts,
    status: Option<u16>,
    html: bool,
    error: &VendorError,
) -> Diagnosis {
    let text = searchable(error);
    if let Some(told) = by_wording(facts, status, error, &text) {
        return told;
    }
    match status {
        Some(status) => by_status(facts, status, html, error),
        None if says(&text, wordings::OVERLOADED) => Diagnosis::of(FailureKind::Overloaded),
        None => Diagnosis::unknown(),
    }
}

/// What the words say, where they say enough. `None` leaves it to the status.
fn by_wording(
    facts: &FailureFacts,
    status: Option<u16>,
    error: &VendorError,
    text: &str,
) -> Option<Diagnosis> {
    let too_large = match status {
        Some(413) => true,
        Some(429) => says(text, wordings::TOO_LARGE_IN_429),
        _ => says(text, wordings::TOO_LARGE),
    };
    if too_large {
        return Some(Diagnosis::of(FailureKind::TooLarge));
    }
    // From here on the words count only where somebody was refused: a fault of the provider may
    // repeat any of them.
    if status.is_some_and(|status| !(400..500).contains(&status)) {
        return None;
    }
    let passes = says(text, wordings::QUOTA_THAT_PASSES);
    if status == Some(402) || (says(text, wordings::QUOTA) && !passes) {
        return Some(Diagnosis::of(FailureKind::Quota));
    }
    if status == Some(429) {
        return None;
    }
    if status == Some(451)
        || says(text, wordings::REGION)
        || (status == Some(403) && says(text, wordings::REGION_IN_403))
    {
        return Some(Diagnosis::of(FailureKind::Region));
    }
    if says(text, wordings::MODERATED_OUTPUT) {
        return Some(Diagnosis::moderated(ModerationStage::Output));
    }
    if says(text, wordings::MODERATION) {
        let stage =
            if facts.text_flowed { ModerationStage::Output } else { ModerationStage::Input };
        return Some(Diagnosis::moderated(stage));
    }
    if matches!(status, None | Some(400 | 422)) {
        if says(text, wordings::BAD_KEY) {
            return Some(Diagnosis::of(FailureKind::Auth));
        }
        if says(text, wordings::UNKNOWN_MODEL) {
            return Some(Diagnosis::of(FailureKind::Config));
        }
        if let Some(name) = refused_parameter(error, text) {
            let refused_parameter = Some(name);
            return Some(Diagnosis { refused_parameter, ..Diagnosis::of(FailureKind::Input) });
        }
    }
    None
}

fn by_status(facts: &FailureFacts, status: u16, html: bool, error: &VendorError) -> Diagnosis {
    let kind = match status {
        429 => FailureKind::RateLimited,
        408 | 529 => FailureKind::Overloaded,
        503 if facts.retry_after.is_present() => FailureKind::Overloaded,
        // A gateway's own status around the provider's plea to wait: by its type or code alone, since
        // a sentence may repeat the prompt.
        400..=403 | 422 | 500..=599 if inner_status(error) == Some(429) => FailureKind::RateLimited,
        400..=403 | 422 | 500..=599 if inner_status(error) == Some(529) => FailureKind::Overloaded,
        500..=599 if inner_status(error) == Some(402) => FailureKind::Quota,
        500..=599 => FailureKind::Transient,
        401 | 403 => FailureKind::Auth,
        // A redirect is not followed: the address is not the one to ask.
        300..=399 | 404 | 405 | 407 | 410 => FailureKind::Config,
        // A lock, a replayed early request, a caller that a gateway thinks gone.
        409 | 425 | 499 => FailureKind::Transient,
        // A page, not the vendor's error: some box in between did not like the connection.
        400..=499 if html || !error.is_json() => return Diagnosis::unknown(),
        400..=499 => FailureKind::Input,
        _ => return Diagnosis::unknown(),
    };
    Diagnosis::of(kind)
}

/// The status that an error stands for by its own code or type.
fn inner_status(error: &VendorError) -> Option<u16> {
    let code = error.code.as_deref().map(str::trim);
    if let Some(status) = code.and_then(|code| code.parse::<u16>().ok())
        && (300..600).contains(&status)
    {
        return Some(status);
    }
    [code, error.kind.as_deref()].into_iter().flatten().find_map(|word| {
        let word = word.trim();
        let found = wordings::INNER_STATUS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
        found.map(|(_, status)| *status)
    })
}

/// The parameter that the model does not take, where the error says that it is refused.
fn refused_parameter(error: &VendorError, text: &str) -> Option<Parameter> {
    if !says(text, wordings::REFUSED_PARAMETER) {
        return None;
    }
    let named = error.param.as_deref().map(str::trim);
    if let Some(blamed) = Parameter::ALL.into_iter().find(|known| named == Some(known.as_str())) {
        return Some(blamed);
    }
    // The first that is named is the refused one; a sentence may go on to name its successor. Of
    // two that start at the same place the longer is meant, and stands first in the list.
    let place = |known: &Parameter| text.find(known.as_str());
    let named = Parameter::ALL.into_iter().filter_map(|known| Some((place(&known)?, known)));
    named.min_by_key(|(at, _)| *at).map(|(_, known)| known)
}

fn searchable(error: &VendorError) -> String {
    let parts = [&error.kind, &error.code, &error.message, &error.detail];
    let mut text = String::new();
    for part in parts.into_iter().flatten() {
        text.push_str(part);
        text.push('\n');
    }
    text.make_ascii_lowercase();
    text
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
