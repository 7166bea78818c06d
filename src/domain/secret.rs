//! Text that must not be seen.

/// A credential. It has no `Display`, its `Debug` shows nothing of it, and reading it is a call
/// that stands out.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Below this a text is not searched for: it would be found in half of all words.
const SHORTEST_SCRUBBED: usize = 6;

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The credential itself, for the header it goes into.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text without this credential, for what others send back to us: a refusal may repeat
    /// the key that it refuses.
    pub fn scrub(&self, text: &mut String) {
        if self.0.len() >= SHORTEST_SCRUBBED && text.contains(&self.0) {
            *text = text.replace(&self.0, "[redacted]");
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn it_is_not_shown_and_is_taken_out_of_what_others_say() {
        let secret = Secret::new("sk-very-secret");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)).matches("very").count(), 0);
        let mut told = "Incorrect key: sk-very-secret.".to_owned();
        secret.scrub(&mut told);
        assert_eq!(told, "Incorrect key: [redacted].");
        Secret::new("e").scrub(&mut told);
        assert_eq!(told, "Incorrect key: [redacted].");
    }
}
