//! A setting that is wrong, and the checks that more than one section needs.

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
