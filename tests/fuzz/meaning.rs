//! The request hash. An input is a list of choices: two requests, often nearly the same, and two
//! spellings of each. Spellings of one request must have one hash, and two requests have the same hash
//! if and only if they mean the same.

use std::fmt::Write as _;

use crate::Judged;
use crate::domain::chat::{ChatRequest, DEFAULT_MODEL};
use crate::domain::hash::RequestHash;
use crate::domain::ids::Subject;

/// Judges the hashes of the requests that an input chooses.
pub fn judge(hash: impl Fn(&ChatRequest, Option<&Subject>) -> RequestHash, input: &[u8]) -> Judged {
    let mut choices = Choices(input);
    let one = Request::chosen(&mut choices);
    let other = match choices.below(8) {
        0 => Request::chosen(&mut choices),
        field => one.changed(field, &mut choices),
    };
    let mut hashes = Vec::new();
    for request in [&one, &one, &other, &other] {
        let text = request.spelled(&mut choices);
        let read = ChatRequest::read(&text).map_err(|error| format!("{text}: {error}"))?;
        let subject = request.subject.as_deref().map(Subject::new);
        hashes.push((hash(&read, subject.as_ref()), text));
    }
    for [(first, text), (second, again)] in hashes.as_chunks::<2>().0 {
        if first != second {
            return Err(format!("two hashes of one request:\n  {text}\n  {again}"));
        }
    }
    let same = one.means() == other.means();
    if (hashes[0].0 == hashes[2].0) != same {
        let (text, another) = (&hashes[0].1, &hashes[2].1);
        return Err(format!(
            "of one meaning: {same}, but not by their hashes:\n  {text}\n  {another}"
        ));
    }
    Ok(format!(
        "{same} {} {} {} {}",
        one.temperature.is_some(),
        one.max_tokens.is_some(),
        one.model.is_some(),
        one.subject.is_some()
    ))
}

/// The bytes of an input as choices; when they are used up, each further one is the first.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// From 0 to `end`, which is not among them and at most 256.
    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn often(&mut self) -> bool {
        self.below(4) != 0
    }

    fn rarely(&mut self) -> bool {
        self.below(4) == 3
    }

    fn long(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// At least one character, none of them U+0000.
    fn text(&mut self) -> String {
        let length = 1 + self.below(6);
        (0..length).map(|_| self.character()).collect()
    }

    fn character(&mut self) -> char {
        const ODD: [char; 16] = [
            'a',
            'A',
            'é',
            'e',
            '\u{301}',
            '"',
            '\\',
            '/',
            '\n',
            '\t',
            '\u{1}',
            '\u{7f}',
            '\u{2028}',
            '\u{fffd}',
            '🤖',
            '\u{10ffff}',
        ];
        match self.below(3) {
            0 => ODD[self.below(16)],
            1 => char::from(b'a' + self.byte() % 26),
            _ => {
                let number = (self.long() % 0x11_0000) as u32;
                char::from_u32(number).filter(|found| *found != '\0').unwrap_or('b')
            }
        }
    }
}

/// A decimal number: so many digits, the last so many of them behind the point.
#[derive(Debug, Clone, PartialEq)]
struct Number {
    digits: u64,
    places: usize,
}

impl Number {
    fn temperature(choices: &mut Choices<'_>) -> Self {
        let places = choices.below(18);
        let most = 2 * 10_u64.pow(places as u32);
        // Mostly short ones, as people write them, and sometimes all that a double can tell apart.
        let digits = if choices.often() { u64::from(choices.byte()) } else { choices.long() };
        Self { digits: digits % (most + 1), places }
    }

    fn whole(choices: &mut Choices<'_>) -> Self {
        let most = u64::from(u32::MAX);
        let digits = if choices.often() { u64::from(choices.byte()) } else { choices.long() };
        Self { digits: 1 + digits % most, places: 0 }
    }

    /// The double that it is, by the reader of the standard library.
    fn value(&self) -> f64 {
        format!("{}e-{}", self.digits, self.places).parse().unwrap_or(f64::NAN)
    }

    /// One of the many ways to write it.
    fn spelled(&self, choices: &mut Choices<'_>) -> String {
        let zeros = choices.below(24);
        let shift = if choices.often() { 0 } else { choices.below(48) as i32 - 24 };
        let mut digits = self.digits.to_string() + &"0".repeat(zeros);
        let mut places = (self.places + zeros) as i32 + shift;
        if places < 0 {
            digits += &"0".repeat(places.unsigned_abs() as usize);
            places = 0;
        }
        let places = places as usize;
        if digits.len() <= places {
            digits.insert_str(0, &"0".repeat(places + 1 - digits.len()));
        }
        if places > 0 {
            digits.insert(digits.len() - places, '.');
        }
        // JSON has no zeros in front, and as many behind the point as one likes.
        let whole = digits.find('.').unwrap_or(digits.len());
        let leading = digits[..whole].len() - digits[..whole].trim_start_matches('0').len();
        let mut text = digits.split_off(leading.min(whole - 1));
        if self.digits == 0 && choices.rarely() {
            text.insert(0, '-');
        }
        if shift != 0 || choices.rarely() {
            let e = if choices.often() { 'e' } else { 'E' };
            let sign = if shift >= 0 && choices.often() { "+" } else { "" };
            let _ = write!(text, "{e}{sign}{shift}");
        }
        text
    }
}

