//! From the bytes of an upload to what a model is asked about: text, or pictures of pages.
//!
//! What a file is, its bytes say ([`kind_of`]). Plain text is decoded here ([`text`]); PDFs and
//! pictures are read in a child process (`inside`), since the crates for them can panic, recurse
//! without end, or take as much memory as a number in the file says, and nothing inside the server
//! would stop that. The child is this very program; it bounds its own time and memory and gives up
//! files and threads before it looks at a byte of the upload, has no environment, and is killed and
//! reaped however its reading ends. So a hostile file costs a refusal: for always the same reason,
//! because what bounds a file (processor time, memory, sizes) does not depend on what else goes on.

mod inside;
mod kind;
mod limits;
mod process;
pub mod text;
mod unreadable;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

pub use inside::read as read_inside;
pub use kind::{Kind, kind_of};
pub use limits::ReadLimits;
pub use unreadable::{Unreadable, UnreadableReason};

use crate::clock::Clock;
use wire::{Answer, Request, Task, Variant};

/// The command that a child is started with: the program's `read-document`.
pub const CHILD_COMMAND: &str = "read-document";

/// What a model can be asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// In reading order, with the line ends of the page; see [`text::tidy`].
    Text {
        text: String,
        /// Of a PDF: pages that show something without saying it in text. They are few beside those
        /// that have text, like a cover, and are not in it.
        pages_left_out: usize,
    },
    /// Upright, in order, at least one.
    Pages(Vec<PageImage>),
}

/// A picture as it goes to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageImage {
    /// What the bytes are, whatever the upload was called: one of the constants.
    pub media_type: &'static str,
    pub bytes: Bytes,
    /// In pixels.
    pub width: u32,
    pub height: u32,
}

impl PageImage {
    pub const PNG: &str = "image/png";
    pub const JPEG: &str = "image/jpeg";
    pub const WEBP: &str = "image/webp";
}

/// Reads uploads; clones are one and the same.
#[derive(Debug, Clone)]
pub struct Documents(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    program: PathBuf,
    clock: Clock,
    limits: ReadLimits,
    children: Semaphore,
}

impl Documents {
    /// `program`: this program, see [`Documents::this_program`]. `at_once`: children at one time;
    /// others wait in the order they came. Each may take as much memory as the limits say.
    pub fn new(program: PathBuf, clock: Clock, limits: ReadLimits, at_once: usize) -> Documents {
        let children = Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS));
        Documents(Arc::new(Shared { program, clock, limits, children }))
    }

    /// The running program, also where its file was replaced or deleted since it was started.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn this_program() -> io::Result<PathBuf> {
        let itself = Path::new("/proc/self/exe");
        if itself.exists() { Ok(itself.to_owned()) } else { std::env::current_exe() }
    }

    /// What the bytes say. `images`: whether the model that will be asked takes pictures.
    ///
    /// Dropped before it is ready, it leaves nothing behind.
    ///
    /// # Errors
    /// See [`Unreadable`]; only [`Unreadable::Ours`] may be different the next time.
    pub async fn read(&self, bytes: Bytes, images: bool) -> Result<Document, Unreadable> {
        let task = match kind::signed(&bytes) {
            None | Some(Kind::Text) => {
                return Ok(Document::Text { text: text::decode(&bytes)?, pages_left_out: 0 });
            }
            Some(Kind::Other(what)) => return Err(Unreadable::Unsupported { what }),
            Some(Kind::Pdf) => Task::Pdf,
            Some(Kind::Png) => Task::Png,
            Some(Kind::Jpeg) => Task::Jpeg,
            Some(Kind::Webp) => Task::Webp,
        };
        if !images && task != Task::Pdf {
            return Err(Unreadable::Refused(UnreadableReason::NoTextLayer));
        }
        let closed = |_| Unreadable::Ours("no more files are read".to_owned());
        let _place = self.0.children.acquire().await.map_err(closed)?;
        let limits = self.0.limits.clone();
        let request = Request { task, images, limits, bytes: bytes.len() };
        match process::ask(&self.0.program, &self.0.clock, &request, &bytes).await? {
            Answer::Read(Document::Text { text, pages_left_out }) => {
                Ok(Document::Text { text: text::tidy(&text)?, pages_left_out })
            }
            Answer::Read(document) => Ok(document),
            Answer::Refused(reason) => Err(Unreadable::Refused(reason)),
            Answer::Unsupported(variant) => Err(Unreadable::Unsupported {
                what: match variant {
                    Variant::Animated => "a moving picture",
                    Variant::Rare => "a picture in a rare coding",
                },
            }),
        }
    }
}
