//! One HTTP request, from its first byte to the head or the end of its answer. Repeats nothing.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Method, Response, Url};

use super::operation::{Endpoint, Operation};
use super::problem::Problem;
use crate::clock::Clock;

/// A connection that is not there by then goes to nobody.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The system asks a silent peer whether it is there, so that a way that is gone is seen long before
/// the time-out: after these 30 s, and 4 times more.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMES: u32 = 4;
/// Far above the longest answer that is stored: whoever sends more is not the server.
pub(super) const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const END_USER: HeaderName = HeaderName::from_static("x-end-user");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const REPLAYED: &str = "idempotency-replayed";
const REQUEST_ID: &str = "x-request-id";

/// The connection broke; the transport's words.
#[derive(Debug, Clone)]
pub(super) struct Broken(pub String);

/// What the head of an answer says.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub status: u16,
    pub retry_after: Option<String>,
    pub replayed: bool,
    pub request_id: Option<String>,
    pub is_stream: bool,
}

/// In what form an answer is wanted.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    Whole,
    /// Behind this event, where there is one.
    Stream(Option<&'a str>),
}

/// The way to one server with one API key.
pub(super) struct Transport {
    client: reqwest::Client,
    base: Url,
    headers: HeaderMap,
}

impl Transport {
    /// # Errors
    /// What is wrong, for a person.
    pub fn new(server: &str, api_key: &str, end_user: Option<&str>) -> Result<Self, String> {
        // Without the text: it may hold a password, or be the API key in the wrong place.
        let wrong = |what: String| {
            format!("the server's address {what}; give it as http://HOST:PORT or https://HOST")
        };
        let base = Url::parse(server).map_err(|error| wrong(format!("is no URL: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong("is not reached over HTTP".to_owned()));
        }
        let mut headers = HeaderMap::new();
        let mut credential = HeaderValue::from_str(&format!("Bearer {api_key}"))
            .map_err(|_| "the API key has characters that no header can carry".to_owned())?;
        credential.set_sensitive(true);
        headers.insert(AUTHORIZATION, credential);
        if let Some(user) = end_user {
            let value = HeaderValue::from_bytes(user.as_bytes())
                .map_err(|_| "the end user has characters that no header can carry".to_owned())?;
            headers.insert(END_USER, value);
        }
        let client = http_client(&base).map_err(|error| format!("no HTTP client: {error}"))?;
        Ok(Self { client, base, headers })
    }

    /// Sends the operation for the `attempt`th time.
    pub async fn post<E: Endpoint>(
        &self,
        operation: &Operation<E>,
        attempt: u32,
        form: Form<'_>,
        clock: &Clock,
    ) -> Result<(Head, Response), Broken> {
        let sending = operation.sending(attempt, clock.utc_now());
        let mut url = self.url(&["v1", E::NAME]);
        url.set_query(sending.query.as_deref());
        let mut request = self.request(Method::POST, url, form);
        request.headers_mut().insert(KEY, header_text(operation.key()));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(sending.content_type));
        *request.body_mut() = Some(sending.body.into());
        self.send(request).await
    }

    /// Attaches to the stream of what runs, or ran, under the key.
    pub async fn events(&self, key: &str, form: Form<'_>) -> Result<(Head, Response), Broken> {
        let url = self.url(&["v1", "requests", key, "events"]);
        self.send(self.request(Method::GET, url, form)).await
    }

    /// The record under the key.
    pub async fn record(&self, key: &str) -> Result<(Head, Response), Broken> {
        let url = self.url(&["v1", "requests", key]);
        self.send(self.request(Method::GET, url, Form::Whole)).await
    }

    /// Ends the run under the key; the record.
    pub async fn cancel(&self, key: &str) -> Result<(Head, Response), Broken> {
        let url = self.url(&["v1", "requests", key, "cancel"]);
        self.send(self.request(Method::POST, url, Form::Whole)).await
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.set_query(None);
        url.set_fragment(None);
        // Such a URL has a path, as was asked when it was taken.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    fn request(&self, method: Method, url: Url, form: Form<'_>) -> reqwest::Request {
        let mut request = reqwest::Request::new(method, url);
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        match form {
            Form::Whole => headers.insert(ACCEPT, HeaderValue::from_static("application/json")),
            Form::Stream(behind) => {
                if let Some(id) = behind {
                    headers.insert(LAST_EVENT_ID, header_text(id));
                }
                headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"))
            }
        };
        request
    }

    async fn send(&self, request: reqwest::Request) -> Result<(Head, Response), Broken> {
        #[expect(clippy::disallowed_methods, reason = "the one call of the client library")]
        let response = self.client.execute(request).await.map_err(broken)?;
        Ok((head_of(&response), response))
    }
}

fn http_client(base: &Url) -> Result<reqwest::Client, reqwest::Error> {
    // Already installed, by another client or by the program: just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        // One operation a connection at a time: a connection that breaks is one operation's.
        .http1_only()
        .user_agent(concat!("oncekey-client/", env!("CARGO_PKG_VERSION")))
        // A credential goes to the named server alone, and the policy alone repeats.
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(KEEP_ALIVE)
        .tcp_keepalive_interval(KEEP_ALIVE_EVERY)
        .tcp_keepalive_retries(KEEP_ALIVE_TIMES)
        .tcp_nodelay(true);
    // A proxy of the surroundings does not know this machine's own servers.
    let here = matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    if here { client.no_proxy() } else { client }.build()
}

/// Keys and event ids are printable ASCII, as was asked when they were taken.
fn header_text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

pub(super) fn head_of(response: &Response) -> Head {
    let text = |name: &str| {
        let value = response.headers().get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    Head {
        status: response.status().as_u16(),
        retry_after: text(RETRY_AFTER.as_str()),
        replayed: text(REPLAYED).is_some_and(|value| value == "true"),
        request_id: text(REQUEST_ID),
        is_stream: text(CONTENT_TYPE.as_str())
            .is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/event-stream")),
    }
}

/// The whole body of an answer. `Ok(None)`: longer than any of the server's.
pub(super) async fn whole(mut response: Response) -> Result<Option<Bytes>, Broken> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        if body.len() + chunk.len() > LONGEST_ANSWER {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

/// The problem that an answer holds; its time is from the body or the head.
pub(super) fn problem_of(head: &Head, body: Option<&[u8]>, clock: &Clock) -> Box<Problem> {
    let mut problem = Problem::read(Some(head.status), body.unwrap_or_default());
    let millis = problem.retry_after.map(|wait| wait.as_millis().try_into().unwrap_or(u64::MAX));
    problem.retry_after =
        super::decide::told_wait(millis, head.retry_after.as_deref(), clock.utc_now());
    problem.request_id = problem.request_id.or_else(|| head.request_id.clone());
    Box::new(problem)
}

/// The innermost cause, which is the one that says something ("connection refused").
pub(super) fn broken(error: reqwest::Error) -> Broken {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Broken(cause.to_string())
}
