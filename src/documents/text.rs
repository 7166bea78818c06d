//! Bytes to text, without guessing: a text is decoded where its encoding is told or beyond doubt, and
//! refused otherwise. A character that somebody could read never becomes U+FFFD, and never another
//! one.
//!
//! What comes out is what ranges are counted in later: lines end in `\n` alone, and U+0000, which the
//! database refuses, is gone.

use encoding_rs::WINDOWS_1252;

use super::unreadable::{Unreadable, UnreadableReason};

/// UTF-8 is valid by accident only where nearly everything is ASCII, which machine code is not; text
/// has next to no control characters. One in so many is too much.
const CONTROLS_ONE_IN: usize = 10;
/// In Windows-1252, letters with marks are few: Icelandic, with the most of them, has one in seven. In
/// the code pages of other scripts, which look the same from outside, they are nearly all.
const MARKED_ONE_IN: usize = 3;
/// So many letters with marks in a row stand in no word of a language that is written in
/// Windows-1252, and in every second word of one that is not.
const MARKED_IN_A_ROW: usize = 4;
/// Bytes that mean nothing in Windows-1252.
const UNDEFINED: [u8; 5] = [0x81, 0x8d, 0x8f, 0x90, 0x9d];
/// Of the 16-bit units of a text in UTF-16, one in so many at least is a letter of ASCII, a blank or the
/// end of a line; in the wrong byte order none is.
const COMMON_ONE_IN: usize = 20;

const NO_TEXT: Unreadable =
    Unreadable::Unsupported { what: "neither a PDF, a PNG, JPEG or WebP picture, nor text" };
const UNKNOWN_ENCODING: Unreadable =
    Unreadable::Unsupported { what: "text in neither UTF-8, UTF-16 nor Windows-1252" };
const BROKEN: Unreadable = Unreadable::Refused(UnreadableReason::Broken);
const EMPTY: Unreadable = Unreadable::Refused(UnreadableReason::Empty);

/// The text that the bytes are, made tidy ([`tidy`]).
///
/// # Errors
/// `empty` where there is nothing, or nothing but white space; `broken` where text is damaged;
/// [`Unreadable::Unsupported`] where it is no text, or its encoding is not sure.
pub fn decode(bytes: &[u8]) -> Result<String, Unreadable> {
    tidy(&decoded(bytes)?)
}

/// A text as it is worked on: `\r\n`, `\r` and the ends of pages are `\n`, and no U+0000 is left.
///
/// # Errors
/// `empty` where nothing, or nothing but white space, remains.
pub fn tidy(text: &str) -> Result<String, Unreadable> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let blank = |c: char| c.is_whitespace() || matches!(c, '\0' | '\u{200b}' | '\u{feff}');
    if text.chars().all(blank) {
        return Err(EMPTY);
    }
    let mut tidy = String::with_capacity(text.len());
    let mut after_return = false;
    for c in text.chars() {
        match c {
            '\n' if after_return => {}
            '\r' | '\n' | '\u{b}' | '\u{c}' => tidy.push('\n'),
            '\0' => {}
            c => tidy.push(c),
        }
        after_return = c == '\r';
    }
    Ok(tidy)
}

/// Whether the bytes are taken for text at all, readable or not.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    !matches!(decoded(bytes), Err(Unreadable::Unsupported { .. }))
}

fn decoded(bytes: &[u8]) -> Result<String, Unreadable> {
    if let Some(rest) = bytes.strip_prefix(b"\xef\xbb\xbf") {
        return std::str::from_utf8(rest).map(str::to_owned).map_err(|_| BROKEN);
    }
    if let Some(rest) = bytes.strip_prefix(b"\xff\xfe") {
        return utf16(rest, u16::from_le_bytes).ok_or(BROKEN);
    }
    if let Some(rest) = bytes.strip_prefix(b"\xfe\xff") {
        return utf16(rest, u16::from_be_bytes).ok_or(BROKEN);
    }
    if bytes.contains(&0)
        && let Some(text) = unmarked_utf16(bytes)
    {
        return Ok(text);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if has_many_controls(bytes) => {
            // Nothing but U+0000 is a text without content rather than something else.
            if text.bytes().all(|byte| byte == 0) { Err(EMPTY) } else { Err(NO_TEXT) }
        }
        Ok(text) => Ok(text.to_owned()),
        Err(_) => windows_1252(bytes),
    }
}

fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=8 | 0xe..=0x1a | 0x1c..=0x1f | 0x7f)
}

fn has_many_controls(bytes: &[u8]) -> bool {
    let controls = bytes.iter().filter(|byte| is_control(**byte)).count();
    controls * CONTROLS_ONE_IN > bytes.len()
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let units = pairs.iter().map(|pair| unit(*pair));
    let text = char::decode_utf16(units).collect::<Result<String, _>>().ok()?;
    rest.is_empty().then_some(text)
}

/// UTF-16 that does not say so, where exactly one byte order makes a text of it.
fn unmarked_utf16(bytes: &[u8]) -> Option<String> {
    let common = |unit: fn([u8; 2]) -> u16| {
        let (pairs, _) = bytes.as_chunks::<2>();
        let common = pairs.iter().filter(|pair| is_common(unit(**pair))).count();
        (common, common * COMMON_ONE_IN >= pairs.len() && common > 0)
    };
    let (little, big) = (common(u16::from_le_bytes), common(u16::from_be_bytes));
    let unit = match (little, big) {
        ((_, true), (0, _)) => u16::from_le_bytes,
        ((0, _), (_, true)) => u16::from_be_bytes,
        _ => return None,
    };
    let text = utf16(bytes, unit)?;
    let controls = text.chars().filter(|c| c.is_control() && !c.is_whitespace()).count();
    (controls * CONTROLS_ONE_IN <= text.chars().count()).then_some(text)
}

