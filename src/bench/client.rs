//! A client that costs as little as a client can: one connection, one request at a time, driven by
//! the task that waits for it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{Connection as Driver, SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::BenchError;

/// An open connection.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Pin<Box<Driver<TokioIo<TcpStream>, Full<Bytes>>>>,
}

/// What came back.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self, BenchError> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, driver) = handshake(TokioIo::new(socket)).await?;
        Ok(Self { sender, driver: Box::pin(driver) })
    }

    /// Sends one request and reads its whole answer.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, BenchError> {
        let Self { sender, driver } = self;
        let exchange = async {
            sender.ready().await?;
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::select! {
            answer = exchange => answer,
            ended = ended(driver) => Err(ended),
        }
    }
}

impl Connection {
    /// Sends one request and hands its answer on as it comes, to its end.
    pub async fn follow(
        &mut self,
        request: Request<Full<Bytes>>,
        mut hear: impl FnMut(&[u8]),
    ) -> Result<(), BenchError> {
        let Self { sender, driver } = self;
        let exchange = async {
            sender.ready().await?;
            let (head, mut body) = sender.send_request(request).await?.into_parts();
            if head.status != StatusCode::OK {
                let body = body.collect().await?.to_bytes();
                let said = String::from_utf8_lossy(&body);
                return Err(BenchError::failed(format!("no stream: {} {said}", head.status)));
            }
            while let Some(frame) = body.frame().await {
                if let Ok(bytes) = frame?.into_data() {
                    hear(&bytes);
                }
            }
            Ok(())
        };
        tokio::select! {
            biased;
            heard = exchange => heard,
            ended = ended(driver) => Err(ended),
        }
    }
}

/// Drives the connection; ready only where it ended before its answer.
async fn ended(driver: &mut (impl Future<Output = hyper::Result<()>> + Unpin)) -> BenchError {
    match driver.await {
        Ok(()) => BenchError::failed("a connection was closed before its answer"),
        Err(error) => error.into(),
    }
}
