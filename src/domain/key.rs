//! The idempotency key: what a client may send, and under which UUID it is kept.

use std::borrow::Cow;

use sha2::{Digest, Sha256};
use uuid::{Uuid, Variant};

/// The longest key a client may send, in characters.
pub const MAX_KEY_CHARS: usize = 255;

/// Where a key came from (`request_records.key_source`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// A UUID of the client's.
    Client,
    /// Other text of the client's, kept under a UUIDv8 from its hash.
    Opaque,
    /// Made from the request, because none was sent.
    Derived,
    /// Made at random, because none was sent and the policy asks for no deduplication.
    Absent,
}

impl KeySource {
    pub fn as_str(self) -> &'static str {
        match self {
            KeySource::Client => "client",
            KeySource::Opaque => "opaque",
            KeySource::Derived => "derived",
            KeySource::Absent => "absent",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "client" => Some(KeySource::Client),
            "opaque" => Some(KeySource::Opaque),
            "derived" => Some(KeySource::Derived),
            "absent" => Some(KeySource::Absent),
            _ => None,
        }
    }
}

/// A key as it names an operation within a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub id: Uuid,
    pub source: KeySource,
    /// The client's own text, where it was no UUID.
    pub text: Option<String>,
}

/// Why a key was not taken; the text goes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("Idempotency-Key was sent more than once; send it once.")]
    Doubled,
    #[error("Idempotency-Key is empty.")]
    Empty,
    #[error("Idempotency-Key is longer than 255 characters.")]
    TooLong,
    #[error(
        "Idempotency-Key holds a character that is not allowed: use printable ASCII without blanks and commas."
    )]
    Character,
    #[error("Idempotency-Key is not well quoted: send it bare, or as one quoted string.")]
    Quotes,
}

impl IdempotencyKey {
    /// Reads one header value (or path segment), bare or as a quoted structured-field string.
    pub fn parse(value: &[u8]) -> Result<Self, KeyError> {
        let value = value.trim_ascii();
        let bare: Cow<'_, [u8]> = match (value.strip_prefix(b"\""), value.strip_suffix(b"\"")) {
            (Some(_), Some(_)) if value.len() >= 2 => unescaped(&value[1..value.len() - 1])?.into(),
            (None, None) => value.into(),
            _ => return Err(KeyError::Quotes),
        };
        if bare.is_empty() {
            return Err(KeyError::Empty);
        }
        // A comma is what a proxy joins doubled headers with.
        if !bare.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',') {
            return Err(KeyError::Character);
        }
        // Shown again, such a text would be read as a quoted one.
        if bare.starts_with(b"\"") || bare.ends_with(b"\"") {
            return Err(KeyError::Quotes);
        }
        if bare.len() > MAX_KEY_CHARS {
            return Err(KeyError::TooLong);
        }
        let text: String = bare.iter().map(|&byte| char::from(byte)).collect();
        Ok(Self::from_text(text))
    }

    fn from_text(text: String) -> Self {
        if let Some(id) = hyphenated_uuid(&text) {
            return Self { id, source: KeySource::Client, text: None };
        }
        let id = uuid_of(&[b"oncekey opaque key", text.as_bytes()]);
        Self { id, source: KeySource::Opaque, text: Some(text) }
    }

    /// A key that the service made itself.
    pub fn made(id: Uuid, source: KeySource) -> Self {
        Self { id, source, text: None }
    }

    /// The form in which the key goes back to the client and into a path.
    pub fn shown(&self) -> String {
        self.text.clone().unwrap_or_else(|| self.id.to_string())
    }
}

/// What stands between the quotes of a structured-field string, in which a backslash stands before a
/// quote or another backslash and nowhere else.
fn unescaped(inner: &[u8]) -> Result<Vec<u8>, KeyError> {
    let mut text = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().copied();
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'"' => return Err(KeyError::Quotes),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => escaped,
                _ => return Err(KeyError::Quotes),
            },
            other => other,
        });
    }
    Ok(text)
}

/// A UUID in its hyphenated form, in either letter case, and of no version that the service makes
/// itself: a version 8 of the client's own is opaque text, so that the two cannot meet.
fn hyphenated_uuid(text: &str) -> Option<Uuid> {
    if text.len() != 36 {
        return None;
    }
    let id = Uuid::try_parse(text).ok()?;
    let ours = id.get_version_num() == 8 && id.get_variant() == Variant::RFC4122;
    (!ours).then_some(id)
}

/// A UUIDv8 from the SHA-256 of parts that cannot run into each other.
pub fn uuid_of(parts: &[&[u8]]) -> Uuid {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::new_v8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "0b1f8c3a-52a7-4f0e-9a57-3c6f2d1e8b90";

    #[test]
    fn a_uuid_is_the_same_key_in_every_spelling() {
        let bare = IdempotencyKey::parse(V4.as_bytes()).unwrap();
        assert_eq!(bare.source, KeySource::Client);
        for spelling in [format!("\"{V4}\""), V4.to_uppercase(), format!("  {V4} ")] {
            assert_eq!(IdempotencyKey::parse(spelling.as_bytes()).unwrap(), bare, "{spelling}");
        }
    }

    #[test]
    fn other_text_is_opaque_and_case_sensitive() {
        let lower = IdempotencyKey::parse(b"order-17").unwrap();
        assert_eq!(lower.source, KeySource::Opaque);
        assert_eq!(lower.shown(), "order-17");
        assert_eq!(IdempotencyKey::parse(b"\"order-17\"").unwrap(), lower);
        assert_ne!(IdempotencyKey::parse(b"Order-17").unwrap().id, lower.id);
        assert_eq!(lower.id.get_version_num(), 8);
    }

    #[test]
    fn a_quoted_string_is_read_without_its_escapes() {
        for (quoted, bare) in [(r#""a\\b""#, r"a\b"), (r#""a\"b""#, r#"a"b"#)] {
            let bare = IdempotencyKey::parse(bare.as_bytes()).unwrap();
            assert_eq!(IdempotencyKey::parse(quoted.as_bytes()).unwrap(), bare);
            assert_eq!(IdempotencyKey::parse(bare.shown().as_bytes()).unwrap(), bare);
        }
    }

    #[test]
    fn a_clients_own_version_8_cannot_meet_one_of_ours() {
        let ours = IdempotencyKey::parse(b"order-17").unwrap();
        let theirs = IdempotencyKey::parse(ours.id.to_string().as_bytes()).unwrap();
        assert_eq!(theirs.source, KeySource::Opaque);
        assert_ne!(theirs.id, ours.id);
    }

    #[test]
    fn odd_values_are_refused_with_their_reason() {
        let long = "k".repeat(256);
        for (value, error) in [
            (&b""[..], KeyError::Empty),
            (b"   ", KeyError::Empty),
            (b"\"\"", KeyError::Empty),
            (b"\"", KeyError::Quotes),
            (b"\"open", KeyError::Quotes),
            (b"a, b", KeyError::Character),
            (b"a,b", KeyError::Character),
            (b"a b", KeyError::Character),
            (b"a\x01b", KeyError::Character),
            (b"caf\xc3\xa9", KeyError::Character),
            (b"\"a\"b\"", KeyError::Quotes),
            (b"\"a\\b\"", KeyError::Quotes),
            (b"\"a\\\"", KeyError::Quotes),
            (b"\"\\\"a\"", KeyError::Quotes),
            (long.as_bytes(), KeyError::TooLong),
        ] {
            assert_eq!(IdempotencyKey::parse(value), Err(error), "{value:?}");
        }
        assert!(IdempotencyKey::parse("k".repeat(255).as_bytes()).is_ok());
    }
}
