//! How scripts show who speaks: the one place that knows it, for cutting a text at the start of a speech
//! and for the simulated provider.
//!
//! Three forms: `MARA: Is it boiling?`, `MARA. Is it boiling?` where the name is in capitals, and the
//! name in a line of its own (`MARA`, `MARA.`, `Mara:`) above what is said. It is a guess about a text,
//! good enough to choose among places to cut; what a speech is in the result the model decides.

/// Longer names are sentences.
const MAX_NAME_CHARS: usize = 40;
const MAX_NAME_WORDS: usize = 4;
/// What of a line is looked at: a name with whatever stands around it.
const HEAD_CHARS: usize = 120;
/// What of a text is looked at for a line and the one below it: a line without an end costs no more.
const NEAR_BYTES: usize = 2_000;

/// Words of headings and stage directions that stand where names stand.
const NO_NAMES: [&str; 17] = [
    "ACT",
    "CAST",
    "CHAPTER",
    "CHARACTERS",
    "CURTAIN",
    "CUT",
    "END",
    "EXEUNT",
    "EXIT",
    "EXT",
    "FADE",
    "INT",
    "PART",
    "PERSONS",
    "SCENE",
    "SETTING",
    "TITLE",
];
/// After these a full stop does not end the name.
const ABBREVIATIONS: [&str; 11] =
    ["CAPT", "COL", "DR", "GEN", "LT", "MR", "MRS", "MS", "PROF", "SGT", "ST"];
/// Words in names that need no capital.
const PARTICLES: [&str; 12] =
    ["and", "da", "de", "der", "du", "la", "le", "of", "the", "to", "van", "von"];

/// The name of who speaks in this line, and what is said in it: empty where the name is followed by
/// nothing, so that what is said stands below. `None` for a line that begins no speech.
pub fn named(line: &str) -> Option<(&str, &str)> {
    by_colon(line).or_else(|| by_full_stop(line))
}

/// The name in a line of nothing else, where it is in capitals or ends in a colon.
pub fn name_alone(line: &str) -> Option<&str> {
    match named(line) {
        Some((name, "")) => Some(name),
        Some(_) => None,
        None => Some(clean(line)).filter(|name| is_name(name) && in_capitals(name)),
    }
}

/// The name of who speaks from the start of this text on. A name alone counts where something is said
/// in the line below it.
pub fn starts_speech(text: &str) -> Option<&str> {
    let text = &text[..text.floor_char_boundary(NEAR_BYTES)];
    let (line, below) = match text.find(['\n', '\r']) {
        Some(end) => {
            let rest = &text[end..];
            let below = rest.strip_prefix("\r\n").or_else(|| rest.get(1..));
            (&text[..end], below.unwrap_or_default())
        }
        None => (text, ""),
    };
    let next = || head(below.split(['\n', '\r']).next().unwrap_or_default());
    match named(line) {
        Some((name, said)) if !said.is_empty() => Some(name),
        _ => name_alone(line).filter(|_| !next().trim().is_empty() && name_alone(next()).is_none()),
    }
}

fn by_colon(line: &str) -> Option<(&str, &str)> {
    let (at, colon) = head(line).char_indices().find(|(_, char)| matches!(char, ':' | '：'))?;
    let said = line[at + colon.len_utf8()..].trim();
    let name = clean(&line[..at]);
    (is_name(name) && !said.starts_with("//")).then_some((name, said))
}

fn by_full_stop(line: &str) -> Option<(&str, &str)> {
    for (at, _) in head(line).match_indices('.') {
        let (name, said) = (clean(&line[..at]), &line[at + 1..]);
        if !in_capitals(name) || !(said.is_empty() || said.starts_with(char::is_whitespace)) {
            return None;
        }
        let last = name.rsplit(' ').next().unwrap_or_default();
        if !ABBREVIATIONS.contains(&last) {
            return is_name(name).then_some((name, said.trim()));
        }
    }
    None
}

/// The line up to where nobody's name reaches.
fn head(line: &str) -> &str {
    let end = line.char_indices().nth(HEAD_CHARS).map_or(line.len(), |(at, _)| at);
    &line[..end]
}

