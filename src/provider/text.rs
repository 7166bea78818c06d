//! JSON both ways: what is sent, what others send that is not quite JSON, and bounded pieces of it.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::domain::text::without_lone_surrogates;

/// The JSON of a request's body.
pub(super) fn to_bytes(body: &impl Serialize) -> Vec<u8> {
    // Fails for maps with keys that are no strings, and for writers that fail: here is neither.
    serde_json::to_vec(body).unwrap_or_default()
}

/// Parses JSON, taking what strict parsers refuse but models send: an escape that is half of a
/// surrogate pair becomes U+FFFD, and a byte order mark is skipped. An escaped backslash in front
/// of such text stays what it is. U+0000 is left for the caller, who knows where it goes.
///
/// # Errors
/// What the parser says, for anything else that is no JSON.
pub(super) fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(error) => match without_lone_surrogates(text) {
            Cow::Owned(mended) => serde_json::from_str(&mended),
            Cow::Borrowed(_) => Err(error),
        },
    }
}

/// At most `limit_bytes` of the text, cut between characters; for errors and logs alone, never
/// for an answer.
pub(super) fn snippet(text: &str, limit_bytes: usize) -> String {
    text[..text.floor_char_boundary(limit_bytes)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(json: &str) -> String {
        parse_json(json).unwrap().as_str().unwrap().to_owned()
    }

    #[test]
    fn half_a_pair_becomes_the_replacement_character() {
        assert_eq!(parsed(r#""Tea \ud83e and""#), "Tea \u{fffd} and");
        assert_eq!(parsed(r#""Tea \uDD16 and""#), "Tea \u{fffd} and");
        assert_eq!(parsed(r#""\ud83e\ud83e\udd16\udd16""#), "\u{fffd}\u{1f916}\u{fffd}");
        assert_eq!(parsed(r#""\ud83e\n\\\ud83e""#), "\u{fffd}\n\\\u{fffd}");
        assert_eq!(parsed(r#""\ud83e\u0041""#), "\u{fffd}A");
    }

    #[test]
    fn what_only_looks_like_an_escape_stays() {
        assert_eq!(parsed(r#""type \\u0000 and \\ud83e""#), r"type \u0000 and \ud83e");
        assert_eq!(parsed(r#""\\\\ud83e \ud83e""#), "\\\\ud83e \u{fffd}");
        assert_eq!(parsed(r#""a\u0000b""#), "a\0b", "left for the caller");
    }

    #[test]
    fn a_mark_in_front_is_skipped_and_broken_json_stays_broken() {
        assert_eq!(parsed("\u{feff}\"x\""), "x");
        for broken in ["", "\"\\", "\"\\u", "\"\\ud83e", "\"\\ud8", "{", "   .", "\"\\ué000\""] {
            assert!(parse_json(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_snippet_ends_between_characters() {
        assert_eq!(snippet("aé", 2), "a");
        assert_eq!(snippet("aé", 3), "aé");
        assert_eq!(snippet("", 3), "");
    }

    proptest! {
        /// Units at random, as escapes: the same text as a decoder makes that replaces halves.
        #[test]
        fn any_units_are_read_as_a_lossy_decoder_reads_them(
            units in prop::collection::vec(prop_oneof![
                any::<u16>(), 0xd800u16..0xe000, Just(0xd83e), Just(0xdd16),
            ], 0..12),
        ) {
            let escapes: String = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
            let text = parsed(&format!("\"{escapes}\""));
            prop_assert_eq!(text, String::from_utf16_lossy(&units));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}", limit in 0usize..50) {
            let _ = parse_json(&text);
            let _ = parse_json(&format!("\"\\ud83e{text}\\u"));
            prop_assert!(snippet(&text, limit).len() <= limit);
        }
    }
}
