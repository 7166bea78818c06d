//! The models that clients may name, each with its provider and that provider's slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use sha2::{Digest, Sha256};

use super::slots::Slots;
use crate::domain::prompt::{Parameter, Parameters};
use crate::domain::rules::AnswerRules;
use crate::domain::usage::{PriceId, Prices};
use crate::provider::Provider;

/// A model as clients name it.
#[derive(Clone)]
pub struct Model {
    pub name: String,
    pub provider: Arc<dyn Provider>,
    /// Shared by all models of one provider.
    pub slots: Slots,
    /// The vendor's own name.
    pub upstream: String,
    pub max_output_tokens: u32,
    /// Whether it takes a temperature at all, as far as the operator knows.
    pub temperature: bool,
    /// Whether it takes pictures.
    pub images: bool,
    pub prices: Prices,
    /// Where the prices stand in the book.
    pub price: Option<PriceId>,
    pub system: Arc<str>,
    /// What an answer of it must keep.
    pub rules: AnswerRules,
    /// The models to ask in turn where a filter stopped this one's answer.
    pub tiers: Vec<String>,
    pub refused: Refused,
    /// What an input was refused by, as [`Model::identity`] tells it: another text means another model.
    pub identity: String,
    pub rejections: Rejections,
}

/// Inputs that a model rejected with nothing answered in between; clones are the same. A few may be
/// bad inputs; many in a row are a fault of ours or the provider's.
#[derive(Debug, Clone, Default)]
pub struct Rejections(Arc<AtomicU32>);

/// Rejections in a row that are still believed to be the inputs' own fault.
const BELIEVED_REJECTIONS: u32 = 5;

impl Rejections {
    /// An input was rejected. Returns whether that is believed to be its own fault.
    pub fn one_more(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < BELIEVED_REJECTIONS
    }

    /// An input was answered.
    pub fn none(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The parameters that a model has refused since this node started; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Refused(Arc<AtomicU8>);

impl Refused {
    /// It refused this one, and is not sent it again.
    pub fn remember(&self, parameter: Parameter) {
        self.0.fetch_or(Parameters::NONE.with(parameter).bits(), Ordering::Relaxed);
    }

    pub fn parameters(&self) -> Parameters {
        Parameters::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl Model {
    /// Tells this model from any other that the same name may have meant before: provider, upstream,
    /// and a digest of whatever goes into what it, or a model below it on its ladder, refuses.
    pub fn identity(model: &Asked<'_>, tiers: &[Asked<'_>]) -> String {
        let digest = Sha256::digest(format!("{model:?}{tiers:?}"));
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{}/{}/{digest}", model.provider, model.upstream)
    }

    /// Whether a call of it carries a temperature where one is asked for.
    pub fn takes_temperature(&self) -> bool {
        self.temperature && !self.refused.parameters().contains(Parameter::Temperature)
    }
}

/// What a model's refusals depend on, beside the input.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub provider: &'a str,
    pub upstream: &'a str,
    pub system: &'a str,
    pub max_output_tokens: u32,
    pub temperature: bool,
}

/// All models by name.
pub type Models = BTreeMap<String, Model>;
