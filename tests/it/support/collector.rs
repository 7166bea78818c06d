//! A receiver of traces, as OpenTelemetry's collector is one: OTLP over HTTP, on loopback.

use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::provider::patiently;

/// One delivery.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The request line and the headers, in small letters.
    pub head: String,
    pub body: Vec<u8>,
}

impl Delivery {
    pub fn request(&self) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest::decode(self.body.as_slice()).unwrap()
    }
}

/// Takes deliveries; it hears no more when dropped.
pub struct Collector {
    pub address: SocketAddr,
    pub deliveries: watch::Receiver<Vec<Delivery>>,
    pub connections: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Collector {
    /// Answers each delivery.
    pub async fn start() -> Self {
        Self::with(true).await
    }

    /// Reads, and never says a word.
    pub async fn silent() -> Self {
        Self::with(false).await
    }

    async fn with(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, deliveries) = watch::channel(Vec::new());
        let (count, connections) = watch::channel(0);
        let sender = Arc::new(sender);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.send_modify(|count| *count += 1);
                tokio::spawn(hear(stream, sender.clone(), answers));
            }
        });
        Self { address, deliveries, connections, task }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until these spans are there, whatever delivery each came with.
    pub async fn until_spans(&self, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let mut deliveries = self.deliveries.clone();
        let seen = deliveries.wait_for(|deliveries| enough(&spans(deliveries)));
        spans(&patiently("the spans", seen).await.unwrap())
    }
}

/// All spans of some deliveries.
pub fn spans(deliveries: &[Delivery]) -> Vec<Span> {
    let resources = deliveries.iter().flat_map(|delivery| delivery.request().resource_spans);
    resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

/// The value of an attribute as text.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

async fn hear(stream: TcpStream, sender: Arc<watch::Sender<Vec<Delivery>>>, answers: bool) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        sender.send_modify(|deliveries| deliveries.push(Delivery { head, body }));
        if !answers {
            // Until the other side goes.
            let _ = stream.read_u8().await;
            return;
        }
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}
