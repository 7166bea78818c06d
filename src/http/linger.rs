//! Hearing a refused request out.
//!
//! A connection that is closed with unread bytes is reset, and the reset can overtake the answer: the
//! client would see a broken pipe in place of its 413 or 401. So what a handler that refused left of
//! the body is read and thrown away first, within bounds.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};

use super::Http;

/// A client that sends nothing for so long is not about to.
const SILENCE: Duration = Duration::from_secs(1);
/// And one that is not done by then is told all the same.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads the rest of a refused request before the answer goes out.
pub async fn hear_out(State(http): State<Http>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let awaits_leave = parts.headers.contains_key(EXPECT);
    let mut shared = Shared(Arc::new(Mutex::new(Tail { body, begun: false })));
    let response = next.run(Request::from_parts(parts, Body::new(shared.clone()))).await;
    // Whoever asked first whether to send a body has not begun.
    let nothing_comes = awaits_leave && !shared.tail().begun;
    if response.status().as_u16() >= 400 && !nothing_comes && !shared.is_end_stream() {
        let until = http.clock.now() + PATIENCE;
        while let Ok(Some(Ok(_))) = http.clock.timeout(SILENCE, shared.frame()).await
            && http.clock.now() < until
        {}
    }
    response
}

/// A body that stays within reach when its reader lets go of it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Tail>>);

struct Tail {
    body: Body,
    begun: bool,
}

impl Shared {
    fn tail(&self) -> MutexGuard<'_, Tail> {
        // Only ever locked for one poll; a body that panicked is read no further by anybody else.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut tail = self.tail();
        tail.begun = true;
        Pin::new(&mut tail.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.tail().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.tail().body.size_hint()
    }
}
