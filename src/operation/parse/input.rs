//! What a parse is about: stored before anything is spent, then read.

use bytes::Bytes;
use uuid::Uuid;

use crate::documents::{Document, Kind, PageImage, Unreadable, UnreadableReason, kind_of};
use crate::domain::failure::FailureKind;
use crate::domain::parse::{Chunk, Input, ParseRequest, chunk};
use crate::operation::attempts::Failed;
use crate::operation::scope::{Run, kind_of as kind_of_error};
use crate::store::Capture;

/// What text that was pasted is stored as; a file of text bears no character set.
const PASTED: &str = "text/plain; charset=utf-8";

/// What there is to ask about.
pub enum Content {
    Text { text: String, chunks: Vec<Chunk> },
    Pages(Vec<PageImage>),
}

/// Stores the input, unless an earlier run of the operation did, and returns its id.
pub async fn keep(run: &Run<'_>, request: &ParseRequest) -> Result<Uuid, Failed> {
    let (store, captures) = (&run.inner.store, &run.inner.parsing.captures);
    let tenant = &run.claim.at.tenant;
    let operation_id = run.claim.operation_id;
    let failed = |error: &dyn std::fmt::Display, kind| {
        tracing::error!(event = "capture_failed", %error, "the input could not be stored");
        Failed::of(kind)
    };
    let known = store.capture_of(tenant.clone(), operation_id).await;
    if let Some(known) = known.map_err(|error| failed(&error, kind_of_error(&error)))? {
        return Ok(known.id);
    }
    let (bytes, content_type) = bytes_of(&request.input);
    // The operation's own id: whoever stores it again after a crash writes the same bytes to the same
    // place.
    let id = operation_id.0;
    let location = captures.put(tenant, id, bytes.clone()).await.map_err(|error| {
        // Permissions and settings are ours to mend: nobody need ask again before that.
        let kind = if error.is_passing() { FailureKind::Storage } else { FailureKind::Internal };
        failed(&error, kind)
    })?;
    let capture = Capture {
        id,
        operation_id,
        request_id: run.claim.guard.request_id,
        sha256: request.sha256,
        content_type: content_type.to_owned(),
        bytes: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
        location,
    };
    store
        .add_capture(tenant.clone(), run.subject.cloned(), capture)
        .await
        .map_err(|error| failed(&error, kind_of_error(&error)))?;
    tracing::info!(event = "captured", capture_id = %id, bytes = bytes.len(), content_type, "stored");
    Ok(id)
}

fn bytes_of(input: &Input) -> (Bytes, &'static str) {
    match input {
        Input::Text(text) => (Bytes::copy_from_slice(text.as_bytes()), PASTED),
        Input::File(bytes) => {
            let content_type = match kind_of(bytes) {
                Kind::Pdf => "application/pdf",
                Kind::Png => "image/png",
                Kind::Jpeg => "image/jpeg",
                Kind::Webp => "image/webp",
                Kind::Text => "text/plain",
                Kind::Other(_) => "application/octet-stream",
            };
            (bytes.clone(), content_type)
        }
    }
}

/// Reads the input as far as it can be read here.
pub async fn read(run: &Run<'_>, request: &ParseRequest) -> Result<Content, Failed> {
    let parsing = &run.inner.parsing;
    let document = match &request.input {
        Input::Text(text) => {
            let text = crate::documents::text::tidy(text).map_err(|error| failed(&error))?;
            Document::Text { text, pages_left_out: 0 }
        }
        Input::File(bytes) => parsing
            .documents
            .read(bytes.clone(), run.model.images)
            .await
            .map_err(|error| failed(&error))?,
    };
    Ok(match document {
        Document::Text { text, pages_left_out } => {
            let chunks = chunk(&text, parsing.chunk_chars);
            let chars = chunks.last().map_or(0, |chunk| chunk.to);
            tracing::info!(
                event = "document_read",
                chars,
                chunks = chunks.len(),
                pages_left_out,
                "read as text"
            );
            Content::Text { text, chunks }
        }
        Document::Pages(pages) => {
            tracing::info!(event = "document_read", pages = pages.len(), "read as pictures");
            Content::Pages(pages)
        }
    })
}

/// How an input that cannot be read ends its run.
fn failed(error: &Unreadable) -> Failed {
    let kind = match error {
        Unreadable::Refused(reason) => match reason {
            UnreadableReason::PasswordRequired => FailureKind::PasswordRequired,
            UnreadableReason::Broken => FailureKind::Broken,
            UnreadableReason::Empty => FailureKind::Blank,
            UnreadableReason::NoPages => FailureKind::NoPages,
            UnreadableReason::NoTextLayer => FailureKind::NoTextLayer,
            UnreadableReason::TooComplex => FailureKind::TooComplex,
        },
        // Told by the first bytes before there was a run; what is seen only further inside is a file
        // that is not what it begins as.
        Unreadable::Unsupported { .. } => FailureKind::Broken,
        Unreadable::Ours(_) => FailureKind::ReadingFailed,
    };
    tracing::warn!(event = "run_failed", %kind, %error, "the input cannot be read");
    let detail = match error {
        Unreadable::Unsupported { what } => {
            Some(format!("This is {what}, which is not read here."))
        }
        Unreadable::Refused(_) | Unreadable::Ours(_) => None,
    };
    Failed { detail, ..Failed::of(kind) }
}

/// A stored input as it was given.
pub fn input_of(content_type: &str, bytes: Bytes) -> Input {
    if content_type != PASTED {
        return Input::File(bytes);
    }
    match String::from_utf8(bytes.into()) {
        Ok(text) => Input::Text(text),
        // It was text when it was stored; whatever it is now is looked at like any file.
        Err(error) => Input::File(error.into_bytes().into()),
    }
}
