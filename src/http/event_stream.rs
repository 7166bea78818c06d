//! The body of a stream of server-sent events, and when a client gets one.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::Stream;
use tokio_util::sync::ReusableBoxFuture;

use crate::clock::{BoxFuture, Clock};
use crate::operation::Feed;
use crate::streams::{Begin, COMMENT};

/// Between two comments; whatever lies between us and the reader takes a silent line for a dead one.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const LAST_EVENT_ID: &str = "last-event-id";

/// Where a reader wants to begin.
pub fn begin(headers: &HeaderMap) -> Begin {
    match headers.get(LAST_EVENT_ID).map(HeaderValue::to_str) {
        None => Begin::Start,
        Some(Ok(text)) => Begin::header(Some(text.trim())),
        Some(Err(_)) => Begin::Elsewhere,
    }
}

/// Whether a stream is what the client would rather have: it names one, and JSON not before it.
pub fn are_preferred(headers: &HeaderMap) -> bool {
    let mut best = (0.0, 0.0);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
        let weight = weight.unwrap_or(1.0);
        if name.eq_ignore_ascii_case("text/event-stream") {
            best.0 = weight.max(best.0);
        } else if name.eq_ignore_ascii_case("application/json") {
            best.1 = weight.max(best.1);
        }
    }
    best.0 > 0.0 && best.0 >= best.1
}

/// A 200 that tells what the feed gives. Where nothing can follow it is a 204: a reader that connects
/// again by itself, as a browser's does, takes any 200 for a stream that broke, and comes back for ever.
pub fn of_feed(clock: &Clock, feed: Feed) -> Response {
    if feed.is_over() {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        return response;
    }
    let events = Events {
        next: ReusableBoxFuture::new(next(feed)),
        comment: clock.sleep(COMMENT_EVERY),
        clock: clock.clone(),
        over: false,
    };
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENT_STREAM);
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    response
}

/// The events of a feed with comments between them. What a reader does not take is not asked for.
struct Events {
    next: ReusableBoxFuture<'static, (Feed, Option<Bytes>)>,
    comment: BoxFuture<'static, ()>,
    clock: Clock,
    over: bool,
}

async fn next(mut feed: Feed) -> (Feed, Option<Bytes>) {
    let bytes = feed.next().await;
    (feed, bytes)
}

impl Stream for Events {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready((feed, bytes)) = self.next.poll(context) {
            return Poll::Ready(match bytes {
                Some(bytes) => {
                    self.next.set(next(feed));
                    Some(Ok(bytes))
                }
                None => {
                    self.over = true;
                    None
                }
            });
        }
        match self.comment.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.comment = self.clock.sleep(COMMENT_EVERY);
                Poll::Ready(Some(Ok(COMMENT)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred(values: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT, HeaderValue::from_static(value));
        }
        are_preferred(&headers)
    }

    #[test]
    fn a_stream_is_given_where_it_is_named_and_json_not_before_it() {
        for values in [
            &["text/event-stream"][..],
            &["Text/Event-Stream; charset=utf-8"],
            &["application/json, text/event-stream"],
            &["application/json;q=0.5", "text/event-stream;q=0.9"],
            &["text/event-stream, */*;q=0.1"],
        ] {
            assert!(preferred(values), "{values:?}");
        }
        for values in [
            &[][..],
            &["*/*"],
            &["text/*"],
            &["application/json"],
            &["text/event-stream;q=0"],
            &["application/json, text/event-stream;q=0.9"],
        ] {
            assert!(!preferred(values), "{values:?}");
        }
    }
}
