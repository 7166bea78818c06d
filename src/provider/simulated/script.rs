//! A script taken apart by its names: `MARA: line`, or the name above the line.

use std::collections::HashSet;

use serde::Serialize;

use crate::domain::parse::Sent;
use crate::domain::parse::speech::{name_alone, named, starts_speech};

/// A longer first line is no title.
const MAX_TITLE_CHARS: usize = 120;
/// A first line in capitals of so many words is a heading, where no other line is a name alone.
const HEADING_WORDS: usize = 3;

#[derive(Serialize)]
struct Script<'a> {
    title: &'a str,
    characters: Vec<&'a str>,
    dialogue: Vec<Speech<'a>>,
}

#[derive(Serialize)]
struct Speech<'a> {
    character: &'a str,
    line: String,
}

/// The tool's input for a text. A speech goes on over the lines below it up to a blank one. A text that
/// begins within a speech begins with that speech's lines; the title is a first line that is no speech,
/// of a text that is the beginning.
pub(super) fn read(sent: &Sent<'_>) -> String {
    let text = sent.text.trim_start_matches('\u{feff}');
    let mut script = Script { title: "", characters: Vec::new(), dialogue: Vec::new() };
    let mut heading = heading(text).filter(|_| sent.first && sent.carried.is_none());
    let mut speaks = sent.carried;
    let mut begun = false; // whether what is said is added to the last speech
    let mut rest = text;
    while !rest.is_empty() {
        let (line, below) = match rest.find('\n') {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, ""),
        };
        let line = line.trim();
        if line.is_empty() {
            speaks = None;
        } else if let Some(title) = heading.take() {
            script.title = title; // the first line that is not blank
        } else if let Some(name) = starts_speech(rest) {
            speaks = Some(name);
            begun = false;
            if let Some((_, said)) = named(line).filter(|(_, said)| !said.is_empty()) {
                script.say(name, said, &mut begun);
            }
        } else if let Some(name) = speaks {
            script.say(name, line, &mut begun);
        }
        rest = below;
    }
    let mut seen = HashSet::new();
    let names = script.dialogue.iter().map(|speech| speech.character);
    script.characters = names.filter(|name| seen.insert(*name)).collect();
    // Texts and lists of them are all JSON.
    serde_json::to_string(&script).unwrap_or_default()
}

impl<'a> Script<'a> {
    fn say(&mut self, name: &'a str, said: &str, begun: &mut bool) {
        match self.dialogue.last_mut().filter(|_| *begun) {
            Some(speech) => {
                speech.line.push('\n');
                speech.line.push_str(said);
            }
            None => self.dialogue.push(Speech { character: name, line: said.to_owned() }),
        }
        *begun = true;
    }
}

/// The first line, where it is a title: no speech, or a poster's line of capitals that only looks like a
/// name because something stands below it.
fn heading(text: &str) -> Option<&str> {
    let at = text.find(|char: char| !char.is_whitespace())?;
    let line = text[at..].lines().next()?.trim();
    if line.chars().count() > MAX_TITLE_CHARS {
        return None;
    }
    let begins_speech = starts_speech(&text[at..]).is_some();
    let words = line.split_whitespace().count();
    let poster = name_alone(line).is_some() && words >= HEADING_WORDS && {
        let others = text[at..].lines().skip(1);
        !others.map(str::trim).any(|other| name_alone(other).is_some() || named(other).is_some())
    };
    (!begins_speech || poster).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(text: &str) -> Value {
        serde_json::from_str(&read(&Sent { first: true, carried: None, text })).unwrap()
    }

    fn script(title: &str, characters: &[&str], lines: &[(&str, &str)]) -> Value {
        let lines =
            lines.iter().map(|(character, line)| json!({"character": character, "line": line}));
        json!({"title": title, "characters": characters, "dialogue": lines.collect::<Vec<_>>()})
    }

    #[test]
    fn names_before_and_above_what_is_said() {
        let kettles = [("MARA", "Is it boiling?"), ("OTTO", "Not\nyet."), ("MARA", "Oh.")];
        for text in [
            "Two Kettles\n\nMARA: Is it boiling?\nOTTO: Not\nyet.\nMARA: Oh.\n",
            "\u{feff}Two Kettles\r\n\r\nMARA\r\nIs it boiling?\r\n\r\nOTTO\r\nNot\r\nyet.\r\n\r\nMARA\r\nOh.",
            "Two Kettles\n\nMARA. Is it boiling?\n\n(He looks.)\n\nOTTO.\nNot\nyet.\n\nMARA: Oh.",
        ] {
            assert_eq!(parsed(text), script("Two Kettles", &["MARA", "OTTO"], &kettles), "{text}");
        }
        let hidden =
            "\u{feff}MARA: Is it boiling?\r\nאוטו: עוד לא.\r\n\u{202e}MARA: backwards\u{202c}\r\n";
        let lines =
            [("MARA", "Is it boiling?"), ("אוטו", "עוד לא."), ("MARA", "backwards\u{202c}")];
        assert_eq!(parsed(hidden), script("", &["MARA", "אוטו"], &lines));
    }

    #[test]
    fn where_nobody_speaks_nothing_is_made_up() {
        let poster = "GRAND TEA FESTIVAL\nSaturday, 3 pm, Town Hall\nFree entry\n";
        assert_eq!(parsed(poster), script("GRAND TEA FESTIVAL", &[], &[]));
        for text in ["", " \n ", &"a".repeat(12_000)] {
            assert_eq!(parsed(text), script("", &[], &[]));
        }
        let lady = script("", &["THE OLD MAN", "ANN"], &[("THE OLD MAN", "Yes."), ("ANN", "No.")]);
        assert_eq!(parsed("THE OLD MAN\nYes.\n\nANN\nNo."), lady);
    }

    #[test]
    fn a_later_part_begins_with_whom_it_is_told() {
        let text = "went on and\non.\n\nA door.\nOTTO: Ah.";
        let sent = Sent { first: false, carried: Some("MARA"), text };
        let told: Value = serde_json::from_str(&read(&sent)).unwrap();
        let lines = [("MARA", "went on and\non."), ("OTTO", "Ah.")];
        assert_eq!(told, script("", &["MARA", "OTTO"], &lines));
        let told: Value = serde_json::from_str(&read(&Sent { carried: None, ..sent })).unwrap();
        assert_eq!(told, script("", &["OTTO"], &[("OTTO", "Ah.")]));
    }
}
