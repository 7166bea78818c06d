//! Accepting connections, with a bound on everything a client can be slow at.

use std::io;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::impatient::Impatient;
use crate::clock::Clock;
use crate::lifecycle::Lifecycle;

/// Times of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ServerSettings {
    /// From the first byte of a request's head to its last; an idle connection ends after it too.
    pub header_timeout: Duration,
    /// How long a client may take nothing of an answer that is there.
    pub write_timeout: Duration,
    /// What connections get to end, once the process ends.
    pub farewell: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            farewell: Duration::from_secs(2),
        }
    }
}

/// Pause after the system refused a connection (out of descriptors, mostly).
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process is over. While it drains, connections are still taken: their requests
/// are told so.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    lifecycle: Lifecycle,
    clock: Clock,
    settings: ServerSettings,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(settings.header_timeout);
    let graceful = GracefulShutdown::new();
    let closing = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = lifecycle.over() => break,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                refused(&error);
                clock.sleep(REFUSED_PAUSE).await;
                continue;
            }
        };
        // An answer is one small write; waiting to fill a packet only delays it.
        drop(socket.set_nodelay(true));
        let service = TowerToHyperService::new(router.clone());
        let socket = Impatient::new(socket, clock.clone(), settings.write_timeout);
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(socket), service));
        let closing = closing.clone();
        lifecycle.spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(event = "connection_broken", %error, "a connection ended early");
                },
                () = closing.cancelled() => {}
            }
        });
    }
    drop(listener);
    if clock.timeout(settings.farewell, graceful.shutdown()).await.is_err() {
        tracing::debug!(
            event = "connections_closed",
            "connections are closed that did not end by themselves"
        );
    }
    closing.cancel();
}

fn refused(error: &io::Error) {
    tracing::warn!(event = "connection_refused", %error, "a connection could not be accepted");
}
