//! Events by HTTP POST, signed as Standard Webhooks has it, in a CloudEvents envelope.
//!
//! Nothing is followed or repeated here: a redirect is a failure, since what is signed for one address
//! must not go to another. Of an answer a few bytes are read, and they are for people.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};

use super::resolver::{PrivateAddress, PublicOnly, system};
use super::signature::SigningSecrets;
use super::{EventSink, cut};
use crate::clock::{BoxFuture, Clock};
use crate::domain::failure::RetryAfterText;
use crate::domain::outbox::{
    Delivery, Event, LONGEST_ASKED, StatusMeans, cloud_event, status_means,
};
use crate::domain::public_address::is_public;
use crate::domain::retry::parse_retry_after;

const CONTENT: &str = "application/cloudevents+json; charset=utf-8";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const POOL_IDLE: Duration = Duration::from_secs(45);
/// Bytes of an answer's body that are read; with more, its connection is closed.
const MOST_READ: usize = 16 * 1024;
/// How long a body is read; where it has not ended by then its connection is closed too.
const READ_LIMIT: Duration = Duration::from_secs(1);

/// What a webhook is built from.
#[derive(Debug)]
pub struct WebhookSettings {
    pub name: String,
    /// `http` or `https`.
    pub url: String,
    pub secrets: SigningSecrets,
    /// Whether it may lie in a private network.
    pub allow_private: bool,
    /// Until the status of the answer.
    pub timeout: Duration,
}

/// An endpoint that takes webhooks.
pub struct Webhook {
    name: String,
    url: Url,
    /// A private address that stands in the URL itself: no name is looked up for it.
    refused: Option<IpAddr>,
    secrets: SigningSecrets,
    timeout: Duration,
    client: reqwest::Client,
    clock: Clock,
}

impl Webhook {
    /// # Errors
    /// What is wrong with the address, or that there is no client to be had.
    pub fn new(settings: WebhookSettings, clock: Clock) -> Result<Self, String> {
        let url = Url::parse(&settings.url).map_err(|error| error.to_string())?;
        let literal = match url.host() {
            Some(url::Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(url::Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(url::Host::Domain(_)) => None,
            None => return Err("it has no host".to_owned()),
        };
        let refused = literal.filter(|address| !settings.allow_private && !is_public(*address));
        // Already installed, by an earlier client or by the program: just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .user_agent(concat!("oncekey/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT.min(settings.timeout))
            .pool_idle_timeout(POOL_IDLE)
            .tcp_nodelay(true);
        if !settings.allow_private {
            client = client.dns_resolver(PublicOnly(system));
        }
        Ok(Self {
            name: settings.name,
            url,
            refused,
            secrets: settings.secrets,
            timeout: settings.timeout,
            client: client.build().map_err(|error| error.to_string())?,
            clock,
        })
    }

    async fn post(&self, event: &Event) -> Delivery {
        if let Some(address) = self.refused {
            return Delivery::Failed { why: PrivateAddress(address).to_string() };
        }
        let body = match cloud_event(event) {
            Ok(body) => body,
            Err(error) => return Delivery::Refused { why: format!("no envelope: {error}") },
        };
        let mut request = reqwest::Request::new(reqwest::Method::POST, self.url.clone());
        *request.headers_mut() = self.headers(event, &body);
        *request.body_mut() = Some(body.into());
        #[expect(clippy::disallowed_methods, reason = "the one call that goes out to webhooks")]
        let calling = self.client.execute(request);
        match self.clock.timeout(self.timeout, calling).await {
            Ok(Ok(response)) => self.judged(response).await,
            Ok(Err(error)) => Delivery::Failed { why: cut(&causes(&error.without_url())) },
            Err(_) => {
                let limit = humantime::format_duration(self.timeout);
                Delivery::Failed { why: format!("no answer within {limit}") }
            }
        }
    }

    fn headers(&self, event: &Event, body: &str) -> HeaderMap {
        let (id, now) = (event.id.to_string(), self.clock.utc_now().timestamp());
        let signature = self.secrets.sign(&id, now, body);
        let mut headers = HeaderMap::new();
        let mut add = |name: HeaderName, value: &str| {
            // Digits, letters and base64 of our own: every one can stand in a header.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        add(CONTENT_TYPE, CONTENT);
        add(HeaderName::from_static("webhook-id"), &id);
        add(HeaderName::from_static("webhook-timestamp"), &now.to_string());
        add(HeaderName::from_static("webhook-signature"), &signature);
        headers
    }

    async fn judged(&self, response: Response) -> Delivery {
        let status = response.status().as_u16();
        let plain = response.headers().get(RETRY_AFTER);
        let asked = RetryAfterText {
            millis: None,
            plain: plain.and_then(|value| value.to_str().ok()).map(str::to_owned),
        };
        let wait = parse_retry_after(&asked, self.clock.utc_now());
        // The status is the answer: what is behind it may take as long as it likes.
        let said = self.clock.timeout(READ_LIMIT, read(response)).await.unwrap_or_default();
        let said = cut(&String::from_utf8_lossy(&said));
        let why = if said.is_empty() { status.to_string() } else { format!("{status}: {said}") };
        match status_means(status, wait.is_some()) {
            StatusMeans::Accepted => Delivery::Accepted,
            StatusMeans::Refused => Delivery::Refused { why },
            StatusMeans::Failed => Delivery::Failed { why },
            StatusMeans::Busy => Delivery::Busy { why, wait },
            StatusMeans::Gone => {
                let why = format!("{why}; the endpoint is gone: take it out of the configuration");
                Delivery::Busy { why, wait: Some(LONGEST_ASKED) }
            }
        }
    }
}

/// The beginning of a body. Read to its end where that is near, so that the connection can be used
/// again; an answer that counts is not undone by a body that breaks off or never ends.
async fn read(response: Response) -> Vec<u8> {
    let mut body = response.bytes_stream();
    let mut read: Vec<u8> = Vec::new();
    while let Some(Ok(chunk)) = body.next().await {
        let chunk: Bytes = chunk;
        let room = MOST_READ.saturating_sub(read.len());
        read.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if read.len() >= MOST_READ {
            break;
        }
    }
    read
}

/// An error with what stands behind it: "error sending request" alone tells nobody anything.
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

impl EventSink for Webhook {
    fn name(&self) -> &str {
        &self.name
    }

    fn deliver<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Delivery> {
        Box::pin(self.post(event))
    }
}
