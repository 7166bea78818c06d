//! A text in pieces that a model can retype in one answer.
//!
//! A piece that begins in the middle of a speech has lines with no name, and the model gives them to
//! whoever is named next. So a border moves back to the start of a speech, or else to the best other
//! place; and where a speech is longer than what is searched, its speaker's name goes along to the next
//! piece. Nothing is lost or doubled: the pieces joined are the text.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::speech;

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Counted from 0. The halves of a chunk keep its number.
    pub index: usize,
    /// Its first character's place in the text, in characters (Unicode scalar values).
    pub from: usize,
    /// The place behind its last character, in characters.
    pub to: usize,
    /// The same in bytes.
    pub bytes: Range<usize>,
    /// Who speaks where it begins, if it does not begin with a speech of its own.
    pub carried: Option<String>,
}

impl Chunk {
    /// Its text, of the text that it was cut from.
    pub fn text<'a>(&self, whole: &'a str) -> &'a str {
        whole.get(self.bytes.clone()).unwrap_or_default()
    }

    /// Its length in characters.
    pub fn chars(&self) -> usize {
        self.to - self.from
    }
}

/// Cuts a text into chunks of at most `limit_chars` characters (0 counts as 1).
///
/// A border is looked for in the second half of what fits: a speech that starts further up would leave a
/// tiny chunk, and more calls than the text is worth; this way there are at most twice as many chunks as
/// there must be, and no character is looked at more often than twice. There the latest start of a speech
/// is taken, or else of what follows a blank line, of a line, of a word, of what is one character to the eye.
pub fn chunk(text: &str, limit_chars: usize) -> Vec<Chunk> {
    let limit_chars = limit_chars.max(1);
    let mut chunks: Vec<Chunk> = Vec::new();
    let (mut start, mut from) = (0, 0);
    let mut carried = None;
    while start < text.len() {
        let rest = &text[start..];
        let places = Places::of(rest, limit_chars);
        let (end, chars) = match places.limit {
            None => (text.len(), places.chars),
            Some(limit) => {
                let end = border(text, start + places.half..start + limit, start + limit, start);
                let behind = text[end..start + limit].chars().count();
                (end, limit_chars - behind)
            }
        };
        let next = speaker_behind(text, start..end, carried.as_deref());
        chunks.push(Chunk {
            index: chunks.len(),
            from,
            to: from + chars,
            bytes: start..end,
            carried: std::mem::replace(&mut carried, next),
        });
        (start, from) = (end, from + chars);
    }
    chunks
}

/// A chunk in two, by the same rule, at the best border between its first and its last quarter; of two
/// that are as good the one nearer to the middle. `None` where there is nothing to divide.
pub fn halves(text: &str, chunk: &Chunk) -> Option<[Chunk; 2]> {
    let own = chunk.text(text);
    let place = |chars: usize| own.char_indices().nth(chars).map(|(at, _)| chunk.bytes.start + at);
    let chars = chunk.chars();
    let middle = place(chars.div_ceil(2))?;
    let window = place(chars.div_ceil(4))?..place((chars * 3).div_ceil(4)).unwrap_or(middle);
    let end = border(text, window, middle, chunk.bytes.start);
    if end <= chunk.bytes.start || end >= chunk.bytes.end {
        return None;
    }
    let to = chunk.from + text[chunk.bytes.start..end].chars().count();
    let carried = speaker_behind(text, chunk.bytes.start..end, chunk.carried.as_deref());
    let first = Chunk { to, bytes: chunk.bytes.start..end, ..chunk.clone() };
    let second = Chunk { from: to, bytes: end..chunk.bytes.end, carried, ..chunk.clone() };
    Some([first, second])
}

/// Where half the limit and the limit lie in a text.
struct Places {
    /// Bytes.
    half: usize,
    /// Bytes; `None` where the whole text is within the limit.
    limit: Option<usize>,
    /// Characters, up to the limit.
    chars: usize,
}

