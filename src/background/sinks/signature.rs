//! The signature of Standard Webhooks: HMAC-SHA-256 over id, time and body, once for each secret, so
//! that a secret can be replaced while the receiver still checks the old one.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
/// Bytes of a secret in that form, by the standard.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongSecret {
    #[error("secret {0} is not whsec_ and base64")]
    Encoding(usize),
    #[error("secret {number} has {bytes} bytes behind whsec_: 24 to 64 are needed")]
    Length { number: usize, bytes: usize },
    #[error("there is none")]
    None,
}

/// The secrets of a webhook, the newest first.
#[derive(Clone)]
pub struct SigningSecrets(Vec<Vec<u8>>);

impl SigningSecrets {
    /// Reads secrets that blanks separate. `whsec_…` holds base64, as the standard has it; of another
    /// text its bytes are the key.
    ///
    /// # Errors
    /// The first one that cannot be used, by its number.
    pub fn parse(text: &str) -> Result<Self, WrongSecret> {
        let secrets = text.split_whitespace().enumerate().map(|(at, secret)| {
            let number = at + 1;
            let Some(encoded) = secret.strip_prefix(PREFIX) else {
                return Ok(secret.as_bytes().to_vec());
            };
            let key = STANDARD.decode(encoded).map_err(|_| WrongSecret::Encoding(number))?;
            if LENGTHS.contains(&key.len()) {
                Ok(key)
            } else {
                Err(WrongSecret::Length { number, bytes: key.len() })
            }
        });
        let secrets = secrets.collect::<Result<Vec<_>, _>>()?;
        if secrets.is_empty() { Err(WrongSecret::None) } else { Ok(Self(secrets)) }
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let signed = format!("{id}.{timestamp}.{body}");
        let signatures = self.0.iter().filter_map(|key| {
            // HMAC takes keys of every length.
            let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
            mac.update(signed.as_bytes());
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Debug for SigningSecrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SigningSecrets([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_signs_as_the_standard_does() {
        // The example of the standard's own libraries.
        let secrets = SigningSecrets::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_signs_in_its_turn() {
        let (old, new) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "plain-text");
        let both = SigningSecrets::parse(&format!(" {new}\n{old} ")).unwrap();
        let alone = |secret| SigningSecrets::parse(secret).unwrap().sign("id", 7, "body");
        assert_eq!(both.sign("id", 7, "body"), format!("{} {}", alone(new), alone(old)));
        assert_eq!(format!("{both:?}"), "SigningSecrets([redacted])");
    }

    #[test]
    fn what_is_no_secret_is_named_by_its_number() {
        let wrong = |text| SigningSecrets::parse(text).unwrap_err();
        assert_eq!(wrong(" "), WrongSecret::None);
        assert_eq!(wrong("plain whsec_%%%"), WrongSecret::Encoding(2));
        assert_eq!(wrong("whsec_AAAA"), WrongSecret::Length { number: 1, bytes: 3 });
    }
}
