//! What is said between the server and the child that reads a file: a head in JSON behind its length,
//! then bytes as many as the head says. Both ends are the same program.
//!
//! The server believes nothing of an answer but its form: lengths are compared with limits before
//! anything is kept, text must be UTF-8, media types are of a closed list.

use std::io::{self, Read};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::ReadLimits;
use super::unreadable::UnreadableReason;
use super::{Document, PageImage};

/// Heads are far smaller: one of a hundred pictures has 8 KB.
const MAX_HEAD_BYTES: usize = 1 << 20;

/// What a child is to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    Pdf,
    Png,
    Jpeg,
    Webp,
}

/// The head of a request; `bytes` of the file follow.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Request {
    pub task: Task,
    pub images: bool,
    pub limits: ReadLimits,
    pub bytes: usize,
}

/// The head of an answer, without the bytes that follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Head {
    Text { bytes: usize, pages_left_out: usize },
    Pages(Vec<PictureHead>),
    Refused(UnreadableReason),
    Unsupported(Variant),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PictureHead {
    media_type: MediaType,
    bytes: usize,
    width: u32,
    height: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MediaType {
    Png,
    Jpeg,
    Webp,
}

/// What a picture of a type that is read may be, and is not read then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Variant {
    /// It moves.
    Animated,
    /// Its coding is a rare one.
    Rare,
}

/// What a child found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Read(Document),
    Refused(UnreadableReason),
    Unsupported(Variant),
}

/// An answer or request that does not have the form of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not of the agreed form: {0}")]
pub(super) struct Malformed(&'static str);

impl Request {
    /// The request as bytes, up to those of the file.
    pub(super) fn head(&self) -> Vec<u8> {
        framed(self)
    }

    /// Takes the head of a request, and not a byte of the file behind it.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Request> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_HEAD_BYTES {
            return Err(io::Error::other(Malformed("the head is too long")));
        }
        let mut head = vec![0; length];
        from.read_exact(&mut head)?;
        Ok(serde_json::from_slice(&head)?)
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Read(Document::Text { text, pages_left_out }) => {
                let head = Head::Text { bytes: text.len(), pages_left_out: *pages_left_out };
                let mut bytes = framed(&head);
                bytes.extend_from_slice(text.as_bytes());
                bytes
            }
            Answer::Read(Document::Pages(pages)) => {
                let mut bytes = framed(&Head::Pages(pages.iter().map(PictureHead::of).collect()));
                pages.iter().for_each(|page| bytes.extend_from_slice(&page.bytes));
                bytes
            }
            Answer::Refused(reason) => framed(&Head::Refused(*reason)),
            Answer::Unsupported(variant) => framed(&Head::Unsupported(*variant)),
        }
    }

    pub(super) fn decode(received: &Bytes) -> Result<Answer, Malformed> {
        let (head, rest) = unframed::<Head>(received)?;
        let mut rest = received.slice_ref(rest);
        let answer = match head {
            Head::Text { bytes, pages_left_out } => {
                let text = taken(&mut rest, bytes)?;
                let text = std::str::from_utf8(&text).map_err(|_| Malformed("no UTF-8"))?;
                Answer::Read(Document::Text { text: text.to_owned(), pages_left_out })
            }
            Head::Pages(heads) => {
                let pages = heads.into_iter().map(|head| {
                    let bytes = taken(&mut rest, head.bytes)?;
                    let media_type = head.media_type.name();
                    Ok(PageImage { media_type, bytes, width: head.width, height: head.height })
                });
                Answer::Read(Document::Pages(pages.collect::<Result<_, _>>()?))
            }
            Head::Refused(reason) => Answer::Refused(reason),
            Head::Unsupported(variant) => Answer::Unsupported(variant),
        };
        if rest.is_empty() { Ok(answer) } else { Err(Malformed("bytes are left over")) }
    }
}

impl PictureHead {
    fn of(page: &PageImage) -> PictureHead {
        PictureHead {
            media_type: MediaType::of(page.media_type),
            bytes: page.bytes.len(),
            width: page.width,
            height: page.height,
        }
    }
}

