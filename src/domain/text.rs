//! Text that PostgreSQL can store.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_character_itself_is_replaced() {
        assert_eq!(storable("a\0b"), "a\u{FFFD}b");
        assert!(matches!(storable(r"type \u0000 please"), Cow::Borrowed(_)));
    }
}
