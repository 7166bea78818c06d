//! Asking another node for the stream of a run that it has.
//!
//! Only addresses that nodes registered for themselves are asked, nothing is sent there but the name
//! of the run and a proof that opens its stream alone, and no redirect is followed: a node is no way
//! to anywhere else. A stream that says nothing for longer than its comments take is broken.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use crate::clock::Clock;
use crate::domain::ids::{RequestId, TenantId};
use crate::domain::peer::ClusterSecret;

/// Where a node gives its streams to others.
pub const PATH: &str = "/internal/streams";
/// The header with the proof.
pub const PROOF: &str = "x-oncekey-proof";

/// A node that is there answers by then.
const HEAD_LIMIT: Duration = Duration::from_secs(3);
/// More than two comments.
const SILENCE: Duration = Duration::from_secs(40);

/// Why a node gave no stream.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("its address {address:?} is none: {problem}")]
    Address { address: String, problem: String },
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it answered with something else than a stream")]
    NoStream,
    #[error("it answered with status {0}")]
    Refused(u16),
}

/// The stream that is asked for.
#[derive(Debug, Clone)]
pub struct PeerRun {
    pub tenant: TenantId,
    pub key: Uuid,
    pub run: RequestId,
    /// Not one that ended without a verdict.
    pub decided: bool,
    /// As in `Last-Event-ID`.
    pub behind: Option<String>,
}

/// The way to other nodes; clones are one and the same.
#[derive(Debug, Clone)]
pub struct Peers {
    client: reqwest::Client,
    clock: Clock,
    secret: ClusterSecret,
}

/// A stream of another node's.
pub struct PeerStream {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    clock: Clock,
}

impl Peers {
    /// # Errors
    /// The library's words, where it finds nothing on this machine to make a client of.
    pub fn new(secret: ClusterSecret, clock: Clock) -> Result<Self, String> {
        // Already installed, by another client or by the program: just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .http1_only()
            .user_agent(concat!("oncekey/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(HEAD_LIMIT)
            .tcp_nodelay(true)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, clock, secret })
    }

    /// Whether this is a proof for the stream, made within the last minutes.
    pub fn accepts(&self, proof: &str, tenant: &TenantId, key: Uuid, run: RequestId) -> bool {
        self.secret.accepts(proof, tenant, key, run, self.clock.utc_now())
    }

    /// Opens the stream at the node with this address. `None`: it ended with the event that the reader
    /// has.
    pub async fn open(
        &self,
        address: &str,
        run: &PeerRun,
    ) -> Result<Option<PeerStream>, PeerError> {
        let request = self.request(address, run)?;
        #[expect(clippy::disallowed_methods, reason = "the one call that goes out to other nodes")]
        let answered = self.clock.timeout(HEAD_LIMIT, self.client.execute(request)).await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(PeerError::Unreachable(error.without_url().to_string())),
            Err(elapsed) => return Err(PeerError::Unreachable(elapsed.to_string())),
        };
        match response.status().as_u16() {
            // Another program may have the address of a node that is gone.
            200 if !is_stream(response.headers()) => Err(PeerError::NoStream),
            200 => {
                let bytes = response.bytes_stream().boxed();
                Ok(Some(PeerStream { bytes, clock: self.clock.clone() }))
            }
            204 if run.behind.is_some() => Ok(None),
            status => Err(PeerError::Refused(status)),
        }
    }

    fn request(&self, address: &str, run: &PeerRun) -> Result<reqwest::Request, PeerError> {
        let wrong = |problem: &dyn std::fmt::Display| PeerError::Address {
            address: address.to_owned(),
            problem: problem.to_string(),
        };
        let mut url = Url::parse(address).map_err(|error| wrong(&error))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(&"neither http nor https"));
        }
        let path = format!("{}{PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.query_pairs_mut()
            .clear()
            .append_pair("tenant", run.tenant.as_str())
            .append_pair("key", &run.key.to_string())
            .append_pair("run", &run.run.to_string());
        if run.decided {
            url.query_pairs_mut().append_pair("decided", "true");
        }
        let mut headers = HeaderMap::new();
        let proof = self.secret.proof(&run.tenant, run.key, run.run, self.clock.utc_now());
        let mut add = |name: &'static str, value: &str| {
            // Digits and letters of our own: every one can stand in a header.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        add(PROOF, &proof);
        if let Some(behind) = &run.behind {
            add("last-event-id", behind);
        }
        let mut request = reqwest::Request::new(reqwest::Method::GET, url);
        *request.headers_mut() = headers;
        Ok(request)
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes() == b"text/event-stream")
}

impl PeerStream {
    /// The next bytes. `None`: it ended, broke, or fell silent.
    pub async fn next(&mut self) -> Option<Bytes> {
        match self.clock.timeout(SILENCE, self.bytes.next()).await {
            Ok(Some(Ok(bytes))) => Some(bytes),
            Ok(Some(Err(_)) | None) | Err(_) => None,
        }
    }
}