fn is_common(unit: u16) -> bool {
    u8::try_from(unit).is_ok_and(|byte| byte.is_ascii_alphabetic() || b" \n\r".contains(&byte))
}

fn windows_1252(bytes: &[u8]) -> Result<String, Unreadable> {
    if bytes.iter().any(|byte| is_control(*byte)) {
        return Err(NO_TEXT);
    }
    if is_damaged_utf8(bytes) {
        return Err(BROKEN);
    }
    let high = bytes.iter().filter(|byte| **byte >= 0x80).count();
    let foreign = high * MARKED_ONE_IN > bytes.len()
        || bytes.iter().any(|byte| UNDEFINED.contains(byte))
        || bytes.windows(MARKED_IN_A_ROW).any(|row| row.iter().all(|byte| is_marked(*byte)));
    if foreign {
        return Err(UNKNOWN_ENCODING);
    }
    Ok(WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned())
}

/// A letter with a mark, in Windows-1252.
fn is_marked(byte: u8) -> bool {
    matches!(byte, 0xc0..=0xff | 0x8a | 0x8c | 0x8e | 0x9a | 0x9c | 0x9e | 0x9f)
        && !matches!(byte, 0xd7 | 0xf7)
}

/// Whether more characters of several bytes are whole than are not: that is no accident.
fn is_damaged_utf8(bytes: &[u8]) -> bool {
    let (mut whole, mut damaged) = (0_usize, 0_usize);
    for chunk in bytes.utf8_chunks() {
        whole += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        damaged += usize::from(!chunk.invalid().is_empty());
    }
    whole > damaged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16_bytes(text: &str, bytes_of: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes_of).collect()
    }

    #[test]
    fn utf8_is_read_with_and_without_a_mark() {
        assert_eq!(decode("MARA: œuvre 🎭".as_bytes()).unwrap(), "MARA: œuvre 🎭");
        assert_eq!(decode(b"\xef\xbb\xbfMARA: yes").unwrap(), "MARA: yes");
        // One that was in the text before stays: it is no damage of ours.
        assert_eq!(decode("a \u{fffd} b".as_bytes()).unwrap(), "a \u{fffd} b");
    }

    #[test]
    fn utf16_is_read_in_both_orders_with_and_without_a_mark() {
        for text in ["MARA: Is it boiling?\nOTTO: Not yet. 🎭", "רוטו: עוד לא.\nMARA: yes"]
        {
            for bytes_of in [u16::to_le_bytes, u16::to_be_bytes] {
                let plain = utf16_bytes(text, bytes_of);
                assert_eq!(decode(&plain).unwrap(), text);
                let marked = utf16_bytes(&format!("\u{feff}{text}"), bytes_of);
                assert_eq!(decode(&marked).unwrap(), text);
            }
        }
    }

    #[test]
    fn damaged_text_is_broken() {
        let half = &"MARA: éé – ça va".as_bytes()[..13];
        assert!(std::str::from_utf8(half).is_err());
        let cases: &[&[u8]] =
            &[half, b"\xef\xbb\xbfMARA: \xff", b"\xff\xfeM\0A", b"\xff\xfe\x00\xd8M\0"];
        for case in cases {
            assert_eq!(decode(case), Err(BROKEN), "{}", case.escape_ascii());
        }
    }

    #[test]
    fn windows_1252_is_read_where_it_is_plausible() {
        let text =
            decode(b"MARA: \x93Is it?\x94\nOTTO: \x91Not yet\x92 \x97 Stra\xdfe, \x80 5").unwrap();
        assert_eq!(text, "MARA: “Is it?”\nOTTO: ‘Not yet’ — Straße, € 5");
    }

    #[test]
    fn other_code_pages_are_refused_rather_than_misread() {
        let cyrillic = b"MARA: \xcf\xf0\xe8\xe2\xe5\xf2, \xea\xe0\xea \xe4\xe5\xeb\xe0?";
        let names_only = b"A long line of plain letters, then one word: \xcf\xf0\xe8\xe2\xe5\xf2";
        let undefined = b"MARA: \x81 is nothing";
        for bytes in [cyrillic.as_slice(), names_only, undefined] {
            assert_eq!(decode(bytes), Err(UNKNOWN_ENCODING), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let cases: &[&[u8]] = &[
            b"\x01\x02\x03\x04MARA",
            b"\0\x01\0\x02\0\x03",
            b"\xde\xad\xbe\xef\xca\xfe\xba\xbe",
            b"abc\x01\xff",
        ];
        for case in cases {
            let refused = decode(case);
            assert!(matches!(refused, Err(Unreadable::Unsupported { .. })), "{refused:?}");
        }
    }

    #[test]
    fn nothing_but_blanks_is_empty() {
        for bytes in ["", " \r\n\t\u{a0}", "\u{feff}", "\0\0\0\0", "\u{feff}\u{200b}\n"] {
            assert_eq!(decode(bytes.as_bytes()), Err(EMPTY), "{bytes:?}");
        }
        assert_eq!(decode(b"\xff\xfe \0\n\0"), Err(EMPTY));
    }

    #[test]
    fn lines_end_in_one_way_and_nothing_is_left_that_a_database_refuses() {
        let text = decode(b"MARA: a\r\nOTTO: b\rMARA: c\n\r\nOTTO:\0 d\x0cMARA: e\r").unwrap();
        assert_eq!(text, "MARA: a\nOTTO: b\nMARA: c\n\nOTTO: d\nMARA: e\n");
    }
}
