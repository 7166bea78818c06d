//! A PDF: its text where it has one, else its pages as pictures.

use hayro::hayro_interpret::{InterpreterCache, InterpreterSettings};
use hayro::hayro_syntax::object::dict::keys::CONTENTS;
use hayro::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};

use super::super::limits::ReadLimits;
use super::super::unreadable::UnreadableReason;
use super::page_text::{self, PageText, Shows};
use super::{Document, Refusal, pages};

/// The dictionary of a file that is laid out for the web stands in front.
const LINEARIZED_WITHIN: usize = 1024;

/// What the document says.
pub(super) fn read(file: Vec<u8>, images: bool, limits: &ReadLimits) -> Result<Document, Refusal> {
    if is_cut(&file) {
        return Err(UnreadableReason::Broken.into());
    }
    let pdf = Pdf::new(file).map_err(refused)?;
    if pdf.pages().is_empty() {
        return Err(UnreadableReason::NoPages.into());
    }
    if pdf.pages().len() > limits.max_text_pages {
        return Err(UnreadableReason::TooComplex.into());
    }
    let settings = InterpreterSettings::default();
    let read = page_texts(&pdf, &settings, limits)?;
    let shown = |what| read.iter().filter(|page| page.shows == what).count();
    let (texts, pictures) = (shown(Shows::Text), shown(Shows::Picture));
    if texts == 0 && pictures == 0 {
        return Err(UnreadableReason::Empty.into());
    }
    // A cover or a plate beside pages of text is no reason to read them all from pictures.
    if texts > 0 && (texts >= pictures || !images) {
        let text = read.into_iter().map(|page| page.text).collect();
        return Ok(Document::Text { text, pages_left_out: pictures });
    }
    if !images {
        return Err(UnreadableReason::NoTextLayer.into());
    }
    if texts + pictures > limits.max_pages {
        return Err(UnreadableReason::TooComplex.into());
    }
    let shown = pdf.pages().iter().zip(&read).filter(|(_, page)| page.shows != Shows::Nothing);
    let pictures = pages::paint(shown.map(|(page, _)| page), &settings, limits)?;
    Ok(Document::Pages(pictures))
}

fn page_texts(
    pdf: &Pdf,
    settings: &InterpreterSettings,
    limits: &ReadLimits,
) -> Result<Vec<PageText>, Refusal> {
    let cache = InterpreterCache::new();
    let at_most = usize::try_from(limits.text_bytes).unwrap_or(usize::MAX);
    let mut room = at_most;
    let mut read = Vec::with_capacity(pdf.pages().len());
    for page in pdf.pages().iter() {
        if page.raw().contains_key(CONTENTS) && page.page_stream().is_none() {
            // Left out, it would be missed by nobody until somebody misses their lines.
            return Err(UnreadableReason::Broken.into());
        }
        let page = page_text::read(page, &cache, settings, room);
        // Blanks and line ends come on top of what the page itself counted.
        let left = room.checked_sub(page.text.len()).filter(|_| page.whole);
        room = left.ok_or(UnreadableReason::TooComplex)?;
        read.push(page);
    }
    Ok(read)
}

fn refused(error: LoadPdfError) -> Refusal {
    match error {
        LoadPdfError::Decryption(
            DecryptionError::PasswordProtected | DecryptionError::UnsupportedAlgorithm,
        ) => UnreadableReason::PasswordRequired.into(),
        LoadPdfError::Decryption(_) | LoadPdfError::Invalid => UnreadableReason::Broken.into(),
    }
}

/// Whether the end is missing. The reader would make do with what is left, and a play that ends in
/// its second act would pass for a whole one.
fn is_cut(file: &[u8]) -> bool {
    let has = |word: &[u8]| file.windows(word.len()).rev().any(|window| window == word);
    !has(b"startxref") || length_for_the_web(file).is_some_and(|length| length > file.len())
}

/// What a file that is laid out for the web says of its own length.
fn length_for_the_web(file: &[u8]) -> Option<usize> {
    let head = &file[..file.len().min(LINEARIZED_WITHIN)];
    let position = |from: usize, word: &[u8]| {
        head.get(from..)?.windows(word.len()).position(|window| window == word).map(|at| from + at)
    };
    let at = position(0, b"/Linearized")?;
    let end = position(at, b">>").unwrap_or(head.len());
    let key = position(at, b"/L ").filter(|key| *key < end)?;
    let digits = head[key + 3..end].iter().skip_while(|byte| **byte == b' ');
    let digits: String =
        digits.take_while(|byte| byte.is_ascii_digit()).map(|b| char::from(*b)).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_its_end_is_cut() {
        assert!(is_cut(b"%PDF-1.4\n1 0 obj\n<< >>\nendobj\n"));
        assert!(!is_cut(b"%PDF-1.4\n1 0 obj\n<< >>\nendobj\nstartxref\n9\n%%EOF"));
        let linear = |length: usize| {
            format!(
                "%PDF-1.4\n1 0 obj\n<</Linearized 1/L {length}/O 3>>\nendobj\nstartxref\n9\n%%EOF"
            )
        };
        let whole = linear(1).len();
        assert!(!is_cut(linear(whole % 10).as_bytes()));
        assert!(is_cut(linear(90_000).as_bytes()));
    }
}
