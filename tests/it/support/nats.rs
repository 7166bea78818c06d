//! As much of a NATS server as a publisher to JetStream meets, by hand: only so can a test decide what
//! is acknowledged, and when a connection ends.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::provider::patiently;

/// A message that was published.
#[derive(Debug, Clone)]
pub struct Message {
    pub subject: String,
    /// As they came: `Name: value`, a line each.
    pub headers: String,
    pub payload: Value,
    /// What the client said of itself when it connected.
    pub connect: Value,
    pub stored: bool,
}

impl Message {
    pub fn header(&self, name: &str) -> &str {
        let start = format!("{name}: ");
        self.headers.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default()
    }
}

/// What the stream says to a message.
#[derive(Debug, Clone, Copy)]
pub enum Say {
    Stored,
    /// There is no stream.
    NobodyThere,
    Error(u64, &'static str),
    /// The connection ends, and nothing was said.
    Cut,
}

type Decide = dyn FnMut(&Message) -> Say + Send;

struct Shared {
    messages: watch::Sender<Vec<Message>>,
    decide: Mutex<Box<Decide>>,
}

/// A server; it stops when dropped.
pub struct NatsServer {
    port: u16,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl NatsServer {
    pub async fn deciding(decide: impl FnMut(&Message) -> Say + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            messages: watch::Sender::new(Vec::new()),
            decide: Mutex::new(Box::new(decide)),
        });
        let serving = tokio::spawn(serve(listener, shared.clone()));
        Self { port, shared, serving }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn messages(&self) -> Vec<Message> {
        self.shared.messages.borrow().clone()
    }

    /// Waits until so many messages were published, stored or not.
    pub async fn until(&self, count: usize) -> Vec<Message> {
        let mut messages = self.shared.messages.subscribe();
        let seen = messages.wait_for(|all| all.len() >= count);
        patiently("messages to be published", seen).await.unwrap().clone()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let shared = shared.clone();
        // An error is a client that has gone.
        connections.spawn(async move { drop(talk(stream, &shared).await) });
    }
}

async fn talk(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let info = json!({
        "server_id": "T", "server_name": "test", "version": "2.10.0", "go": "", "host": "127.0.0.1",
        "port": 0, "headers": true, "max_payload": 4096, "proto": 1, "client_id": 1, "jetstream": true
    });
    let mut stream = BufReader::new(stream);
    stream.write_all(format!("INFO {info}\r\n").as_bytes()).await?;
    let (mut connect, mut inbox) = (Value::Null, String::new());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["CONNECT", ..] => connect = serde_json::from_str(line[8..].trim()).unwrap(),
            ["PING"] => stream.write_all(b"PONG\r\n").await?,
            ["SUB", _, sid] => inbox = (*sid).to_owned(),
            ["HPUB", subject, reply, head, whole] => {
                let (head, whole): (usize, usize) = (head.parse().unwrap(), whole.parse().unwrap());
                let mut bytes = vec![0; whole + 2];
                stream.read_exact(&mut bytes).await?;
                let message = Message {
                    subject: (*subject).to_owned(),
                    headers: String::from_utf8(bytes[..head].to_vec()).unwrap(),
                    payload: serde_json::from_slice(&bytes[head..whole]).unwrap(),
                    connect: connect.clone(),
                    stored: false,
                };
                let Some(answer) = shared.answer(message, reply, &inbox) else { return Ok(()) };
                stream.write_all(answer.as_bytes()).await?;
            }
            _ => {}
        }
    }
}

impl Shared {
    /// `None`: the connection is cut.
    fn answer(&self, mut message: Message, reply: &str, inbox: &str) -> Option<String> {
        let say = (self.decide.lock().unwrap())(&message);
        message.stored = matches!(say, Say::Stored);
        let body = match say {
            Say::Stored => Some(json!({"stream": "EVENTS", "seq": 1})),
            Say::Error(code, text) => Some(json!({
                "error": {"code": 400, "err_code": code, "description": text}
            })),
            Say::NobodyThere | Say::Cut => None,
        };
        self.messages.send_modify(|all| all.push(message));
        match (say, body) {
            (_, Some(body)) => {
                let body = body.to_string();
                Some(format!("MSG {reply} {inbox} {}\r\n{body}\r\n", body.len()))
            }
            (Say::NobodyThere, None) => {
                let head = "NATS/1.0 503\r\n\r\n";
                Some(format!("HMSG {reply} {inbox} {0} {0}\r\n{head}\r\n", head.len()))
            }
            _ => None,
        }
    }
}
