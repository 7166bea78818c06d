//! One HTTP client per provider, with everything switched off that would repeat or redirect.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::{ProviderSettings, Route, SettingsError};

/// A connection that is not there by then goes to nobody.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Below the idle limits of the load balancers in front of the vendors, so that a call seldom
/// meets a connection that the other end has just closed.
const POOL_IDLE: Duration = Duration::from_secs(45);
const POOL_MAX_IDLE_PER_HOST: usize = 64;

/// The client that provider calls go through.
///
/// It repeats nothing (the library's own repeats of refused HTTP/2 streams are off; what remains
/// below it is that a pooled connection which was closed before a byte was written is replaced),
/// follows no redirect, since a credential goes to the configured host alone, and reads no proxy
/// from the environment: which way a call goes is what routes are for. Certificates are those of
/// the machine.
///
/// # Errors
/// The library's words, where the machine has no usable certificates.
pub(super) fn client(connect_timeout: Duration) -> Result<reqwest::Client, reqwest::Error> {
    // Already installed, by an earlier client or by the program: just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        // One call a connection at a time: a connection that breaks is one call's failure.
        .http1_only()
        .user_agent(concat!("oncekey/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .connect_timeout(connect_timeout.min(CONNECT_TIMEOUT))
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_MAX_IDLE_PER_HOST)
        .tcp_nodelay(true)
        .build()
}

/// Where a provider's requests go, and with which headers; checked once, when it is made.
pub(super) struct Endpoints {
    urls: Vec<Url>,
    headers: HeaderMap,
}

impl Endpoints {
    /// `path` is put behind every route's base URL, whose query is kept.
    pub(super) fn new(
        settings: &ProviderSettings,
        path: &str,
        extra: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    ) -> Result<Endpoints, SettingsError> {
        if settings.routes.is_empty() {
            return Err(SettingsError::NoRoutes { provider: settings.name.clone() });
        }
        let url = |route: &Route| {
            endpoint(&route.base_url, path).map_err(|reason| SettingsError::BaseUrl {
                provider: settings.name.clone(),
                route: route.name.clone(),
                reason,
            })
        };
        let urls = settings.routes.iter().map(url).collect::<Result<Vec<Url>, SettingsError>>()?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        headers.extend(extra);
        Ok(Endpoints { urls, headers })
    }

    /// The host of the first route.
    pub(super) fn first_host(&self) -> Option<&str> {
        self.urls.first().and_then(Url::host_str)
    }

    /// A request for the route, or for the last where it is beyond the list.
    pub(super) fn request(&self, route: usize, body: Vec<u8>) -> reqwest::Request {
        // Never empty, see `new`.
        let url = &self.urls[route.min(self.urls.len() - 1)];
        let mut request = reqwest::Request::new(reqwest::Method::POST, url.clone());
        *request.headers_mut() = self.headers.clone();
        *request.body_mut() = Some(body.into());
        request
    }
}

fn endpoint(base_url: &str, path: &str) -> Result<Url, String> {
    let mut url = Url::parse(base_url).map_err(|error| format!("is no URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("must begin with http:// or https:// and a host".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or a password".to_owned());
    }
    let joined = format!("{}{path}", url.path().trim_end_matches('/'));
    url.set_path(&joined);
    url.set_fragment(None);
    Ok(url)
}

/// A header value that is not shown by `Debug`.
pub(super) fn credential(
    settings: &ProviderSettings,
    prefix: &str,
) -> Result<Option<HeaderValue>, SettingsError> {
    let Some(key) = &settings.api_key else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("{prefix}{}", key.expose()))
        .map_err(|_| SettingsError::ApiKey { provider: settings.name.clone() })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_as_the_vendors_take_them() {
        let join = |base| endpoint(base, "/v1/messages").map(String::from);
        let plain = "https://api.anthropic.com/v1/messages";
        assert_eq!(join("https://api.anthropic.com").as_deref(), Ok(plain));
        assert_eq!(join("https://api.anthropic.com/").as_deref(), Ok(plain));
        let gateway = "http://10.0.0.5:8080/anthropic/v1/messages?region=eu";
        assert_eq!(join("http://10.0.0.5:8080/anthropic/?region=eu#x").as_deref(), Ok(gateway));
        for bad in ["", "api.anthropic.com", "ftp://x", "https://", "http://u:p@host", "file:///x"]
        {
            assert!(join(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_second_client_is_made_like_the_first() {
        assert!(client(CONNECT_TIMEOUT).is_ok() && client(CONNECT_TIMEOUT).is_ok());
    }
}
