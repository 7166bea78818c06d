//! What a run stands on: for those who do its work, and for the one who writes its end.

use super::Inner;
use super::attempts::Attempts;
use super::calls::CallLog;
use super::models::Model;
use super::routes::Routes;
use crate::clock::Moment;
use crate::domain::failure::{Cause, FailureKind};
use crate::domain::ids::Subject;
use crate::domain::prompt::Answer;
use crate::domain::request::RunRequest;
use crate::domain::retry::RetryRules;
use crate::store::{Claim, StoreError};
use crate::streams::Writer;

/// A run and what it stands on.
pub(super) struct Run<'a> {
    pub inner: &'a Inner,
    pub claim: &'a Claim,
    pub request: &'a RunRequest,
    pub subject: Option<&'a Subject>,
    pub model: &'a Model,
    /// Where the text goes as it comes.
    pub stream: &'a Writer,
    /// The moment before the claim was sent.
    pub begun: Moment,
}

impl<'a> Run<'a> {
    /// The loop for one prompt of this run.
    pub fn attempts<'b, T>(
        &'b self,
        ladder: &'b [&'a Model],
        routes: &'b Routes,
        calls: &'b CallLog,
        rules: &'b RetryRules,
        accept: &'b (dyn Fn(&Answer) -> Result<T, Cause> + Sync),
    ) -> Attempts<'b, 'a, T> {
        let before_run = (self.claim.claimed_at - self.claim.first_claimed_at).to_std();
        Attempts {
            tenant: &self.claim.at.tenant,
            ladder,
            accept,
            routes,
            stream: None,
            clock: &self.inner.clock,
            faults: &self.inner.faults,
            rules,
            calls,
            before_run: before_run.unwrap_or_default(),
            begun: self.begun,
        }
    }

    /// The model that was asked for, and its tiers. Names that lead nowhere were refused at the start.
    pub fn ladder(&self) -> Vec<&'a Model> {
        let tiers = self.model.tiers.iter().filter_map(|tier| self.inner.models.get(tier));
        std::iter::once(self.model).chain(tiers).collect()
    }
}

/// How a failure of the store's ends a run.
pub(super) fn kind_of(error: &StoreError) -> FailureKind {
    match error {
        StoreError::Unavailable(_)
        | StoreError::NotSent(_)
        | StoreError::Conflict(_)
        | StoreError::PartitionMissing => FailureKind::Database,
        StoreError::LeaseLost => FailureKind::LeaseLost,
        StoreError::Corrupt { .. } | StoreError::Bug(_) => FailureKind::Internal,
    }
}
