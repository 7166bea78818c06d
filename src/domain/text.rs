//! Text that PostgreSQL can store, and that JSON parsers take.

use std::borrow::Cow;

/// Replaces U+0000, which no `text` and no `jsonb` takes, by U+FFFD. Done before the commit: a text
/// refused afterwards would have been paid for, and would be again on every retry.
pub fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{FFFD}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// JSON text with every escape that is half of a surrogate pair replaced by that of U+FFFD; borrowed where
/// there is none. An escaped backslash in front of such text stays what it is.
pub fn without_lone_surrogates(text: &str) -> Cow<'_, str> {
    let mut mended: Option<String> = None;
    let mut copied = 0;
    let mut at = 0;
    while let Some(offset) = text[at..].find('\\') {
        let escape = at + offset;
        let Some(unit) = escaped_unit(text, escape) else {
            // Some other escape: it and the character behind it are one.
            let next = text[escape + 1..].chars().next().map_or(0, char::len_utf8);
            at = escape + 1 + next;
            continue;
        };
        let end = escape + 6;
        let paired = is_high(unit) && escaped_unit(text, end).is_some_and(is_low);
        if paired {
            at = end + 6;
            continue;
        }
        if is_high(unit) || is_low(unit) {
            let mended = mended.get_or_insert_with(|| String::with_capacity(text.len()));
            mended.push_str(&text[copied..escape]);
            mended.push_str("\\ufffd");
            copied = end;
        }
        at = end;
    }
    match mended {
        Some(mut mended) => {
            mended.push_str(&text[copied..]);
            Cow::Owned(mended)
        }
        None => Cow::Borrowed(text),
    }
}

/// The unit of the `\uXXXX` escape that starts at `at`, if one does.
fn escaped_unit(text: &str, at: usize) -> Option<u16> {
    let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
    hex.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(hex, 16).ok())?
}

fn is_high(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_low(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_character_itself_is_replaced() {
        assert_eq!(storable("a\0b"), "a\u{FFFD}b");
        assert!(matches!(storable(r"type \u0000 please"), Cow::Borrowed(_)));
    }

    #[test]
    fn only_halves_of_pairs_are_mended() {
        assert_eq!(without_lone_surrogates(r"Tea \ud83e and"), r"Tea \ufffd and");
        for whole in [r"\ud83e\udd16", r"\\ud83e", "plain", r"\u0041", "\\"] {
            assert!(matches!(without_lone_surrogates(whole), Cow::Borrowed(_)), "{whole}");
        }
    }
}
