//! How a run that failed ends for its client: one exhaustive table from kind to code, and from code
//! to whether it is stored.

use super::failure::FailureKind;
use super::problem::ErrorCode;

/// The code that a run ends with after a failure of this kind.
pub fn code_of(kind: FailureKind) -> ErrorCode {
    match kind {
        FailureKind::RateLimited | FailureKind::Overloaded => ErrorCode::ProviderBusy,
        FailureKind::Quota => ErrorCode::QuotaExhausted,
        FailureKind::Transient => ErrorCode::ProviderFailed,
        FailureKind::Timeout => ErrorCode::ProviderTimeout,
        FailureKind::Auth => ErrorCode::ProviderAuth,
        FailureKind::Config => ErrorCode::ProviderConfig,
        FailureKind::Region => ErrorCode::RegionRefused,
        FailureKind::Input => ErrorCode::InputRejected,
        FailureKind::TooLarge => ErrorCode::TooLarge,
        FailureKind::Moderation => ErrorCode::ContentFiltered,
        FailureKind::Truncated => ErrorCode::OutputLimit,
        FailureKind::Malformed | FailureKind::Invalid => ErrorCode::MalformedOutput,
        FailureKind::Empty => ErrorCode::NothingFound,
        FailureKind::PasswordRequired
        | FailureKind::Broken
        | FailureKind::Blank
        | FailureKind::NoPages
        | FailureKind::NoTextLayer
        | FailureKind::TooComplex => ErrorCode::UnreadableInput,
        FailureKind::NoSlot => ErrorCode::SlotTimeout,
        FailureKind::Internal => ErrorCode::Internal,
        FailureKind::Abandoned | FailureKind::RunLost => ErrorCode::RunLost,
        FailureKind::Released => ErrorCode::Draining,
        FailureKind::Cancelled => ErrorCode::Cancelled,
        FailureKind::LeaseLost => ErrorCode::ConversationBusy,
        FailureKind::OutcomeUnknown => ErrorCode::OutcomeUnknown,
        // The contract has no code for the place where inputs lie: the same promise about retrying.
        FailureKind::Database | FailureKind::Storage | FailureKind::ReadingFailed => {
            ErrorCode::DatabaseUnavailable
        }
        FailureKind::GaveUp => ErrorCode::GaveUp,
    }
}

/// The `reason` of `unreadable_input`, in the words of the contract; `None` for every other code.
pub fn reason_of(kind: FailureKind) -> Option<&'static str> {
    match kind {
        FailureKind::Blank => Some("empty"),
        kind if code_of(kind) == ErrorCode::UnreadableInput => Some(kind.as_str()),
        _ => None,
    }
}

/// Whether a run that ends with this code is a final failure, stored and replayed: 413 and 422 are,
/// and nothing else is.
pub fn is_final(code: ErrorCode) -> bool {
    matches!(code.status(), 413 | 422)
}

/// Whether a failure of this kind lies in the input and nowhere else: the same input fails so under
/// any key, for as long as the model stays what it is.
pub fn is_the_inputs_own(kind: FailureKind) -> bool {
    match kind {
        FailureKind::Input
        | FailureKind::TooLarge
        | FailureKind::Moderation
        | FailureKind::Empty => true,
        // The output limit is set by us or by the client; what could not be read has cost nothing.
        FailureKind::Truncated
        | FailureKind::PasswordRequired
        | FailureKind::Broken
        | FailureKind::Blank
        | FailureKind::NoPages
        | FailureKind::NoTextLayer
        | FailureKind::TooComplex
        | FailureKind::RateLimited
        | FailureKind::Overloaded
        | FailureKind::Quota
        | FailureKind::Transient
        | FailureKind::Timeout
        | FailureKind::Auth
        | FailureKind::Config
        | FailureKind::Region
        | FailureKind::Malformed
        | FailureKind::Invalid
        | FailureKind::Storage
        | FailureKind::ReadingFailed
        | FailureKind::NoSlot
        | FailureKind::Internal
        | FailureKind::Abandoned
        | FailureKind::Released
        | FailureKind::Cancelled
        | FailureKind::LeaseLost
        | FailureKind::OutcomeUnknown
        | FailureKind::RunLost
        | FailureKind::Database
        | FailureKind::GaveUp => false,
    }
}

