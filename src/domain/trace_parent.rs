//! The `traceparent` of a client that traces: which of its spans a request belongs to (W3C Trace
//! Context).

use std::fmt;

/// A well-formed `traceparent`, in the form of version 00.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent(String);

impl TraceParent {
    /// Reads a header value. None where it is malformed: such a one is as good as not sent.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut parts = text.split('-');
        let [version, trace, span, flags] = std::array::from_fn(|_| parts.next().unwrap_or(""));
        let hex = |part: &str, length: usize| {
            let digits = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            part.len() == length && part.bytes().all(digits)
        };
        let named = |part: &str| part.bytes().any(|byte| byte != b'0');
        let whole = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
        // Version 00 has nothing more; what a later one adds is not known here.
        let ours = version == "00" && parts.next().is_none();
        let later = version != "00" && version != "ff";
        (whole && named(trace) && named(span) && (ours || later))
            .then(|| Self(format!("00-{trace}-{span}-{flags}")))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_well_formed_count() {
        let plain = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = |text: &str| TraceParent::parse(text.as_bytes()).map(|it| it.to_string());
        assert_eq!(read(plain).as_deref(), Some(plain));
        let later = plain.replacen("00", "01", 1) + "-more";
        assert_eq!(read(&later).as_deref(), Some(plain));
        for bad in [
            "",
            "00",
            &plain.to_uppercase(),
            &format!("{plain}-more"),
            &plain.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(TraceParent::parse(b"00-\xff"), None);
    }
}
