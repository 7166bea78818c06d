//! What is sent: a prompt, as one model takes it, in the shape that a call was given.

use std::sync::Arc;

use super::models::Model;
use crate::domain::prompt::{CallRequest, Message, PromptImage, Tool};
use crate::domain::retry::Shape;

/// What a run asks, whatever model is asked.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// At least one; the last is the user's.
    pub messages: Arc<[Message]>,
    /// Instead of the model's own.
    pub system: Option<Arc<str>>,
    /// Sent with the last message.
    pub images: Arc<[PromptImage]>,
    /// The tool that must be called; the answer is its input then.
    pub tool: Option<Arc<Tool>>,
    pub max_tokens: Option<u32>,
    pub temperature: Option<f64>,
}

impl Prompt {
    /// The request to this model. Equal arguments make equal requests.
    pub fn request(&self, model: &Model, shape: &Shape) -> CallRequest {
        let temperature = shape.temperature(self.temperature);
        CallRequest {
            upstream: model.upstream.clone(),
            system: self.system.as_ref().unwrap_or(&model.system).clone(),
            messages: self.messages_in(shape),
            images: self.images.clone(),
            tool: self.tool.clone(),
            max_tokens: self
                .max_tokens
                .map_or(model.max_output_tokens, |asked| asked.min(model.max_output_tokens)),
            temperature: temperature.filter(|_| model.takes_temperature()),
            left_out: model.refused.parameters(),
        }
    }

    fn messages_in(&self, shape: &Shape) -> Arc<[Message]> {
        match self.messages.split_last() {
            Some((last, earlier)) if !shape.feedback.is_empty() => {
                let content = shape.message(&last.content).into();
                let last = Message { role: last.role, content };
                earlier.iter().cloned().chain([last]).collect()
            }
            _ => self.messages.clone(),
        }
    }
}
