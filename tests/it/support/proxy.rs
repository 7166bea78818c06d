//! A TCP proxy that misbehaves on command: before PostgreSQL, or before a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::provider::patiently;

/// What the proxy does with what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// What the server says is swallowed; what the client says arrives.
    SwallowReplies,
    /// The same from when the client says this, once, in one piece.
    SwallowRepliesTo(&'static str),
    /// The next answer breaks off so many bytes behind its head; what comes after passes.
    CutBehindHead(usize),
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
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    /// Where new connections lead.
    target: watch::Sender<Target>,
    mode: watch::Sender<Mode>,
    /// Counts up to cut all connections that are there.
    cuts: watch::Sender<u64>,
    /// Counts up to silence all connections that are there, for ever.
    silences: watch::Sender<u64>,
    /// Replies that were swallowed.
    swallowed: watch::Sender<u64>,
    /// Connections that were closed at once.
    refused: watch::Sender<u64>,
}

impl Proxy {
    pub async fn start(target: Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            target: watch::Sender::new(target),
            mode: watch::Sender::new(Mode::Pass),
            cuts: watch::Sender::new(0),
            silences: watch::Sender::new(0),
            swallowed: watch::Sender::new(0),
            refused: watch::Sender::new(0),
        });
        let its_state = state.clone();
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                if *its_state.mode.borrow() == Mode::Refuse {
                    drop(client);
                    its_state.refused.send_modify(|refused| *refused += 1);
                    continue;
                }
                let (target, state) = (its_state.target.borrow().clone(), its_state.clone());
                // Subscribed here, so that a cut from now on meets this connection.
                let (cuts, silences) = (state.cuts.subscribe(), state.silences.subscribe());
                tokio::spawn(async move { connect(client, target, state, cuts, silences).await });
            }
        });
        Self { address, state, task }
    }

    /// From now on new connections lead there.
    pub fn lead_to(&self, target: Target) {
        self.state.target.send_replace(target);
    }

    pub fn set(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// Cuts every connection that is there.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Nothing ever passes again on the connections that are there; their sockets stay open.
    pub fn silence(&self) {
        self.state.silences.send_modify(|silences| *silences += 1);
    }

    /// Waits until so many replies, all in all, have been swallowed.
    pub async fn until_swallowed(&self, count: u64) {
        let mut swallowed = self.state.swallowed.subscribe();
        let seen = swallowed.wait_for(|swallowed| *swallowed >= count);
        patiently("a reply to be swallowed", seen).await.unwrap();
    }

    /// Waits until so many connections, all in all, have been refused.
    pub async fn until_refused(&self, count: u64) {
        let mut refused = self.state.refused.subscribe();
        let seen = refused.wait_for(|refused| *refused >= count);
        patiently("a connection to be refused", seen).await.unwrap();
    }

    /// How many connections have been refused so far.
    pub fn refused(&self) -> u64 {
        *self.state.refused.borrow()
    }

    /// Passes again, on new connections only.
    pub fn heal(&self) {
        self.set(Mode::Pass);
        self.cut();
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
    state: Arc<State>,
    mut cuts: watch::Receiver<u64>,
    mut silences: watch::Receiver<u64>,
) {
    drop(client.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let pumps = async {
        match target {
            Target::Tcp(address) => {
                let Ok(server) = TcpStream::connect(address).await else { return };
                drop(server.set_nodelay(true));
                let (from_server, to_server) = server.into_split();
                pump_both(from_client, to_client, from_server, to_server, &state).await;
            }
            Target::Unix(path) => {
                let Ok(server) = UnixStream::connect(path).await else { return };
                let (from_server, to_server) = server.into_split();
                pump_both(from_client, to_client, from_server, to_server, &state).await;
            }
        }
    };
    // The pumps stay where they are while the connection is silent, sockets and all.
    let pumps_unless_silenced = async {
        tokio::pin!(pumps);
        tokio::select! {
            () = &mut pumps => {}
            _ = silences.changed() => std::future::pending().await,
        }
    };
    tokio::select! {
        // What comes after a cut is no longer passed on, also where both are there at once.
        biased;
        _ = cuts.changed() => {}
        () = pumps_unless_silenced => {}
    }
}

async fn pump_both(
    from_client: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin,
    from_server: impl AsyncRead + Unpin,
    to_server: impl AsyncWrite + Unpin,
    state: &State,
) {
    tokio::select! {
        () = pump(from_client, to_server, state, false) => {}
        () = pump(from_server, to_client, state, true) => {}
    }
}

/// Moves bytes one way until one end closes.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    replies: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut mode = state.mode.subscribe();
    // What came since the answer that is to break off began.
    let mut answer = Vec::new();
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let now = *mode.borrow_and_update();
        match now {
            Mode::Freeze => {
                if mode.wait_for(|mode| *mode != Mode::Freeze).await.is_err() {
                    return;
                }
            }
            Mode::SwallowReplies if replies => {
                state.swallowed.send_modify(|swallowed| *swallowed += 1);
                continue;
            }
            Mode::SwallowRepliesTo(text) if !replies && holds(&buffer[..count], text) => {
                state.mode.send_replace(Mode::SwallowReplies);
            }
            Mode::CutBehindHead(bytes) if replies => {
                answer.extend_from_slice(&buffer[..count]);
                let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
                let Some(cut) = head.map(|end| end + 4 + bytes).filter(|cut| *cut < answer.len())
                else {
                    continue;
                };
                state.mode.send_replace(Mode::Pass);
                drop(to.write_all(&answer[..cut]).await);
                return;
            }
            Mode::DelayReplies(delay) if replies => tokio::time::sleep(delay).await,
            Mode::Pass
            | Mode::SwallowReplies
            | Mode::SwallowRepliesTo(_)
            | Mode::CutBehindHead(_)
            | Mode::DelayReplies(_)
            | Mode::Refuse => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