/// What the client is told; nothing of a provider's own words, which may hold what it was sent.
pub fn detail_of(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::RateLimited => {
            "The provider limits the rate of calls; send the same request again."
        }
        FailureKind::Overloaded => "The provider is overloaded; send the same request again.",
        FailureKind::Quota => {
            "The account at the provider is out of credit; it must be topped up first."
        }
        FailureKind::Transient => {
            "The provider failed, also when called again; send the same request again."
        }
        FailureKind::Timeout => {
            "The provider took longer than its deadline; send the same request again."
        }
        FailureKind::Auth => {
            "The provider refuses the credentials of this service; its operator must mend them."
        }
        FailureKind::Config => {
            "The provider does not know the configured model; the operator must mend it."
        }
        FailureKind::Region => {
            "The provider refuses every route of this service; send the same request again later."
        }
        FailureKind::Input => "The model rejected this input; sending it again will not help.",
        FailureKind::TooLarge => "The conversation and the message are too large for the model.",
        FailureKind::Moderation => "The provider filtered this content.",
        FailureKind::Truncated => "The answer does not fit the model's output limit.",
        FailureKind::Malformed | FailureKind::Invalid => {
            "The model's answer was malformed; send the same request again."
        }
        FailureKind::Empty => "Nothing was found in the input.",
        FailureKind::PasswordRequired => {
            "The document opens with a password only; send it without one."
        }
        FailureKind::Broken => "The file is damaged or incomplete and cannot be read.",
        FailureKind::Blank => "There is nothing in the file.",
        FailureKind::NoPages => "The document has no pages.",
        FailureKind::NoTextLayer => {
            "The document holds pictures of text, and the model takes no pictures."
        }
        FailureKind::TooComplex => {
            "Reading the file takes more time, memory or pages than is allowed; send a simpler one."
        }
        FailureKind::Storage => "The input could not be stored; send the same request again.",
        FailureKind::ReadingFailed => {
            "The input could not be looked at just now; send the same request again."
        }
        FailureKind::NoSlot => {
            "No place at the provider became free in time; send the same request again."
        }
        FailureKind::Internal => {
            "Something went wrong in this service; it is logged under the request id."
        }
        FailureKind::Abandoned | FailureKind::RunLost => {
            "The run was lost with its server; send the same request again."
        }
        FailureKind::Released => "This server is shutting down; send the same request again.",
        FailureKind::Cancelled => "The run was cancelled.",
        FailureKind::LeaseLost => {
            "Another operation runs in this conversation; send the same request again."
        }
        FailureKind::OutcomeUnknown => {
            "The outcome could not be read back; send the same request again to learn it."
        }
        FailureKind::Database => "The database cannot be reached; send the same request again.",
        FailureKind::GaveUp => {
            "This operation failed too often or for too long and is not tried again."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deterministic_outcome_is_never_a_5xx_and_only_those_are_stored() {
        for kind in FailureKind::ALL {
            let code = code_of(kind);
            let deterministic = matches!(
                kind,
                FailureKind::Input
                    | FailureKind::TooLarge
                    | FailureKind::Moderation
                    | FailureKind::Truncated
                    | FailureKind::Empty
                    | FailureKind::PasswordRequired
                    | FailureKind::Broken
                    | FailureKind::Blank
                    | FailureKind::NoPages
                    | FailureKind::NoTextLayer
                    | FailureKind::TooComplex
                    | FailureKind::GaveUp
            );
            assert_eq!(is_final(code), deterministic, "{kind}");
            assert!(!deterministic || code.status() < 500, "{kind}");
            assert!(!is_the_inputs_own(kind) || deterministic, "{kind}");
            assert_eq!(reason_of(kind).is_some(), code == ErrorCode::UnreadableInput, "{kind}");
        }
    }
}
