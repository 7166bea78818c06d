#![no_main]

#[allow(dead_code, reason = "some of it is for tests/fuzz")]
#[path = "../../tests/fuzz/body.rs"]
mod body;
#[allow(dead_code, reason = "not all of it is fuzzed here")]
mod domain;

use domain::chat::ChatRequest;

pub type Judged = Result<String, String>;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Err(wrong) = body::judge(ChatRequest::read, input) {
        panic!("{wrong}");
    }
});
