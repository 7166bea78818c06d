#![no_main]

#[allow(dead_code, reason = "not all of it is fuzzed here")]
mod domain;
#[allow(dead_code, reason = "some of it is for tests/fuzz")]
#[path = "../../tests/fuzz/meaning.rs"]
mod meaning;

use domain::chat::ChatRequest;

pub type Judged = Result<String, String>;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Err(wrong) = meaning::judge(ChatRequest::meaning, input) {
        panic!("{wrong}");
    }
});
