//! `POST /v1/chat`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;

use super::answer::ProblemResponse;
use super::running::Asking;
use super::{Http, body};
use crate::domain::chat::ChatRequest;
use crate::domain::ids::RequestId;
use crate::domain::problem::{ErrorCode, Problem};
use crate::domain::request::RunRequest;

/// Runs a chat, or answers from what is there.
pub async fn post_chat(
    State(http): State<Http>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ProblemResponse> {
    let (asking, request) = Asking::of(&http, id, request).await?;
    let text = body::json_text(&http, request, id).await?;
    let chat = ChatRequest::read(&text)
        .map_err(|error| Problem::new(ErrorCode::InvalidRequest, id, error.to_string()))?;
    let stream = chat.stream;
    Ok(asking.answer(&http, RunRequest::Chat(Arc::new(chat)), stream).await)
}
