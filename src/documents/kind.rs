//! What a file is, by its bytes alone. A name or a label may lie, and a picture whose label lies is
//! refused by the vendor after it was sent.

use super::text;

/// How far into a file the head of a PDF may stand: readers have always looked for it in the first
/// 1,024 bytes, since mail and web servers put lines of their own in front.
const PDF_HEAD_WITHIN: usize = 1024;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pdf,
    Png,
    Jpeg,
    Webp,
    /// Text in one of the encodings that [`text::decode`] takes; nothing at all counts as text, too.
    Text,
    /// None of those; in words that say it to whoever sent it.
    Other(&'static str),
}

/// Files that open with these bytes, and that nobody here reads.
const OTHERS: &[(&[u8], &str)] = &[
    (b"GIF87a", "a GIF picture"),
    (b"GIF89a", "a GIF picture"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"8BPS\0", "a Photoshop picture"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 picture"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL picture"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\0\0\x01\0", "an icon"),
    (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"PK\x05\x06", "a ZIP archive or an office document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document of the old form"),
    (b"{\\rtf", "an RTF document"),
    (b"%!PS", "a PostScript document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"OggS\0", "a sound or a film"),
    (b"fLaC\0", "a sound"),
    (b"ID3\x03", "a sound"),
    (b"ID3\x04", "a sound"),
    (b"\x1a\x45\xdf\xa3", "a film"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "a database"),
    (b"\0\0\xfe\xff", "text in UTF-32"),
    (b"\xff\xfe\0\0", "text in UTF-32"),
];

/// What follows `ftyp` in a file of boxes, and what the file is then.
const BRANDS: &[(&[u8], &str)] = &[
    (b"heic", "a HEIC picture"),
    (b"heix", "a HEIC picture"),
    (b"heim", "a HEIC picture"),
    (b"heis", "a HEIC picture"),
    (b"hevc", "a HEIC picture"),
    (b"hevx", "a HEIC picture"),
    (b"mif1", "a HEIF picture"),
    (b"msf1", "a HEIF picture"),
    (b"avif", "an AVIF picture"),
    (b"avis", "an AVIF picture"),
];

/// What the bytes are.
pub fn kind_of(bytes: &[u8]) -> Kind {
    match signed(bytes) {
        Some(kind) => kind,
        None if text::is_text(bytes) => Kind::Text,
        None => Kind::Other("neither a PDF, a PNG, JPEG or WebP picture, nor text"),
    }
}

/// What the first bytes claim, if they claim anything.
pub(super) fn signed(bytes: &[u8]) -> Option<Kind> {
    if is_pdf(bytes) {
        return Some(Kind::Pdf);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Some(Kind::Png);
    }
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Some(Kind::Jpeg);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(4..8).is_some_and(|size| size[3] < 0x20) {
        let webp = bytes.get(8..12) == Some(b"WEBP");
        return Some(if webp { Kind::Webp } else { Kind::Other("a sound or a film") });
    }
    if bytes.get(4..8) == Some(b"ftyp") {
        let brand = bytes.get(8..12).unwrap_or_default();
        let known = BRANDS.iter().find(|(name, _)| *name == brand);
        return Some(Kind::Other(known.map_or("a film", |(_, what)| *what)));
    }
    if is_bmp(bytes) {
        return Some(Kind::Other("a BMP picture"));
    }
    let other = OTHERS.iter().find(|(opening, _)| opens_with(bytes, opening));
    other.map(|(_, what)| Kind::Other(what))
}

/// An opening of letters alone could be the first word of a text, which goes on with more of them.
fn opens_with(bytes: &[u8], opening: &[u8]) -> bool {
    bytes.starts_with(opening)
        && (opening != b"BZh"
            || bytes.get(4..10) == Some(b"1AY&SY")
            || bytes.get(4..10) == Some(b"\x17\x72\x45\x38\x50\x90"))
}

/// `%PDF-` at the very beginning; or at the start of an early line of something that has objects.
fn is_pdf(bytes: &[u8]) -> bool {
    if bytes.starts_with(b"%PDF-") || bytes.starts_with(b"\xef\xbb\xbf%PDF-") {
        return true;
    }
    let head = &bytes[..bytes.len().min(PDF_HEAD_WITHIN)];
    let at = head.windows(5).position(|window| window == b"%PDF-");
    at.is_some_and(|at| {
        let line_starts = head[..at].iter().rev().find(|byte| **byte != b' ');
        line_starts.is_none_or(|byte| matches!(byte, b'\n' | b'\r' | 0))
            && bytes[at..].windows(4).any(|window| window == b" obj")
    })
}

/// "BM" is also how texts begin: the bytes behind it must be a header of that form.
fn is_bmp(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BM")
        && bytes.get(6..10) == Some(&[0; 4])
        && bytes.get(15..18) == Some(&[0; 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_bytes_say() {
        let cases: &[(&[u8], Kind)] = &[
            (b"%PDF-1.7\n", Kind::Pdf),
            (b"\xef\xbb\xbf%PDF-1.7\n", Kind::Pdf),
            (b"Content-Type: x\r\n\r\n%PDF-1.7\n1 0 obj\n", Kind::Pdf),
            (b"\x89PNG\r\n\x1a\n....", Kind::Png),
            (b"\xff\xd8\xff\xe0..", Kind::Jpeg),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Kind::Webp),
            (b"RIFF\x10\0\0\0WAVEfmt ", Kind::Other("a sound or a film")),
            (b"\0\0\0\x18ftypheic\0\0", Kind::Other("a HEIC picture")),
            (b"\0\0\0\x18ftypavif\0\0", Kind::Other("an AVIF picture")),
            (b"\0\0\0\x18ftypisom\0\0", Kind::Other("a film")),
            (b"GIF89a\x01\0", Kind::Other("a GIF picture")),
            (b"PK\x03\x04\x14\0", Kind::Other("a ZIP archive or an office document")),
            (b"{\\rtf1\\ansi MARA}", Kind::Other("an RTF document")),
            (b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0", Kind::Other("a BMP picture")),
            (b"\xff\xfe\0\0M\0\0\0", Kind::Other("text in UTF-32")),
        ];
        for (bytes, kind) in cases {
            assert_eq!(kind_of(bytes), *kind, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_text_that_begins_like_something_else_is_text() {
        let texts = [
            "BMW: two words, and 10 more of them",
            "BZhang: good evening",
            "RIFFRAFF: WEBPages are open",
            "ID3 is a tag",
            "MARA: a file begins with %PDF-1.4, they say.\n",
            "Heads:\n%PDF-1.4 is one of them\n",
            "",
        ];
        for text in texts {
            assert_eq!(kind_of(text.as_bytes()), Kind::Text, "{text}");
        }
    }

    #[test]
    fn junk_is_none_of_them() {
        let junk: Vec<u8> = (0..=255).cycle().take(1000).collect();
        assert!(matches!(kind_of(&junk), Kind::Other(_)));
    }
}
