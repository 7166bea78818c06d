//! The child's side: everything that looks into a file that may be hostile. It runs in a process of
//! its own and ends with it, so nothing here has to survive a bad file; it has only to be sure that
//! what it says of a good one is right.

mod confine;
mod layout;
mod page_text;
mod pages;
mod pdf;
mod picture;

use std::io::{self, Read, Write};

use super::unreadable::UnreadableReason;
use super::wire::{Answer, Request, Task, Variant};
use super::{Document, PageImage};

/// Why a file gives no document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Reason(UnreadableReason),
    Variant(Variant),
}

impl From<UnreadableReason> for Refusal {
    fn from(reason: UnreadableReason) -> Self {
        Refusal::Reason(reason)
    }
}

/// Reads one request, confines the process to what the request allows, and answers.
///
/// The process is of no other use afterwards. What goes wrong by the file's fault ends it: with a
/// panic, or by a signal.
///
/// # Errors
/// Where the request is none, the limits cannot be set, or nobody takes the answer.
pub fn read(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    // Nobody hears what a panic says, and it might quote the file.
    std::panic::set_hook(Box::new(|_| {}));
    let request = Request::read(&mut from)?;
    confine::confine(&request.limits)?;
    let mut file = Vec::new();
    file.try_reserve_exact(request.bytes)?;
    from.take(request.bytes as u64).read_to_end(&mut file)?;
    if file.len() != request.bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let answer = match document(&request, file) {
        Ok(document) => Answer::Read(document),
        Err(Refusal::Reason(reason)) => Answer::Refused(reason),
        Err(Refusal::Variant(variant)) => Answer::Unsupported(variant),
    };
    to.write_all(&answer.encode())?;
    to.flush()
}

fn document(request: &Request, file: Vec<u8>) -> Result<Document, Refusal> {
    let limits = &request.limits;
    match request.task {
        Task::Pdf => pdf::read(file, request.images, limits),
        Task::Png | Task::Jpeg | Task::Webp => {
            let page = picture::read(request.task, file, limits)?;
            Ok(Document::Pages(vec![page]))
        }
    }
}
