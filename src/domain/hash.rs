//! The hash of what a request means: equal for two bodies of one meaning, different otherwise.

use sha2::{Digest, Sha256};

/// SHA-256 of a request's meaning. Compared before anything is replayed or reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHash(pub [u8; 32]);

/// Feeds named, length-prefixed fields to the hash, so that no two lists of fields run into one.
pub struct MeaningHasher(Sha256);

impl MeaningHasher {
    /// `endpoint` is part of the meaning: the same body elsewhere is another request.
    pub fn new(endpoint: &str) -> Self {
        let mut this = Self(Sha256::new());
        this.bytes("endpoint", endpoint.as_bytes());
        this
    }

    fn bytes(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), value] {
            self.0.update((part.len() as u64).to_be_bytes());
            self.0.update(part);
        }
    }

    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.bytes(name, value.as_bytes());
        self
    }

    /// An absent field leaves no trace: it is the same as one that was never known.
    pub fn text_if(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        if let Some(value) = value {
            self.text(name, value);
        }
        self
    }

    /// By value: `1`, `1.0` and `1e0` are one number, and so are the two zeros.
    pub fn number_if(&mut self, name: &str, value: Option<f64>) -> &mut Self {
        if let Some(value) = value {
            let value = if value == 0.0 { 0.0 } else { value };
            self.bytes(name, &value.to_be_bytes());
        }
        self
    }

    pub fn finish(self) -> RequestHash {
        RequestHash(self.0.finalize().into())
    }
}
