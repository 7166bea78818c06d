//! What both vendors' requests share: messages, whose last may carry pictures.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::domain::prompt::{CallRequest, PromptImage};

/// A message, in whose parts the vendors differ.
#[derive(Serialize)]
pub(super) struct WireMessage<'a, P> {
    pub role: &'static str,
    pub content: Content<'a, P>,
}

/// What is said: text alone, or pictures and text.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a, P> {
    Text(&'a str),
    Parts(Vec<P>),
}

/// The request's messages; its pictures stand in the last one, before the text, where models read best.
pub(super) fn messages<'a, P>(
    request: &'a CallRequest,
    image: impl Fn(&'a PromptImage) -> P,
    text: impl Fn(&'a str) -> P,
) -> impl Iterator<Item = WireMessage<'a, P>> {
    let last = request.messages.len().saturating_sub(1);
    request.messages.iter().enumerate().map(move |(place, message)| {
        let content = if place == last && !request.images.is_empty() {
            // Vendors refuse a text of nothing but blanks.
            let said = Some(&*message.content).filter(|said| !said.trim().is_empty());
            Content::Parts(request.images.iter().map(&image).chain(said.map(&text)).collect())
        } else {
            Content::Text(&message.content)
        };
        WireMessage { role: message.role.as_str(), content }
    })
}

/// The picture's bytes as both vendors take them.
pub(super) fn base64(image: &PromptImage) -> String {
    STANDARD.encode(&image.bytes)
}
