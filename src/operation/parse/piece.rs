//! One piece of an input: what is asked about it, and what a good answer is.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::input::Content;
use crate::domain::failure::Cause;
use crate::domain::parse::{Chunk, Profile, halves, salvage};
use crate::domain::prompt::{Answer, Message, PromptImage, Role, StopReason};
use crate::operation::models::Model;
use crate::operation::request::Prompt;

/// A chunk of the text or a page, or half of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The number of its chunk or page, from 0.
    pub index: usize,
    what: What,
    /// Whether it is a half: it is not divided again.
    pub halved: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Chunk(Chunk),
    Page,
}

impl Piece {
    /// All of them, in order.
    pub fn all(content: &Content) -> Vec<Piece> {
        let whole = |index, what| Piece { index, what, halved: false };
        match content {
            Content::Text { chunks, .. } => {
                chunks.iter().map(|chunk| whole(chunk.index, What::Chunk(chunk.clone()))).collect()
            }
            Content::Pages(pages) => (0..pages.len()).map(|page| whole(page, What::Page)).collect(),
        }
    }

    /// Where it lies in the text, in characters; a page lies in none.
    pub fn range(&self) -> (usize, usize) {
        match &self.what {
            What::Chunk(chunk) => (chunk.from, chunk.to),
            What::Page => (0, 0),
        }
    }

    /// In two, where that is possible and was not done before.
    pub fn halves(&self, content: &Content) -> Option<[Piece; 2]> {
        let (What::Chunk(chunk), Content::Text { text, .. }) = (&self.what, content) else {
            return None;
        };
        if self.halved {
            return None;
        }
        let half = |chunk| Piece { index: self.index, what: What::Chunk(chunk), halved: true };
        halves(text, chunk).map(|both| both.map(half))
    }

    /// What is asked, the same for the same piece.
    pub fn prompt(&self, profile: &Profile, content: &Content) -> Prompt {
        let mut images = Vec::new();
        let message = match (&self.what, content) {
            (What::Chunk(chunk), Content::Text { text, chunks }) => {
                profile.message(chunk, text, chunks.len())
            }
            (_, Content::Pages(pages)) => {
                images.extend(pages.get(self.index).map(|page| PromptImage {
                    media_type: page.media_type.to_owned(),
                    bytes: page.bytes.clone(),
                }));
                profile.image_message(self.index, pages.len())
            }
            // A piece is one of the content that it was made of.
            (What::Page, Content::Text { .. }) => String::new(),
        };
        Prompt {
            system: Some(profile.instructions().clone()),
            messages: Arc::new([Message { role: Role::User, content: message.into() }]),
            images: images.into(),
            tool: Some(profile.tool().clone()),
            max_tokens: None,
            temperature: None,
        }
    }
}

/// Everything that the answer about a piece depends on, hashed: an equal question has an equal hash in
/// every run, and at no other model or profile. Two pieces that read the same are two questions, each
/// with a call of its own. `again`: asked hotter, since the first answer held nothing.
pub fn asked(
    profile: &Profile,
    model: &Model,
    piece: &Piece,
    prompt: &Prompt,
    again: bool,
) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    part(profile.identity().as_bytes());
    part(model.identity.as_bytes());
    for number in [piece.index, piece.range().0, usize::from(again)] {
        part(&(number as u64).to_be_bytes());
    }
    for message in prompt.messages.iter() {
        part(message.content.as_bytes());
    }
    for image in prompt.images.iter() {
        part(&image.bytes);
    }
    hasher.finalize().into()
}

/// Reads an answer; the reason why it stopped comes first, since a cut answer may look whole.
/// `strict`: one that holds nothing of what is looked for is none.
pub fn accept(profile: &Profile, answer: &Answer, strict: bool) -> Result<Value, Cause> {
    if answer.stop == StopReason::MaxTokens {
        return Err(Cause::OutputLimit);
    }
    let read = salvage(profile, &answer.text).map_err(Cause::RuleBroken)?;
    if read.repairs > 0 {
        metrics::counter!("oncekey_salvaged_total").increment(1);
        tracing::info!(event = "salvaged", repairs = read.repairs, "an answer was mended");
    }
    if strict && profile.is_empty(&read.value) {
        return Err(Cause::NothingFound);
    }
    Ok(read.value)
}