/// A name without the marks of direction around it and the remark in brackets behind it.
fn clean(name: &str) -> &str {
    let is_mark = |char: char| {
        char.is_whitespace()
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{feff}' | '*' | '_')
            || ('\u{202a}'..='\u{202e}').contains(&char)
            || ('\u{2066}'..='\u{2069}').contains(&char)
    };
    let name = name.trim_matches(is_mark);
    match name.find(['(', '[']) {
        Some(at) if at > 0 && name.ends_with([')', ']']) => name[..at].trim_matches(is_mark),
        _ => name,
    }
}

fn is_name(name: &str) -> bool {
    let words = name.split_whitespace();
    let count = words.clone().count();
    let first = words.clone().next().unwrap_or_default().trim_end_matches('.');
    let allowed = |char: char| {
        char.is_alphanumeric()
            || char.is_whitespace()
            || is_joined(char)
            || "'’.-–&#/\"".contains(char)
    };
    let begins_well = |word: &str| {
        PARTICLES.contains(&word) || word.chars().next().is_some_and(|char| !char.is_lowercase())
    };
    (1..=MAX_NAME_WORDS).contains(&count)
        && name.chars().take(MAX_NAME_CHARS + 1).count() <= MAX_NAME_CHARS
        && name.chars().all(allowed)
        && name.chars().any(char::is_alphabetic)
        && name.chars().next().is_some_and(|char| !char.is_lowercase())
        && words.into_iter().all(begins_well)
        && !NO_NAMES.contains(&first.to_uppercase().as_str())
}

/// Accents that are characters of their own.
fn is_joined(char: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&char) || ('\u{591}'..='\u{5c7}').contains(&char)
}

/// Two letters at least, so that neither an initial nor a list's `A.` is a name in capitals.
fn in_capitals(name: &str) -> bool {
    let letters = name.chars().filter(|char| char.is_alphabetic());
    letters.clone().count() >= 2 && letters.into_iter().all(char::is_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_their_three_forms() {
        for (line, name, said) in [
            ("MARA: Is it boiling?", "MARA", "Is it boiling?"),
            ("Mara: 12:30", "Mara", "12:30"),
            ("  The Old Man (softly) : yes\r", "The Old Man", "yes"),
            ("אוטו: עוד לא.", "אוטו", "עוד לא."),
            ("\u{202e}MARA: backwards\u{202c}", "MARA", "backwards\u{202c}"),
            ("**Otto**: fine", "Otto", "fine"),
            ("李：好", "李", "好"),
            ("HAMLET. O, that this", "HAMLET", "O, that this"),
            ("MR. DARCY. My good opinion", "MR. DARCY", "My good opinion"),
            ("Knight of the Garter: ha", "Knight of the Garter", "ha"),
            ("O'NEILL: ha", "O'NEILL", "ha"),
            ("GUARD #2: who", "GUARD #2", "who"),
            ("ALL.", "ALL", ""),
            ("Mara:", "Mara", ""),
        ] {
            assert_eq!(named(line), Some((name, said)), "{line}");
        }
        for line in [
            "",
            " ",
            ":",
            "...",
            "He said: go",
            "see https://example.com",
            "Http://x",
            "12:30",
            "ACT I: The kettle",
            "SCENE II. A street",
            "Not yet.",
            "A. first",
            "what: no",
            "A very long sentence with many words: here",
            "He is, you know: late",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
    }

    #[test]
    fn a_name_alone_needs_something_said_below_it() {
        assert_eq!(name_alone("LADY MACBETH"), Some("LADY MACBETH"));
        assert_eq!(name_alone("MARA (V.O.)"), Some("MARA"));
        for line in
            ["Not yet", "FADE OUT.", "INT. KITCHEN", "ACT I", "I", "I AM SO TIRED OF THIS", "OH!"]
        {
            assert_eq!(name_alone(line), None, "{line}");
        }
        assert_eq!(starts_speech("MARA\r\nIs it boiling?"), Some("MARA"));
        assert_eq!(starts_speech("MARA: yes"), Some("MARA"));
        for text in ["MARA\n\nIs it boiling?", "MARA", "MARA\nOTTO\nyes", "Is it?\nMARA", "", "\n"]
        {
            assert_eq!(starts_speech(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_the_head_of_a_line_is_looked_at() {
        let long = "x".repeat(100_000) + ": y";
        assert_eq!(named(&long), None);
        assert_eq!(starts_speech(&format!("MARA\n{long}")), Some("MARA"));
    }
}
