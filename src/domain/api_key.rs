//! API keys: their form, their hash, and what each role may do.

use std::fmt;

use sha2::{Digest, Sha256};

use super::ids::{Subject, TenantId};

/// What every key begins with, so that leaked ones can be searched for.
const PREFIX: &str = "ok_";

/// What the bearer of a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRole {
    /// Chats and parses; reads its tenant's requests and conversations.
    Client,
    /// Reads usage.
    Finance,
    /// Reads requests, conversations and usage.
    Operator,
}

impl ApiRole {
    pub fn as_str(self) -> &'static str {
        match self {
            ApiRole::Client => "client",
            ApiRole::Finance => "finance",
            ApiRole::Operator => "operator",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "client" => Some(ApiRole::Client),
            "finance" => Some(ApiRole::Finance),
            "operator" => Some(ApiRole::Operator),
            _ => None,
        }
    }

    /// Whether it may start operations.
    pub fn may_run(self) -> bool {
        match self {
            ApiRole::Client => true,
            ApiRole::Finance | ApiRole::Operator => false,
        }
    }

    /// Whether it may read requests and conversations.
    pub fn may_read(self) -> bool {
        match self {
            ApiRole::Client | ApiRole::Operator => true,
            ApiRole::Finance => false,
        }
    }

    /// Whether it may read what was used and what it cost.
    pub fn may_read_usage(self) -> bool {
        match self {
            ApiRole::Finance | ApiRole::Operator => true,
            ApiRole::Client => false,
        }
    }
}

/// A key in the clear; shown once, never kept.
pub struct ApiKey(String);

impl ApiKey {
    /// From 32 bytes that nobody can guess.
    pub fn from_secret(secret: [u8; 32]) -> Self {
        let mut text = PREFIX.to_owned();
        for byte in secret {
            text.push_str(&format!("{byte:02x}"));
        }
        Self(text)
    }

    /// Reads what a client sent. `None`: it cannot be one of ours, so nothing needs to be asked.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX)?;
        let ours = rest.len() == 64 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        ours.then(|| Self(text.to_owned()))
    }

    /// What is kept. A plain hash is enough: the key has 256 bits that no dictionary holds.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The key itself, for the one place that shows it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ApiKey(…)")
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Bearer {
    pub tenant: TenantId,
    pub role: ApiRole,
    /// The end user a key is bound to.
    pub subject: Option<Subject>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_and_never_printed() {
        let key = ApiKey::from_secret([171; 32]);
        assert_eq!(ApiKey::parse(key.reveal()).unwrap().hash(), key.hash());
        assert!(!format!("{key:?}").contains("ab"));
        for other in ["", "ok_", "ok_xyz", &key.reveal()[3..], &format!("{}0", key.reveal())] {
            assert!(ApiKey::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn roles_are_read_back() {
        for role in [ApiRole::Client, ApiRole::Finance, ApiRole::Operator] {
            assert_eq!(ApiRole::parse(role.as_str()), Some(role));
        }
        assert_eq!(ApiRole::parse("root"), None);
    }
}
