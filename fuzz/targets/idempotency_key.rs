#![no_main]

#[allow(dead_code, reason = "not all of it is fuzzed here")]
mod domain;
#[allow(dead_code, reason = "some of it is for tests/fuzz")]
#[path = "../../tests/fuzz/key.rs"]
mod key;

use domain::key::IdempotencyKey;

pub type Judged = Result<String, String>;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Err(wrong) = key::judge(IdempotencyKey::parse, input) {
        panic!("{wrong}");
    }
});
