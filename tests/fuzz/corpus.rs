//! What the inputs of each target grow from.

use std::fs;
use std::path::Path;

use super::driver::{Corpus, files};

const REQUESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/requests");

/// The recorded requests, and the words that matter in one.
pub fn bodies() -> Corpus {
    let json = |file: &Path| file.extension().is_some_and(|extension| extension == "json");
    let mut seeds: Vec<_> = files(Path::new(REQUESTS))
        .into_iter()
        .filter(|file| json(file))
        .map(|file| fs::read(file).unwrap())
        .collect();
    assert!(seeds.len() > 10, "the recorded requests are missing");
    seeds.push(
        br#"{"conversation_id":"c","message":"m","model":null,"stream":true,"options":{},
        "metadata":{"a":[1,-2.5e3,true,null,{"b":"\ud83e\udd16"}]}}"#
            .to_vec(),
    );
    let words = &[
        "\"conversation_id\":",
        "\"message\":",
        "\"model\":",
        "\"options\":",
        "\"temperature\":",
        "\"max_tokens\":",
        "\"stream\":",
        "\"metadata\":",
        "\"mess\\u0061ge\":",
        "null",
        "true",
        "{}",
        "[]",
        "{",
        "}",
        ",",
        "\"\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\\",
        "0",
        "-0",
        "7",
        "1e999",
        "1e-400",
        "2.0000000000000001",
        "4294967295",
        "4294967296",
        "12345678901234567890123",
        "0.300000000000000040",
        "\u{c}",
        "\u{feff}",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    ];
    Corpus { seeds, words }
}

/// Keys as they are sent, two of them in one input with a line between.
pub fn keys() -> Corpus {
    let seeds = [
        "0b1f8c3a-52a7-4f0e-9a57-3c6f2d1e8b90\n0B1F8C3A-52A7-4F0E-9A57-3C6F2D1E8B90",
        "\"0b1f8c3a-52a7-4f0e-9a57-3c6f2d1e8b90\"\n0b1f8c3a52a74f0e9a573c6f2d1e8b90",
        "0b1f8c3a-52a7-8f0e-9a57-3c6f2d1e8b90\n00000000-0000-0000-0000-000000000000",
        "order-17\n\"order-17\"",
        "\"a\\\"b\"\na\"b",
        " \"a\\\\b\" \n\ta\\b",
        "Order:17/x=%20\norder:17/x=%20",
    ];
    let long = "k".repeat(255);
    let mut seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    seeds.push(format!("{long}\n\"{long}\"").into_bytes());
    seeds.push(format!("{long}k\n\"{long}k\"").into_bytes());
    let words = &[
        "\"",
        "\\",
        "\\\"",
        "\\\\",
        ",",
        " ",
        "\n",
        "-",
        "urn:uuid:",
        "{",
        "}",
        "f",
        "\u{e9}",
        "0b1f8c3a-52a7-4f0e-9a57-3c6f2d1e8b90",
        "0b1f8c3a-52a7-8f0e-9a57-3c6f2d1e8b90",
        "0b1f8c3a-52a7-8f0e-1a57-3c6f2d1e8b90",
    ];
    Corpus { seeds, words }
}

/// Any bytes are choices; see `meaning.rs`.
pub fn choices() -> Corpus {
    let counted = |step: u8| (0..120u8).map(|n| n.wrapping_mul(step).wrapping_add(step)).collect();
    Corpus { seeds: vec![counted(1), counted(37), counted(91), counted(203)], words: &[] }
}
