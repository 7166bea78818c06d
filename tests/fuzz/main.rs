//! Inputs that nobody thought of, for what stands at the door: the body of a chat, the
//! `Idempotency-Key` and the request hash. Each target holds what the product says about an input
//! against a second reading of its own (`body.rs`, `key.rs`, `meaning.rs`), and inputs grow by mutation
//! from recorded ones (`driver.rs`).
//!
//! Within `cargo test` the same inputs come each time, so a run fails for a change alone. More of them:
//!
//! ```sh
//! ONCEKEY_FUZZ_SECONDS=3600 cargo test --release --test fuzz   # each target for an hour, a new seed
//! ONCEKEY_FUZZ_SEED=4711 …                                     # the inputs of that seed
//! ONCEKEY_FUZZ_INPUT=FILE cargo test --test fuzz chat_body     # one input again
//! fuzz/run chat_body 3600                                      # guided by coverage, see fuzz/README.md
//! ```
//!
//! An input that failed is made as short as it can be, written to a file and named in the report. When
//! its cause is mended it goes into `kept/<target>/`, where it is always tried first.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test ends where it cannot go on, keeps real time and reports to its reader"
)]

mod body;
mod corpus;
mod driver;
mod key;
mod meaning;
#[expect(dead_code, reason = "the histories need more of it")]
#[path = "../simulation/rng.rs"]
mod rng;

use driver::{Budget, Corpus, Found, fuzz};
use oncekey::domain;
use oncekey::domain::chat::ChatRequest;
use oncekey::domain::key::IdempotencyKey;

/// What came of one input: its shape, or what is wrong. Inputs of a shape that was not seen before are
/// worth growing further.
pub type Judged = Result<String, String>;

#[test]
fn chat_body() {
    driver::check("chat_body", &corpus::bodies(), |input| body::judge(ChatRequest::read, input));
}

#[test]
fn idempotency_key() {
    driver::check("idempotency_key", &corpus::keys(), |input| {
        key::judge(IdempotencyKey::parse, input)
    });
}

#[test]
fn request_hash() {
    driver::check("request_hash", &corpus::choices(), |input| {
        meaning::judge(ChatRequest::meaning, input)
    });
}

/// What `cargo test` tries is enough to see a fault like each of these, and shows it in few bytes.
mod planted {
    use super::*;

    fn found(corpus: &Corpus, target: impl Fn(&[u8]) -> Judged) -> Found {
        let found = fuzz("planted", corpus, Budget::small(), &target);
        let found = found.expect("a planted fault was not found");
        assert_eq!(
            driver::judged(&target, &found.input),
            Err(found.wrong.clone()),
            "it does not fail again"
        );
        found
    }

    #[test]
    fn a_body_whose_later_member_wins() {
        // The message of a request could be replaced behind the back of what has read it before.
        let found = found(&corpus::bodies(), |input| {
            let forgiving = |text: &str| {
                let last: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(text).map_err(|_| body::refusal())?;
                ChatRequest::read(&serde_json::Value::Object(last).to_string())
            };
            body::judge(forgiving, input)
        });
        assert!(found.input.len() < 120, "{:?}", String::from_utf8_lossy(&found.input));
    }

    #[test]
    fn a_body_that_ends_the_process() {
        let found = found(&corpus::bodies(), |input| {
            let careless = |text: &str| {
                let request = ChatRequest::read(text)?;
                // Characters are not bytes.
                let preview = &request.message[..request.message.len().min(2)];
                assert!(preview.len() <= 2);
                Ok(request)
            };
            body::judge(careless, input)
        });
        assert!(found.wrong.contains("not a char boundary"), "{}", found.wrong);
    }

    #[test]
    fn a_key_that_takes_commas() {
        let found = found(&corpus::keys(), |input| {
            key::judge(|value| IdempotencyKey::parse(&value.replace_all(b',', b'.')), input)
        });
        assert!(found.input.len() < 4, "{:?}", found.input);
    }

    #[test]
    fn a_hash_that_forgets_a_field() {
        found(&corpus::choices(), |input| {
            let forgetful = |request: &ChatRequest, subject: Option<&domain::ids::Subject>| {
                ChatRequest { max_tokens: None, ..request.clone() }.meaning(subject)
            };
            meaning::judge(forgetful, input)
        });
    }

    #[test]
    fn a_hash_of_more_than_the_meaning() {
        found(&corpus::choices(), |input| {
            let wordy = |request: &ChatRequest, subject: Option<&domain::ids::Subject>| {
                let metadata = request.metadata.clone().unwrap_or_default();
                let message = request.message.clone() + &metadata;
                ChatRequest { message, ..request.clone() }.meaning(subject)
            };
            meaning::judge(wordy, input)
        });
    }

    trait ReplaceAll {
        fn replace_all(&self, from: u8, to: u8) -> Vec<u8>;
    }

    impl ReplaceAll for [u8] {
        fn replace_all(&self, from: u8, to: u8) -> Vec<u8> {
            self.iter().map(|&byte| if byte == from { to } else { byte }).collect()
        }
    }
}
