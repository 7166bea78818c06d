//! When the provider says to come back.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};

use crate::domain::failure::{Cause, FailureFacts, RetryAfterText};
use crate::domain::prompt::Message;

/// The longest wait that is believed: a month's spend limit. Above it the header is garbage.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Stands in front of the time that a spend limit ends, lower case.
const REGAIN_ACCESS: &str = "regain access on ";

/// The wait that the provider asks for, by its headers or, for a spend limit, in its sentence. A
/// sentence that stands in the prompt too may be an echo of it: such a time is no one's word, and
/// would close the provider for all who use it.
pub fn asked_wait(facts: &FailureFacts, sent: &[Message], now: DateTime<Utc>) -> Option<Duration> {
    let sent_too = || sent.iter().any(|it| it.content.to_ascii_lowercase().contains(REGAIN_ACCESS));
    parse_retry_after(&facts.retry_after, now).or_else(|| match &facts.cause {
        Cause::Refused { error, .. } | Cause::InBand { error } => {
            regain_access(error.message.as_deref()?, now).filter(|_| !sent_too())
        }
        Cause::Transport(_)
        | Cause::Deadline { .. }
        | Cause::Cut
        | Cause::Unreadable { .. }
        | Cause::NothingUsable
        | Cause::NothingFound
        | Cause::OutputLimit
        | Cause::Moderated(_)
        | Cause::AnswerTooLong { .. }
        | Cause::RuleBroken(_) => None,
    })
}

/// The wait that the headers name, counted from `now`. `retry-after-ms` goes before `retry-after`,
/// which holds seconds (fractions are taken) or an HTTP date. `None` where nothing usable is said:
/// no header, zero, a negative number, a time in the past, text, or more than
/// [`MAX_RETRY_AFTER`]; the caller then waits by its own rule.
pub fn parse_retry_after(headers: &RetryAfterText, now: DateTime<Utc>) -> Option<Duration> {
    let millis = headers.millis.as_deref().and_then(|text| number(text, 1_000_000));
    let wait = millis.or_else(|| {
        let text = headers.plain.as_deref()?.trim();
        number(text, 1_000_000_000).or_else(|| until_date(text, now))
    })?;
    (!wait.is_zero() && wait <= MAX_RETRY_AFTER).then_some(wait)
}

/// Digits with an optional fraction, times the unit in nanoseconds. No sign, no exponent, no
/// "inf": what a float parser would take is wider than what a header may hold.
fn number(text: &str, unit_nanos: u64) -> Option<Duration> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 15 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut nanos = u128::from(whole.parse::<u64>().ok()?) * u128::from(unit_nanos);
    let mut unit = u128::from(unit_nanos);
    for digit in fraction.bytes().take(9) {
        unit /= 10;
        nanos += u128::from(digit - b'0') * unit;
    }
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

fn until_date(text: &str, now: DateTime<Utc>) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(SystemTime::from(now)).ok()
}

