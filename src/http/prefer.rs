//! `Prefer: wait=N` (RFC 7240): wait for a run in progress instead of being told of it.

use std::time::Duration;

use axum::http::header::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

const PREFER: &str = "prefer";
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The wait that is asked for, cut to the longest that is given. `None`: none is asked for. A
/// preference that cannot be read is passed over, as the standard has it.
pub fn wait(headers: &HeaderMap, longest: Duration) -> Option<Duration> {
    headers
        .get_all(PREFER)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .find_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            let value = value.trim().trim_matches('"');
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let named = name.trim().eq_ignore_ascii_case("wait") && digits;
            // More digits than a number holds is still only a long time.
            named.then(|| Duration::from_secs(value.parse().unwrap_or(u64::MAX)).min(longest))
        })
}

/// Says which wait was given.
pub fn say_applied(mut response: Response, wait: Option<Duration>) -> Response {
    let applied = wait.map(|wait| HeaderValue::try_from(format!("wait={}", wait.as_secs())));
    if let Some(Ok(applied)) = applied {
        response.headers_mut().insert(APPLIED, applied);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&'static str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(PREFER, HeaderValue::from_static(value));
        }
        wait(&headers, Duration::from_secs(900)).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_wait_is_found_among_other_preferences_and_bounded() {
        for (values, expected) in [
            (&["wait=10"][..], Some(10)),
            (&["respond-async, WAIT = 10"], Some(10)),
            (&["handling=lenient", "wait=\"7\"; foo=bar"], Some(7)),
            (&["wait=901"], Some(900)),
            (&["wait=99999999999999999999999999"], Some(900)),
            (&["wait=0"], Some(0)),
            (&["wait=-1"], None),
            (&["wait=soon"], None),
            (&["wait"], None),
            (&[], None),
        ] {
            assert_eq!(read(values), expected, "{values:?}");
        }
    }
}
