//! A response's bytes as server-sent events.
//!
//! Decoding is the `sse-stream` crate's: it works on bytes in linear time, keeps what a chunk
//! border splits (a character, a CR and its LF, a field name), takes every line ending and a colon
//! without a blank, and refuses bytes that are no UTF-8 instead of replacing them. Two things are
//! added here: a bound on what is held for one event, and a blank line at the end of the stream,
//! so that a last event whose sender spared it is read too. Half an event is then read as well,
//! and fails as the broken JSON that it is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use sse_stream::SseByteStream;

/// Why no further event comes, other than the end.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventsError {
    #[error("the connection broke")]
    Transport,
    #[error("one event is longer than the limit of {limit_bytes} bytes")]
    TooLong { limit_bytes: usize },
    #[error("the bytes are no text")]
    NoText,
}

/// Events of a stream of bytes; only their data is of interest, since the types stand in it too.
pub(super) struct Events {
    decoder: SseByteStream<BoxStream<'static, Result<Bytes, EventsError>>>,
    /// Bytes taken since the last event.
    held: Arc<AtomicUsize>,
}

impl Events {
    /// `limit_bytes` bounds what is read until an event is whole.
    pub(super) fn new<E: Send + 'static>(
        bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        limit_bytes: usize,
    ) -> Events {
        let held = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&held);
        let counted = bytes.map(move |chunk| {
            let chunk = chunk.map_err(|_| EventsError::Transport)?;
            let held = counter.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
            if held > limit_bytes { Err(EventsError::TooLong { limit_bytes }) } else { Ok(chunk) }
        });
        let last_blank = stream::once(async { Ok(Bytes::from_static(b"\n\n")) });
        Events { decoder: SseByteStream::new(counted.chain(last_blank).boxed()), held }
    }

    /// The data of the next event that has some; `None` at the end of the stream.
    ///
    /// # Errors
    /// Once, and then the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Result<String, EventsError>> {
        loop {
            let event = match Pin::new(&mut self.decoder).next().await? {
                Ok(event) => event,
                Err(sse_stream::Error::Body(error)) => {
                    let error = error.downcast::<EventsError>();
                    return Some(Err(error.map_or(EventsError::Transport, |error| *error)));
                }
                Err(_) => return Some(Err(EventsError::NoText)),
            };
            self.held.store(0, Ordering::Relaxed);
            if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                return Some(Ok(data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    /// The events' data of bytes that come in pieces, and how the stream ended.
    fn decode(pieces: Vec<Vec<u8>>, limit_bytes: usize) -> (Vec<String>, Option<EventsError>) {
        let pieces = pieces.into_iter().map(|piece| Ok::<_, ()>(Bytes::from(piece)));
        let mut events = Events::new(stream::iter(pieces), limit_bytes);
        let mut told = Vec::new();
        loop {
            match events.next().now_or_never().unwrap() {
                Some(Ok(data)) => told.push(data),
                Some(Err(error)) => return (told, Some(error)),
                None => return (told, None),
            }
        }
    }

    fn one_by_one(bytes: &[u8]) -> Vec<Vec<u8>> {
        bytes.iter().map(|byte| vec![*byte]).collect()
    }

    const MIXED: &[u8] =
        "\u{feff}event:a\r\ndata:naïve\r\n\r\n: ping\n\ndata: 北京 🫖\ndata: two\n\n\
        id: 7\n\nevent: ping\ndata\n\ndata:  \tkept\r\rdata: last"
            .as_bytes();

    #[test]
    fn every_line_ending_and_no_blank_after_the_colon() {
        let told = ["naïve", "北京 🫖\ntwo", " \tkept", "last"];
        let (events, error) = decode(vec![MIXED.to_vec()], 1000);
        assert!(error.is_none());
        assert_eq!(events, told);
        assert_eq!(decode(one_by_one(MIXED), 1000).0, told);
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error_and_not_a_replacement() {
        let (events, error) = decode(vec![b"data: ok\n\ndata: \xc3\x28\n\n".to_vec()], 1000);
        assert_eq!(events, ["ok"]);
        assert!(matches!(error, Some(EventsError::NoText)), "{error:?}");
    }

    #[test]
    fn what_is_held_for_one_event_is_bounded() {
        let long = [b"data: ".as_slice(), &[b'x'; 2000], b"\n\n"].concat();
        for pieces in [vec![long.clone()], one_by_one(&long)] {
            let (_, error) = decode(pieces, 1999);
            assert!(matches!(error, Some(EventsError::TooLong { limit_bytes: 1999 })), "{error:?}");
        }
        let comments = vec![b": nothing\n\n".to_vec(); 300];
        assert!(decode(comments, 1999).1.is_some(), "comments are no events");
        let many = vec![b"data: x\n\n".to_vec(); 300];
        assert_eq!(decode(many, 1999).0.len(), 300, "the bound is of one event");
    }

    #[test]
    fn a_broken_connection_is_not_an_end() {
        let pieces = [Ok(Bytes::from_static(b"data: half")), Err(())];
        let mut events = Events::new(stream::iter(pieces), 1000);
        let told = events.next().now_or_never().unwrap();
        assert!(matches!(told, Some(Err(EventsError::Transport))), "{told:?}");
        assert!(events.next().now_or_never().unwrap().is_none());
    }

    #[test]
    fn an_event_of_megabytes_comes_byte_by_byte() {
        let text = "ß".repeat(1_000_000);
        let (events, error) =
            decode(one_by_one(format!("data: {text}\n\n").as_bytes()), usize::MAX);
        assert!(error.is_none());
        assert_eq!(events, [text]);
    }

    proptest! {
        #[test]
        fn borders_of_chunks_make_no_difference(
            cuts in prop::collection::vec(0..MIXED.len(), 0..20),
        ) {
            let mut cuts = cuts;
            cuts.extend([0, MIXED.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| MIXED[cut[0]..cut[1]].to_vec()).collect();
            prop_assert_eq!(decode(pieces, 1000).0, decode(vec![MIXED.to_vec()], 1000).0);
        }
    }
}
