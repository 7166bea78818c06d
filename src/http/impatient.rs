//! A connection that gives up on a client who takes nothing of what is there for it.
//!
//! A stuck reader slows nobody down, since nobody waits for it; but its connection would stay for
//! ever. One that is cut here comes back with the id of the last event that it has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::{BoxFuture, Clock};

/// A connection with a bound on how long a write may stand still.
pub struct Impatient<S> {
    socket: S,
    clock: Clock,
    limit: Duration,
    /// Runs while a write stands still.
    patience: Option<BoxFuture<'static, ()>>,
}

impl<S> Impatient<S> {
    pub fn new(socket: S, clock: Clock, limit: Duration) -> Self {
        Self { socket, clock, limit, patience: None }
    }

    fn unless_over<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.patience = None;
            return written;
        }
        let patience = self.patience.get_or_insert_with(|| self.clock.sleep(self.limit));
        match patience.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.unless_over(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, parts);
        self.unless_over(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_write_that_stands_still_is_given_up_and_one_that_moves_is_not() {
        let time = ManualClock::new("2026-08-19T00:36:57Z".parse().unwrap());
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = Impatient::new(ours, time.clock(), LIMIT);
        let writing = async { ours.write_all(&[1; 24]).await };
        let reading = async {
            // Whoever takes a little each time is waited for, however long it all lasts.
            for _ in 0..2 {
                time.until_sleeping_for(LIMIT).await;
                time.advance(LIMIT - Duration::from_secs(1));
                theirs.read_exact(&mut [0; 8]).await.unwrap();
            }
            time.sleepers()
        };
        let (written, _) = tokio::join!(writing, reading);
        assert!(written.is_ok());
        let writing = async { ours.write_all(&[1; 24]).await };
        let stuck = async {
            time.until_sleeping_for(LIMIT).await;
            time.advance(LIMIT);
        };
        let (written, ()) = tokio::join!(writing, stuck);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
