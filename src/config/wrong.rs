//! A setting that is wrong, and the checks that more than one section needs.

use std::time::Duration;

use url::Url;

/// The name of the provider that serves where none is configured, and that needs no `kind`.
pub(super) const SIMULATED: &str = "simulated";

/// A setting by its dotted name, and what is wrong with it.
pub(super) type Wrong = (String, String);

/// An empty text is how a variable says that there is none.
pub(super) fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

pub(super) fn at_least_one(setting: impl Into<String>, count: u32) -> Result<(), Wrong> {
    if count == 0 { Err(wrong(setting, "0 is too few: at least 1")) } else { Ok(()) }
}

pub(super) fn wrong(setting: impl Into<String>, message: impl Into<String>) -> Wrong {
    (setting.into(), message.into())
}

/// An address without a slash at its end, so that paths are put behind it in one way.
pub(super) fn address(setting: &str, text: &str, schemes: &[&str]) -> Result<String, Wrong> {
    let expected = format!("expected {}://host", schemes.join(":// or "));
    let url = Url::parse(text)
        .map_err(|error| wrong(setting, format!("{text:?}: {error}; {expected}")))?;
    if !schemes.contains(&url.scheme()) || url.host_str().is_none() {
        return Err(wrong(setting, format!("{text:?}: {expected}")));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

pub(super) fn longer_than_zero(setting: impl Into<String>, period: Duration) -> Result<(), Wrong> {
    if period.is_zero() { Err(wrong(setting, "it must be longer than 0s")) } else { Ok(()) }
}
