//! The names of failures, as they are recorded.

/// Why a provider call or a run ended without an answer. The words of [`FailureKind::as_str`]
/// stand in `failure_kind` columns, logs and metric labels: they are never renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureKind {
    /// The provider asks us to slow down.
    RateLimited,
    /// The provider has more work than it can take.
    Overloaded,
    /// The account at the provider is out of credit, or at its spend limit.
    Quota,
    /// A passing fault: connection, 5xx, a stream cut short, a success with nothing in it.
    Transient,
    /// One of our deadlines for the call passed.
    Timeout,
    /// The provider refuses our credentials or their permissions.
    Auth,
    /// The provider does not know the configured model or path.
    Config,
    /// The provider refuses the region that the call came from.
    Region,
    /// The provider refuses what was asked.
    Input,
    /// Over the model's context or the provider's limit on size.
    TooLarge,
    /// Filtered or refused; the stage is in [`super::Diagnosis::stage`].
    Moderation,
    /// The output limit was reached where a whole output is needed.
    Truncated,
    /// An output that cannot be read, or that is beyond what is held.
    Malformed,
    /// An output that can be read and breaks a rule.
    Invalid,
    /// A parse found no content.
    Empty,
    /// An upload that opens with a password only.
    PasswordRequired,
    /// An upload that is no whole file of its kind.
    Broken,
    /// An upload with nothing in it.
    Blank,
    /// A document without pages.
    NoPages,
    /// Pictures of text, for a model that takes no pictures.
    NoTextLayer,
    /// An upload that takes more time, memory or pages than reading one may.
    TooComplex,
    /// The input could not be stored.
    Storage,
    /// The input could not be looked at, for a reason of ours.
    ReadingFailed,
    /// No slot for a provider call in time.
    NoSlot,
    /// A fault of our own.
    Internal,
    /// The run's node went silent and no arrival took the run over.
    Abandoned,
    /// The run was cut by a node that is shutting down.
    Released,
    /// The run was cancelled by request.
    Cancelled,
    /// Another operation holds the conversation.
    LeaseLost,
    /// The database went away while the verdict was written.
    OutcomeUnknown,
    /// The node died that a stream was read from.
    RunLost,
    /// The database could not be used.
    Database,
    /// The operation is not run again: runs, time or quota hits are used up.
    GaveUp,
}

impl FailureKind {
    /// Every kind once, in the order of declaration.
    pub const ALL: [FailureKind; 33] = [
        FailureKind::RateLimited,
        FailureKind::Overloaded,
        FailureKind::Quota,
        FailureKind::Transient,
        FailureKind::Timeout,
        FailureKind::Auth,
        FailureKind::Config,
        FailureKind::Region,
        FailureKind::Input,
        FailureKind::TooLarge,
        FailureKind::Moderation,
        FailureKind::Truncated,
        FailureKind::Malformed,
        FailureKind::Invalid,
        FailureKind::Empty,
        FailureKind::PasswordRequired,
        FailureKind::Broken,
        FailureKind::Blank,
        FailureKind::NoPages,
        FailureKind::NoTextLayer,
        FailureKind::TooComplex,
        FailureKind::Storage,
        FailureKind::ReadingFailed,
        FailureKind::NoSlot,
        FailureKind::Internal,
        FailureKind::Abandoned,
        FailureKind::Released,
        FailureKind::Cancelled,
        FailureKind::LeaseLost,
        FailureKind::OutcomeUnknown,
        FailureKind::RunLost,
        FailureKind::Database,
        FailureKind::GaveUp,
    ];

    /// The recorded word.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureKind::RateLimited => "rate_limited",
            FailureKind::Overloaded => "overloaded",
            FailureKind::Quota => "quota",
            FailureKind::Transient => "transient",
            FailureKind::Timeout => "timeout",
            FailureKind::Auth => "auth",
            FailureKind::Config => "config",
            FailureKind::Region => "region",
            FailureKind::Input => "input",
            FailureKind::TooLarge => "too_large",
            FailureKind::Moderation => "moderation",
            FailureKind::Truncated => "truncated",
            FailureKind::Malformed => "malformed",
            FailureKind::Invalid => "invalid",
            FailureKind::Empty => "empty",
            FailureKind::PasswordRequired => "password_required",
            FailureKind::Broken => "broken",
            FailureKind::Blank => "blank",
            FailureKind::NoPages => "no_pages",
            FailureKind::NoTextLayer => "no_text_layer",
            FailureKind::TooComplex => "too_complex",
            FailureKind::Storage => "storage",
            FailureKind::ReadingFailed => "reading_failed",
            FailureKind::NoSlot => "no_slot",
            FailureKind::Internal => "internal",
            FailureKind::Abandoned => "abandoned",
            FailureKind::Released => "released",
            FailureKind::Cancelled => "cancelled",
            FailureKind::LeaseLost => "lease_lost",
            FailureKind::OutcomeUnknown => "outcome_unknown",
            FailureKind::RunLost => "run_lost",
            FailureKind::Database => "database",
            FailureKind::GaveUp => "gave_up",
        }
    }

    /// Reads a recorded word back; `None` for a word that no version of ours wrote.
    pub fn parse(word: &str) -> Option<FailureKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl std::fmt::Display for FailureKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::FailureKind;

    #[test]
    fn every_kind_has_a_word_of_its_own_and_is_read_back() {
        for (at, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at, "ALL holds every kind in order");
            assert_eq!(FailureKind::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(FailureKind::GaveUp as usize + 1, FailureKind::ALL.len());
        assert_eq!(FailureKind::parse("Transient"), None);
        assert_eq!(FailureKind::parse(""), None);
    }
}
