//! `Idempotency-Key`, held against the contract: a UUID in any spelling is one key; any other printable
//! text is a key of its own; whatever is shown again is read as the same.

use crate::Judged;
use crate::domain::key::{IdempotencyKey, KeyError, KeySource, MAX_KEY_CHARS};

/// Judges both lines of an input, each as a value, and whether they are kept apart.
pub fn judge(parse: impl Fn(&[u8]) -> Result<IdempotencyKey, KeyError>, input: &[u8]) -> Judged {
    let mut values = input.splitn(2, |&byte| byte == b'\n');
    let one = values.next().unwrap_or_default();
    let other = values.next().unwrap_or_default();
    let mut shape = String::new();
    for value in [one, other] {
        shape += &of_one(&parse, value)?;
    }
    if let (Ok(first), Ok(second)) = (parse(one), parse(other)) {
        let meant =
            |value| bare(value).map(|text| if is_uuid(&text) { lower(&text) } else { text });
        let same = meant(one) == meant(other);
        if (first.id == second.id) != same || (first == second) != same {
            return Err(format!("{first:?} and {second:?}, which are the same: {same}"));
        }
    }
    Ok(shape)
}

fn of_one(parse: impl Fn(&[u8]) -> Result<IdempotencyKey, KeyError>, value: &[u8]) -> Judged {
    let (key, text) = match (parse(value), bare(value)) {
        (Ok(key), Some(text)) => (key, text),
        (Err(error), None) => return Ok(format!("{error:?}")),
        (said, meant) => return Err(format!("said {said:?}, but it means {meant:?}")),
    };
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    let client = is_uuid(text.as_bytes());
    let as_it_should = if client {
        key.source == KeySource::Client && key.id.to_string() == text.to_lowercase()
    } else {
        key.source == KeySource::Opaque
            && key.text.as_deref() == Some(&*text)
            && key.id.get_version_num() == 8
    };
    if !as_it_should {
        return Err(format!("{text:?} became {key:?}"));
    }
    let shown = key.shown();
    let quoted = format!("\"{}\"", shown.replace('\\', "\\\\").replace('"', "\\\""));
    let mut spellings = vec![format!(" {shown}\t"), quoted, shown];
    if client {
        spellings.push(text.to_uppercase());
    }
    for spelling in spellings {
        if parse(spelling.as_bytes()) != Ok(key.clone()) {
            return Err(format!("{key:?}, but spelled {spelling:?} it is another"));
        }
    }
    Ok(format!("{:?} {}", key.source, value.first() == Some(&b'"')))
}

/// The text that a value means, or none where it is no key.
fn bare(value: &[u8]) -> Option<Vec<u8>> {
    let value = value.trim_ascii();
    let text = if value.contains(&b'"') && (value[0] == b'"' || value[value.len() - 1] == b'"') {
        let [b'"', inner @ .., b'"'] = value else { return None };
        unquoted(inner)?
    } else {
        value.to_vec()
    };
    let printable = text.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b',');
    let bounded = (1..=MAX_KEY_CHARS).contains(&text.len());
    // A quote at an end would make it another kind of value when it is shown again.
    let open = text.first() == Some(&b'"') || text.last() == Some(&b'"');
    (printable && bounded && !open).then_some(text)
}

/// The inside of a quoted string as RFC 8941 has it.
fn unquoted(inner: &[u8]) -> Option<Vec<u8>> {
    match inner {
        [] => Some(Vec::new()),
        [b'\\', escaped @ (b'"' | b'\\'), rest @ ..] => {
            Some([vec![*escaped], unquoted(rest)?].concat())
        }
        [b'\\' | b'"', ..] => None,
        [plain, rest @ ..] => Some([vec![*plain], unquoted(rest)?].concat()),
    }
}

/// Whether it is a UUID with its hyphens, and of no version that the service makes itself.
fn is_uuid(text: &[u8]) -> bool {
    let hyphens = [8, 13, 18, 23];
    let formed = text.len() == 36
        && text.iter().enumerate().all(|(at, byte)| {
            if hyphens.contains(&at) { *byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
    formed && !(text[14] == b'8' && b"89abAB".contains(&text[19]))
}

fn lower(text: &[u8]) -> Vec<u8> {
    text.to_ascii_lowercase()
}