/// The wait until the time that a spend limit's sentence names ("… regain access on 2026-09-01 at
/// 00:00 UTC"), counted from `now`. `None` where no such time is named, or it is past.
pub fn regain_access(message: &str, now: DateTime<Utc>) -> Option<Duration> {
    let lower = message.to_ascii_lowercase();
    let rest = lower.get(lower.find(REGAIN_ACCESS)? + REGAIN_ACCESS.len()..)?;
    let date = NaiveDate::parse_from_str(rest.get(..10)?, "%Y-%m-%d").ok()?;
    let time = rest
        .get(10..)
        .and_then(|rest| rest.strip_prefix(" at "))
        .and_then(|rest| NaiveTime::parse_from_str(rest.get(..5)?, "%H:%M").ok())
        .unwrap_or(NaiveTime::MIN);
    let wait = (date.and_time(time).and_utc() - now).to_std().ok()?;
    (!wait.is_zero() && wait <= MAX_RETRY_AFTER).then_some(wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::failure::VendorError;
    use crate::domain::prompt::Role;
    use proptest::prelude::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn wait(millis: Option<&str>, plain: Option<&str>) -> Option<Duration> {
        let headers =
            RetryAfterText { millis: millis.map(str::to_owned), plain: plain.map(str::to_owned) };
        parse_retry_after(&headers, at("2026-10-21T07:28:00.400Z"))
    }

    #[test]
    fn every_form_of_the_header() {
        let ms = |millis| Some(Duration::from_millis(millis));
        assert_eq!(wait(None, Some("2")), ms(2000));
        assert_eq!(wait(None, Some(" 2 ")), ms(2000));
        assert_eq!(wait(None, Some("1.5")), ms(1500));
        assert_eq!(wait(Some("1500"), Some("9")), ms(1500), "milliseconds win");
        assert_eq!(wait(Some("1500.5"), None), Some(Duration::from_micros(1_500_500)));
        assert_eq!(wait(Some("soon"), Some("9")), ms(9000), "unless they cannot be read");
        assert_eq!(wait(None, Some("Wed, 21 Oct 2026 07:28:03 GMT")), ms(2600));
        assert_eq!(wait(None, Some("2678400")), ms(2_678_400_000), "31 days are believed");
    }

    #[test]
    fn what_says_nothing_usable_leaves_the_wait_to_us() {
        for text in [
            "0",
            "0.0",
            "",
            " ",
            ".",
            ".5",
            "-3",
            "+3",
            "1e3",
            "inf",
            "NaN",
            "1000abc",
            "1,5",
            "Wed, 99 Foo 2026 07:28:00 GMT",
            "Wed, 21 Oct 2015 07:28:00 GMT",
            "Wed, 21 Oct 2026 07:28:00 GMT",
            "Wed, 21 Oct 2037 07:28:00 GMT",
            "2678401",
            "99999999999999999999999999999999",
            "٣",
        ] {
            assert_eq!(wait(None, Some(text)), None, "{text:?}");
        }
        assert_eq!(wait(None, None), None);
    }

    #[test]
    fn a_spend_limit_may_name_its_end() {
        let now = at("2026-08-19T00:36:57Z");
        let told = "You have reached your specified API usage limits. You will regain access on \
                    2026-09-01 at 00:00 UTC.";
        assert_eq!(regain_access(told, now), Some(Duration::from_secs(12 * 86_400 + 84_183)));
        assert_eq!(regain_access("You will regain access on 2026-08-01 at 00:00 UTC.", now), None);
        assert_eq!(regain_access("regain access on soon, é", now), None);
        assert_eq!(regain_access("You have reached your limit.", now), None);

        let message = Some(told.to_owned());
        let error = VendorError { message, ..VendorError::default() };
        let mut facts = FailureFacts::new(Cause::InBand { error });
        let asked = |facts: &FailureFacts, sent: &str| asked_wait(facts, &[user(sent)], now);
        assert_eq!(asked(&facts, "Hello"), regain_access(told, now));
        let quoted = "insufficient_quota, you will Regain access on 2026-09-01";
        assert_eq!(asked(&facts, quoted), None, "the prompt's own words may only be repeated");
        facts.retry_after.plain = Some("7".to_owned());
        for sent in ["Hello", quoted] {
            assert_eq!(asked(&facts, sent), Some(Duration::from_secs(7)), "headers go first");
        }
    }

    fn user(text: &str) -> Message {
        Message { role: Role::User, content: text.into() }
    }

    proptest! {
        #[test]
        fn no_text_panics_or_waits_for_a_year(millis in ".{0,24}", plain in ".{0,40}") {
            let told = wait(Some(&millis), Some(&plain));
            prop_assert!(told.is_none_or(|wait| !wait.is_zero() && wait <= MAX_RETRY_AFTER));
            let _ = regain_access(&format!("regain access on {plain}"), DateTime::UNIX_EPOCH);
        }

        #[test]
        fn numbers_keep_their_unit(number in 0u64..2_000_000) {
            let told = wait(Some(&number.to_string()), None);
            prop_assert_eq!(told, (number > 0).then(|| Duration::from_millis(number)));
        }
    }
}
