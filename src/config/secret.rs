//! Values that must not reach a log: they show themselves only to who asks for them by name.

use std::fmt;

use url::Url;

use super::{ConfigError, Environment};

/// Text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A secret that stands in a variable, which the configuration names.
///
/// That it is missing is an error only for who uses it: the person who drops partitions has no
/// business with the key of the provider account.
#[derive(Debug, Clone)]
pub struct SecretVariable {
    variable: String,
    holds: &'static str,
    value: Option<Secret>,
}

impl SecretVariable {
    /// Blanks around the value are cut off: a key that was read from a file ends in a line break,
    /// which no header can carry.
    pub(super) fn look_up(
        variable: &str,
        holds: &'static str,
        environment: &Environment,
    ) -> SecretVariable {
        let value = environment.get(variable).map(str::trim).filter(|value| !value.is_empty());
        SecretVariable {
            variable: variable.to_owned(),
            holds,
            value: value.map(|value| Secret(value.to_owned())),
        }
    }

    /// The name of the variable.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// The value; an error that names the variable where it is not set or blank.
    pub fn get(&self) -> Result<&Secret, ConfigError> {
        self.value.as_ref().ok_or_else(|| ConfigError::SecretMissing {
            variable: self.variable.clone(),
            holds: self.holds,
        })
    }
}

/// The address of a database. `Display` and `Debug` show it without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(Url);

impl DatabaseUrl {
    /// The error tells what is wrong without repeating the text.
    pub(super) fn parse(text: &str) -> Result<DatabaseUrl, String> {
        let expected = "expected postgres://user:password@host:port/database";
        let url = Url::parse(text).map_err(|error| format!("{error}; {expected}"))?;
        match url.scheme() {
            "postgres" | "postgresql" => Ok(DatabaseUrl(url)),
            _ => Err(format!("no address of a PostgreSQL database; {expected}")),
        }
    }

    /// The address as it was given, with its password.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HIDDEN: &str = "hidden";
        let mut shown = self.0.clone();
        if shown.password().is_some() {
            // Refused only for an address without a host, which has no password.
            let _ = shown.set_password(Some(HIDDEN));
        }
        if shown.query().is_some() {
            // The password may also stand behind the question mark.
            let pairs: Vec<_> = self.0.query_pairs().collect();
            shown.query_pairs_mut().clear().extend_pairs(pairs.iter().map(|(name, value)| {
                (name, if name.to_lowercase().contains("password") { HIDDEN } else { value })
            }));
        }
        shown.fmt(f)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