impl MediaType {
    fn of(name: &str) -> MediaType {
        match name {
            PageImage::PNG => MediaType::Png,
            PageImage::WEBP => MediaType::Webp,
            _ => MediaType::Jpeg,
        }
    }

    fn name(self) -> &'static str {
        match self {
            MediaType::Png => PageImage::PNG,
            MediaType::Jpeg => PageImage::JPEG,
            MediaType::Webp => PageImage::WEBP,
        }
    }
}

fn framed(head: &impl Serialize) -> Vec<u8> {
    // Of our own types, none of which has a map with keys that are no text: it cannot fail.
    let head = serde_json::to_vec(head).unwrap_or_default();
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
    [length.to_be_bytes().as_slice(), &head].concat()
}

fn unframed<T: for<'de> Deserialize<'de>>(received: &[u8]) -> Result<(T, &[u8]), Malformed> {
    let (length, rest) =
        received.split_first_chunk::<4>().ok_or(Malformed("there is no length"))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEAD_BYTES {
        return Err(Malformed("the head is too long"));
    }
    let (head, rest) = rest.split_at_checked(length).ok_or(Malformed("the head is cut"))?;
    let head = serde_json::from_slice(head).map_err(|_| Malformed("the head is unknown"))?;
    Ok((head, rest))
}

fn taken(rest: &mut Bytes, bytes: usize) -> Result<Bytes, Malformed> {
    if bytes > rest.len() {
        return Err(Malformed("the bytes are cut"));
    }
    Ok(rest.split_to(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(media_type: &'static str, bytes: &'static [u8]) -> PageImage {
        PageImage { media_type, bytes: Bytes::from_static(bytes), width: 3, height: 4 }
    }

    fn answers() -> Vec<Answer> {
        vec![
            Answer::Read(Document::Text { text: "MARA: œ\n".to_owned(), pages_left_out: 2 }),
            Answer::Read(Document::Pages(vec![
                picture(PageImage::PNG, b"abc"),
                picture(PageImage::JPEG, b""),
                picture(PageImage::WEBP, b"defgh"),
            ])),
            Answer::Refused(UnreadableReason::NoPages),
            Answer::Unsupported(Variant::Animated),
        ]
    }

    #[test]
    fn an_answer_arrives_as_it_was_given() {
        for answer in answers() {
            assert_eq!(Answer::decode(&answer.encode().into()), Ok(answer));
        }
    }

    #[test]
    fn a_part_of_an_answer_is_none() {
        for answer in answers() {
            let whole = Bytes::from(answer.encode());
            for end in 0..whole.len() {
                assert!(Answer::decode(&whole.slice(..end)).is_err(), "{answer:?} to {end}");
            }
            let longer = Bytes::from([whole.as_ref(), b"x"].concat());
            assert!(Answer::decode(&longer).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn what_was_not_agreed_is_no_answer() {
        let head = |head: &str| {
            let length = u32::try_from(head.len()).unwrap().to_be_bytes();
            Bytes::from([length.as_slice(), head.as_bytes()].concat())
        };
        for text in [r#"{"text":{"bytes":18446744073709551615,"pages_left_out":0}}"#, "{}", "null"]
        {
            assert!(Answer::decode(&head(text)).is_err(), "{text}");
        }
        let not_utf8 =
            [head(r#"{"text":{"bytes":1,"pages_left_out":0}}"#).as_ref(), b"\xff"].concat();
        assert!(Answer::decode(&not_utf8.into()).is_err());
    }

    #[test]
    fn a_request_is_read_up_to_its_file() {
        let request =
            Request { task: Task::Pdf, images: true, limits: ReadLimits::default(), bytes: 3 };
        let sent = [request.head(), b"%PD".to_vec()].concat();
        let mut rest = sent.as_slice();
        let received = Request::read(&mut rest).unwrap();
        assert_eq!(
            (received.task, received.limits, rest),
            (Task::Pdf, request.limits, &b"%PD"[..])
        );
        assert!(Request::read(&mut &sent[..20]).is_err());
        assert!(Request::read(&mut [0xff; 8].as_slice()).is_err());
    }
}
