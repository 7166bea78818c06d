//! The models: which there are, what they cost, what follows on a filtered answer, and what an
//! answer must keep.

use std::collections::BTreeMap;

use regex::Regex;

use super::file::ModelSection;
use super::wrong::{SIMULATED, Wrong, at_least_one, given, wrong};
use super::{Model, Provider, ProviderKind};
use crate::domain::rules::{AnswerRules, Schema};
use crate::domain::usage::Prices;

/// The model of a request that names none.
const DEFAULT_MODEL: &str = "default";

/// The models, and what is odd about them.
pub(super) fn check(
    mut sections: BTreeMap<String, ModelSection>,
    providers: &BTreeMap<String, Provider>,
) -> Result<(BTreeMap<String, Model>, Vec<String>), Wrong> {
    let only = providers.iter().next().filter(|_| providers.len() == 1);
    if sections.is_empty() {
        match only {
            Some((_, Provider { kind: ProviderKind::Simulated(_), .. })) => {
                sections.insert(DEFAULT_MODEL.to_owned(), ModelSection::default());
            }
            _ => {
                let name = providers.keys().next().map_or("main", String::as_str);
                return Err(wrong(
                    "models",
                    format!(
                        "there is none: say which model clients get, as in [models.default] provider = {name:?} upstream = \"the vendor's name of the model\""
                    ),
                ));
            }
        }
    }
    let mut warnings = Vec::new();
    if !sections.contains_key(DEFAULT_MODEL) {
        warnings.push(format!(
            "no model is called {DEFAULT_MODEL}: requests that name none will be refused"
        ));
    }
    let mut models = BTreeMap::new();
    for (name, section) in sections {
        let model = model(&name, section, providers, &mut warnings)?;
        models.insert(name, model);
    }
    for (name, model) in &models {
        ladder(name, model, &models)?;
    }
    Ok((models, warnings))
}

fn model(
    name: &str,
    section: ModelSection,
    providers: &BTreeMap<String, Provider>,
    warnings: &mut Vec<String>,
) -> Result<Model, Wrong> {
    let at = |field: &str| format!("models.{name}.{field}");
    let known = || providers.keys().cloned().collect::<Vec<_>>().join(", ");
    let only = providers.keys().next().filter(|_| providers.len() == 1);
    let Some(provider) = section.provider.as_ref().or(only) else {
        return Err(wrong(at("provider"), format!("it is missing: one of {}", known())));
    };
    let Some(Provider { kind, .. }) = providers.get(provider) else {
        return Err(wrong(
            at("provider"),
            format!("there is no provider {provider:?}: one of {}", known()),
        ));
    };
    let simulated = matches!(kind, ProviderKind::Simulated(_));
    let upstream = match given(section.upstream.as_deref()) {
        Some(upstream) => upstream.to_owned(),
        None if simulated => SIMULATED.to_owned(),
        None => return Err(wrong(at("upstream"), "it is missing: the vendor's name of the model")),
    };
    if !simulated && (section.input_usd_per_mtok.is_none() || section.output_usd_per_mtok.is_none())
    {
        warnings.push(format!(
            "model {name} has no price for its input or its output: receipts count that as free"
        ));
    }
    let rules = rules(name, &section)?;
    let input = section.input_usd_per_mtok.unwrap_or_default();
    let max_output_tokens = section.max_output_tokens.unwrap_or(8_192);
    at_least_one(at("max_output_tokens"), max_output_tokens)?;
    Ok(Model {
        provider: provider.clone(),
        upstream,
        max_output_tokens,
        temperature: section.temperature.unwrap_or(true),
        // Nearly every model of the vendors does; the simulated one sees nothing.
        images: section.images.unwrap_or(!simulated),
        prices: Prices {
            input: input.0,
            output: section.output_usd_per_mtok.unwrap_or_default().0,
            // Cached tokens are input: without a price of their own they are not free.
            cache_read: section.cache_read_usd_per_mtok.unwrap_or(input).0,
            cache_write: section.cache_write_usd_per_mtok.unwrap_or(input).0,
        },
        system: section.system.unwrap_or_default(),
        tiers: section.tiers.unwrap_or_default(),
        rules,
    })
}

/// Each tier is another model that there is, and stands on the ladder once.
fn ladder(name: &str, model: &Model, models: &BTreeMap<String, Model>) -> Result<(), Wrong> {
    for (place, tier) in model.tiers.iter().enumerate() {
        let at = || format!("models.{name}.tiers");
        if !models.contains_key(tier) {
            let known = models.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(wrong(at(), format!("there is no model {tier:?}: one of {known}")));
        }
        if tier == name || model.tiers[..place].contains(tier) {
            return Err(wrong(at(), format!("{tier:?}: each model is asked once")));
        }
    }
    Ok(())
}

fn rules(name: &str, section: &ModelSection) -> Result<AnswerRules, Wrong> {
    let at = |field: &str| format!("models.{name}.{field}");
    if let Some(count) = section.max_chars {
        at_least_one(at("max_chars"), count)?;
    }
    let pattern = given(section.must_match.as_deref()).map(Regex::new).transpose();
    let schema = given(section.json_schema.as_deref()).map(Schema::read).transpose();
    Ok(AnswerRules {
        max_chars: section.max_chars.map(|count| count as usize),
        must_match: pattern.map_err(|error| {
            let error = error.to_string();
            wrong(at("must_match"), error.lines().last().unwrap_or_default().trim())
        })?,
        json_schema: schema.map_err(|error| wrong(at("json_schema"), error))?,
    })
}