impl Places {
    fn of(text: &str, limit_chars: usize) -> Places {
        let mut places = Places { half: 0, limit: None, chars: 0 };
        for (chars, (at, _)) in text.char_indices().enumerate() {
            if chars == limit_chars.div_ceil(2) {
                places.half = at;
            }
            if chars == limit_chars {
                places.limit = Some(at);
                return places;
            }
            places.chars = chars + 1;
        }
        places
    }
}

/// How good a place to cut is, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Speech,
    BlankLine,
    Line,
}

/// The best border in the window, of equal ones the one nearest to `wanted`, which lies in it. Behind `start`.
fn border(text: &str, window: Range<usize>, wanted: usize, start: usize) -> usize {
    let mut best: Option<(Rank, usize, usize)> = None;
    for at in line_starts(text, &window) {
        let candidate = (rank(text, at), at.abs_diff(wanted), at);
        if at > start && best.is_none_or(|best| candidate < best) {
            best = Some(candidate);
        }
    }
    if let Some((_, _, at)) = best {
        return at;
    }
    let before = &text[window.start..wanted];
    let word = before.char_indices().rev().find(|(_, char)| char.is_whitespace());
    match word.map(|(at, char)| window.start + at + char.len_utf8()) {
        Some(at) if at > start && !within_line_end(text, at) => at,
        _ => within_word(text, start, wanted),
    }
}

/// The places in the window, its ends included, where a line starts: behind LF, CR LF, or CR alone.
fn line_starts<'a>(text: &'a str, window: &Range<usize>) -> impl Iterator<Item = usize> + use<'a> {
    let bytes = text.as_bytes();
    let places = window.start.max(1)..=window.end;
    places.filter(move |&at| {
        let after_cr = bytes[at - 1] == b'\r' && bytes.get(at) != Some(&b'\n');
        bytes[at - 1] == b'\n' || after_cr
    })
}

fn rank(text: &str, at: usize) -> Rank {
    let line_before = text[..at].strip_suffix('\n').unwrap_or(&text[..at]);
    let line_before = line_before.strip_suffix('\r').unwrap_or(line_before);
    // A hundred blanks are a blank line, however many more there are.
    let mut last = line_before.chars().rev().take(100);
    let blank = last.find(|char| !matches!(char, ' ' | '\t' | '\u{a0}'));
    if speech::starts_speech(&text[at..]).is_some() {
        Rank::Speech
    } else if blank.is_none_or(|char| matches!(char, '\n' | '\r')) {
        Rank::BlankLine
    } else {
        Rank::Line
    }
}

fn within_line_end(text: &str, at: usize) -> bool {
    text[..at].ends_with('\r') && text[at..].starts_with('\n')
}

/// A border at `wanted`, or as little before it as keeps together what is one character to the eye. What
/// is longer than that is cut, as only a text that was made for it is.
fn within_word(text: &str, start: usize, wanted: usize) -> usize {
    const LOOK_BACK_CHARS: usize = 64;
    let before = text[start..wanted].char_indices().rev().take(LOOK_BACK_CHARS).last();
    let from = start + before.map_or(0, |(at, _)| at);
    let behind = text[wanted..].chars().take(LOOK_BACK_CHARS).map(char::len_utf8).sum::<usize>();
    let near = &text[from..wanted + behind];
    let borders = near.grapheme_indices(true).map(|(at, _)| from + at);
    let whole = borders.take_while(|at| *at <= wanted).last().unwrap_or(from);
    if whole > from { whole } else { wanted }
}

/// Who speaks at the end of this range, if the text goes on without a name of its own there.
fn speaker_behind(text: &str, range: Range<usize>, before: Option<&str>) -> Option<String> {
    if range.end == text.len() || speech::starts_speech(&text[range.end..]).is_some() {
        return None;
    }
    let own = &text[range.clone()];
    let starts = own.rmatch_indices(['\n', '\r']).map(|(at, _)| at + 1).chain([0]);
    // A name right above the border has what it says behind it.
    let mut speakers = starts.filter_map(|at| speech::starts_speech(&text[range.start + at..]));
    speakers.next().or(before).map(str::to_owned)
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