/// A request, as its client means it.
#[derive(Debug, Clone)]
struct Request {
    subject: Option<String>,
    conversation: String,
    message: String,
    model: Option<String>,
    temperature: Option<Number>,
    max_tokens: Option<Number>,
}

impl Request {
    fn chosen(choices: &mut Choices<'_>) -> Self {
        Self {
            subject: choices.rarely().then(|| choices.text()),
            conversation: choices.text(),
            message: message(choices),
            model: choices.rarely().then(|| choices.text()),
            temperature: choices.often().then(|| Number::temperature(choices)),
            max_tokens: choices.often().then(|| Number::whole(choices)),
        }
    }

    /// The same in all but one field, or in all.
    fn changed(&self, field: usize, choices: &mut Choices<'_>) -> Self {
        let mut changed = self.clone();
        match field {
            1 => changed.subject = choices.often().then(|| choices.text()),
            2 => changed.conversation = choices.text(),
            3 => changed.message.push(choices.character()),
            4 => changed.model = choices.often().then(|| choices.text()),
            5 => changed.temperature = choices.often().then(|| Number::temperature(choices)),
            6 => changed.max_tokens = choices.often().then(|| Number::whole(choices)),
            // Fields that stand side by side: what leaves one for the other makes another request.
            _ => {
                let last = changed.conversation.pop().filter(|_| !changed.conversation.is_empty());
                changed.message.insert_str(0, &last.map_or_else(String::new, String::from));
                changed.conversation = Some(changed.conversation)
                    .filter(|left| !left.is_empty())
                    .unwrap_or_else(|| self.conversation.clone());
            }
        }
        changed
    }

    /// Equal for two requests if and only if they mean the same.
    fn means(&self) -> (Option<&str>, &str, &str, &str, Option<f64>, Option<f64>) {
        (
            self.subject.as_deref(),
            &self.conversation,
            &self.message,
            self.model.as_deref().unwrap_or(DEFAULT_MODEL),
            self.temperature.as_ref().map(Number::value),
            self.max_tokens.as_ref().map(Number::value),
        )
    }

    /// One of the bodies that say this.
    fn spelled(&self, choices: &mut Choices<'_>) -> String {
        let mut options = Vec::new();
        for (name, number) in [("temperature", &self.temperature), ("max_tokens", &self.max_tokens)]
        {
            match number {
                Some(number) => options.push((name, number.spelled(choices))),
                None if choices.rarely() => options.push((name, "null".into())),
                None => {}
            }
        }
        let mut members = vec![
            ("conversation_id", string(&self.conversation, choices)),
            ("message", string(&self.message, choices)),
        ];
        match &self.model {
            Some(model) => members.push(("model", string(model, choices))),
            None => match choices.below(3) {
                0 => {}
                1 => members.push(("model", "null".into())),
                _ => members.push(("model", string(DEFAULT_MODEL, choices))),
            },
        }
        match options.is_empty().then(|| choices.below(3)) {
            Some(0) => {}
            Some(1) => members.push(("options", "null".into())),
            _ => members.push(("options", object(options, choices))),
        }
        if choices.rarely() {
            let stream = ["true", "false", "null"][choices.below(3)];
            members.push(("stream", stream.into()));
        }
        if choices.rarely() {
            let metadata = ["{}", "null", r#"{"attempt":2}"#, r#"{"message":"other"}"#];
            members.push(("metadata", metadata[choices.below(4)].into()));
        }
        object(members, choices)
    }
}

/// A text that is not blank.
fn message(choices: &mut Choices<'_>) -> String {
    let text = choices.text();
    if text.trim().is_empty() { text + "m" } else { text }
}

/// The members in any order, with any white space between.
fn object(mut members: Vec<(&str, String)>, choices: &mut Choices<'_>) -> String {
    let mut text = format!("{}{{", space(choices));
    while !members.is_empty() {
        let (name, value) = members.swap_remove(choices.below(members.len()));
        let comma = if members.is_empty() { "" } else { "," };
        let name = string(name, choices);
        let [a, b, c, d] = std::array::from_fn(|_| space(choices));
        let _ = write!(text, "{a}{name}{b}:{c}{value}{d}{comma}");
    }
    text + &space(choices) + "}" + &space(choices)
}

fn space(choices: &mut Choices<'_>) -> String {
    if choices.often() {
        return String::new();
    }
    (0..choices.below(3)).map(|_| [' ', '\t', '\n', '\r'][choices.below(4)]).collect()
}

/// A JSON string, each character in any of its forms.
fn string(text: &str, choices: &mut Choices<'_>) -> String {
    let mut written = String::from("\"");
    for character in text.chars() {
        let short = match character {
            '"' => Some("\\\""),
            '\\' => Some("\\\\"),
            '/' => Some("\\/"),
            '\n' => Some("\\n"),
            '\t' => Some("\\t"),
            '\r' => Some("\\r"),
            '\u{8}' => Some("\\b"),
            '\u{c}' => Some("\\f"),
            _ => None,
        };
        let must = character < ' ' || matches!(character, '"' | '\\');
        match short {
            Some(short) if must && choices.often() || choices.rarely() => written += short,
            _ if must || choices.rarely() => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = match choices.rarely() {
                        true => write!(written, "\\u{unit:04X}"),
                        false => write!(written, "\\u{unit:04x}"),
                    };
                }
            }
            _ => written.push(character),
        }
    }
    written + "\""
}
