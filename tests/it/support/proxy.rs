//! A TCP proxy that misbehaves on command: before PostgreSQL, or before a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does with what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// What the server says is swallowed; what the client says arrives.
    SwallowReplies,
    /// Nothing passes in either direction; sockets stay open.
    Freeze,
    /// What the server says arrives this much later.
    DelayReplies(Duration),
    /// New connections are closed at once.
    Refuse,
}

/// Where the proxy leads.
#[derive(Debug, Clone)]
pub enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The proxy; dropped, it is gone with all its connections.
pub struct Proxy {
    pub address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    /// Counts up to cut all connections that are there.
    cuts: Arc<watch::Sender<u64>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = Arc::new(watch::Sender::new(Mode::Pass));
        let cuts = Arc::new(watch::Sender::new(0));
        let (its_mode, its_cuts) = (mode.clone(), cuts.clone());
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let (target, mode, cuts) =
                    (target.clone(), its_mode.subscribe(), its_cuts.subscribe());
                tokio::spawn(async move { connect(client, target, mode, cuts).await });
            }
        });
        Self { address, mode, cuts, task }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Cuts every connection that is there.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn connect(
    client: TcpStream,
    target: Target,
    mode: watch::Receiver<Mode>,
    mut cuts: watch::Receiver<u64>,
) {
    if *mode.borrow() == Mode::Refuse {
        return;
    }
    drop(client.set_nodelay(true));
    cuts.mark_unchanged();
    let (from_client, to_client) = client.into_split();
    let pumps = async {
        match target {
            Target::Tcp(address) => {
                let Ok(server) = TcpStream::connect(address).await else { return };
                drop(server.set_nodelay(true));
                let (from_server, to_server) = server.into_split();
                pump_both(from_client, to_client, from_server, to_server, mode).await;
            }
            Target::Unix(path) => {
                let Ok(server) = UnixStream::connect(path).await else { return };
                let (from_server, to_server) = server.into_split();
                pump_both(from_client, to_client, from_server, to_server, mode).await;
            }
        }
    };
    tokio::select! {
        () = pumps => {}
        _ = cuts.changed() => {}
    }
}

async fn pump_both(
    from_client: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin,
    from_server: impl AsyncRead + Unpin,
    to_server: impl AsyncWrite + Unpin,
    mode: watch::Receiver<Mode>,
) {
    tokio::select! {
        () = pump(from_client, to_server, mode.clone(), false) => {}
        () = pump(from_server, to_client, mode, true) => {}
    }
}

/// Moves bytes one way until one end closes.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<Mode>,
    replies: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let now = *mode.borrow_and_update();
        match now {
            Mode::Freeze => {
                if mode.wait_for(|mode| *mode != Mode::Freeze).await.is_err() {
                    return;
                }
            }
            Mode::SwallowReplies if replies => continue,
            Mode::DelayReplies(delay) if replies => tokio::time::sleep(delay).await,
            Mode::Pass | Mode::SwallowReplies | Mode::DelayReplies(_) | Mode::Refuse => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
