//! Traces for a collector, over OTLP/HTTP in protobuf, where OpenTelemetry's own variables name one.
//! With none named nothing of this is loaded.
//!
//! An operation never waits for a collector: ended spans go into a bounded queue, which a thread of its
//! own empties. What does not fit, or cannot be delivered, is lost and counted, with one warning.

mod spans;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
pub(super) use spans::{Spans, is_traced};
use tokio::runtime::Handle;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const QUEUE: [&str; 1] = ["OTEL_BSP_MAX_QUEUE_SIZE"];
const SERVICE: &str = "OTEL_SERVICE_NAME";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Of one delivery with its repeats, where the variables say nothing: OpenTelemetry's default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Ended spans that wait, where the variables say nothing: OpenTelemetry's default.
const QUEUE_SIZE: usize = 2_048;
/// What the last spans get when the process ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// A collector has nothing long to say.
const MAX_ANSWER: usize = 64 * 1024;

/// Spans on their way to a collector.
pub struct Traces {
    provider: SdkTracerProvider,
    queue: Arc<Queue>,
}

impl Traces {
    /// Sends what is left, for at most two seconds; the thread waits. What it did not get rid of by
    /// then is lost.
    pub fn end(&self) {
        let sent = self.provider.shutdown_with_timeout(FAREWELL);
        let waiting = if sent.is_ok() { 0 } else { self.queue.waiting.load(Ordering::Relaxed) };
        let spans = self.queue.lost() + waiting;
        if spans > 0 || sent.is_err() {
            let why = "the collector was away, slow or silent";
            tracing::warn!(event = "traces_lost", why, spans, "so many spans did not reach it");
        }
    }

    /// What turns the arrivals of this process into spans.
    pub(super) fn layer(&self) -> Spans {
        Spans::new(self.provider.tracer("oncekey"))
    }
}

/// The variables of the process, as far as they are looked at here; the rest the library reads.
struct Variables(Vec<(String, String)>);

impl Variables {
    /// The first of these that is set to something.
    fn first<const N: usize>(&self, names: [&str; N]) -> Option<&str> {
        names.iter().find_map(|name| {
            let mut all = self.0.iter();
            all.find(|(known, value)| known == name && !value.is_empty()).map(|(_, v)| v.as_str())
        })
    }

    fn is(&self, name: &str, wanted: &str) -> bool {
        self.first([name]).is_some_and(|value| value.eq_ignore_ascii_case(wanted))
    }
}

/// Sets up traces where a collector is named and they are not switched off. Called within the runtime
/// that will carry them.
///
/// # Errors
/// What is wrong with the variables, without the values, which may hold credentials. A service that
/// cannot be watched still serves.
pub(super) fn traces(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Option<Traces>, String> {
    let ours = |(name, _): &(String, String)| name.starts_with("OTEL_");
    let variables = Variables(variables.into_iter().filter(ours).collect());
    let off =
        variables.is("OTEL_SDK_DISABLED", "true") || variables.is("OTEL_TRACES_EXPORTER", "none");
    let Some(endpoint) = variables.first(ENDPOINTS).filter(|_| !off) else { return Ok(None) };
    if !url::Url::parse(endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
        return Err(format!("{} is no http:// or https:// address", ENDPOINTS.join(" or ")));
    }
    if variables.first(PROTOCOLS).is_some_and(|protocol| protocol != "http/protobuf") {
        return Err(format!("{}: http/protobuf alone is spoken", PROTOCOLS.join(" or ")));
    }
    let timeout = variables.first(TIMEOUTS).and_then(|value| value.parse().ok());
    let timeout = timeout.map_or(TIMEOUT, Duration::from_millis);
    let client = Client::new(timeout).map_err(|error| format!("no HTTP client: {error}"))?;
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_timeout(timeout)
        .build()
        // Its words may hold the endpoint, and that a password.
        .map_err(|_| "the exporter cannot be made with these OTEL_EXPORTER_OTLP_ variables")?;
    let size = variables.first(QUEUE).and_then(|value| value.parse().ok()).filter(|size| *size > 0);
    let queue = Arc::new(Queue { size: size.unwrap_or(QUEUE_SIZE), ..Queue::default() });
    let exporter = Watched { inner: exporter, queue: queue.clone() };
    let inner = BatchSpanProcessor::builder(exporter).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(Bounded { inner, queue: queue.clone() })
        .with_resource(resource(&variables))
        .build();
    Ok(Some(Traces { provider, queue }))
}

/// Who sends these spans: as the variables say, else by our own name.
fn resource(variables: &Variables) -> Resource {
    let builder = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let attributes = variables.first([RESOURCE]).unwrap_or_default();
    let named = attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
    let named = named || variables.first([SERVICE]).is_some();
    if named { builder.build() } else { builder.with_service_name("oncekey").build() }
}

/// How full the queue is, and what became of what did not go through it.
#[derive(Debug, Default)]
struct Queue {
    size: usize,
    waiting: AtomicUsize,
    lost_to_size: AtomicUsize,
    lost_on_the_way: AtomicUsize,
    /// Whether it has been said that the queue was full.
    told_full: AtomicBool,
    /// Whether the last delivery failed.
    failing: AtomicBool,
}

impl Queue {
    /// Says what there is to say before a delivery.
    fn begins(&self, spans: usize) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let full = self.lost_to_size.load(Ordering::Relaxed) > 0;
        if full && !self.told_full.swap(true, Ordering::Relaxed) {
            let why = "the collector is slower than the service";
            tracing::warn!(event = "traces_lost", why, "spans are lost; operations go on");
        }
    }

    /// Says what changed with a delivery.
    fn ended(&self, spans: usize, sent: &OTelSdkResult) {
        match sent {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(event = "traces_resumed", "spans reach the collector again");
                }
            }
            Err(why) => {
                self.lost_on_the_way.fetch_add(spans, Ordering::Relaxed);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(event = "traces_lost", %why, "spans are lost; operations go on");
                }
            }
        }
    }

    fn lost(&self) -> usize {
        self.lost_to_size.load(Ordering::Relaxed) + self.lost_on_the_way.load(Ordering::Relaxed)
    }
}

/// Lets nothing into the queue that would not fit, and counts it.
#[derive(Debug)]
struct Bounded {
    inner: BatchSpanProcessor,
    queue: Arc<Queue>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.queue.waiting.fetch_add(1, Ordering::Relaxed) < self.queue.size {
            self.inner.on_end(span);
        } else {
            // Said by the thread that delivers: here a span is just being closed.
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            self.queue.lost_to_size.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// The exporter, with a word where it fails.
#[derive(Debug)]
struct Watched {
    inner: opentelemetry_otlp::SpanExporter,
    queue: Arc<Queue>,
}

impl SpanExporter for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.queue.begins(spans);
        let sent = self.inner.export(batch).await;
        self.queue.ended(spans, &sent);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// The way to the collector: from the thread that delivers, on the runtime of the process.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

impl Client {
    fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        // Already installed, by another client: just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .http1_only()
            .user_agent(concat!("oncekey/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .timeout(timeout)
            .build()?;
        Ok(Self { http, runtime: Handle::current() })
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (http, runtime) = (self.http.clone(), self.runtime.clone());
        // The delivering thread has no runtime of its own; one that ends ends the delivery too.
        Box::pin(async move { runtime.spawn(send(http, request)).await? })
    }
}

#[expect(clippy::disallowed_methods, reason = "the one call that goes to a collector")]
async fn send(
    http: reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let mut answer = http.execute(request.try_into()?).await?;
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() > MAX_ANSWER {
            return Err("the collector's answer is too long".into());
        }
    }
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}
