//! Each kind of failure by the facts that show it.

use std::time::Duration;

use super::*;
use crate::domain::failure::{DeadlineKind, RetryAfterText, TransportFault};
use FailureKind as K;

fn error(kind: &str, message: &str) -> VendorError {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    VendorError { kind: some(kind), message: some(message), ..VendorError::default() }
}

fn refusal(status: u16, kind: &str, message: &str) -> FailureFacts {
    let cause = Cause::Refused { html: false, error: error(kind, message) };
    FailureFacts { status: Some(status), ..FailureFacts::new(cause) }
}

fn page(status: u16, text: &str) -> FailureFacts {
    let error = VendorError { detail: Some(text.to_owned()), ..VendorError::default() };
    let cause = Cause::Refused { html: true, error };
    FailureFacts { status: Some(status), ..FailureFacts::new(cause) }
}

fn in_band(code: &str, kind: &str, message: &str) -> FailureFacts {
    let mut error = error(kind, message);
    error.code = (!code.is_empty()).then(|| code.to_owned());
    FailureFacts { status: Some(200), ..FailureFacts::new(Cause::InBand { error }) }
}

#[test]
fn statuses() {
    let table = [
        (429, K::RateLimited),
        (529, K::Overloaded),
        (408, K::Overloaded),
        (500, K::Transient),
        (502, K::Transient),
        (503, K::Transient),
        (504, K::Transient),
        (520, K::Transient),
        (524, K::Transient),
        (401, K::Auth),
        (403, K::Auth),
        (404, K::Config),
        (405, K::Config),
        (307, K::Config),
        (409, K::Transient),
        (402, K::Quota),
        (451, K::Region),
        (413, K::TooLarge),
        (400, K::Input),
        (422, K::Input),
        (418, K::Input),
    ];
    for (status, kind) in table {
        let told = diagnose(&refusal(status, "some_error", "No."));
        assert_eq!((told.kind, told.known), (kind, true), "{status}");
    }
    assert!(!diagnose(&refusal(600, "some_error", "No.")).known);
    assert!(!diagnose(&FailureFacts { status: None, ..refusal(0, "", "") }).known);
}

#[test]
fn a_503_that_names_a_time_is_busy_and_not_broken() {
    let plain = RetryAfterText { plain: Some("3".to_owned()), ..RetryAfterText::default() };
    let busy = FailureFacts { retry_after: plain, ..refusal(503, "", "") };
    assert_eq!(classify(&busy), K::Overloaded);
}

#[test]
fn pages_of_boxes_in_between() {
    assert_eq!(classify(&page(502, "<html>Bad gateway</html>")), K::Transient);
    assert_eq!(classify(&page(413, "<html>413 Request Entity Too Large</html>")), K::TooLarge);
    assert_eq!(classify(&page(404, "<html>nginx</html>")), K::Config);
    let told = diagnose(&page(400, "<html>400 Bad Request</html>"));
    assert_eq!((told.kind, told.known), (K::Transient, false));
    let banned = "The owner of this website has banned the country or region your IP is in";
    assert_eq!(classify(&page(403, banned)), K::Region);
}

#[test]
fn json_of_a_shape_that_nobody_knows_is_a_refusal_of_the_input_all_the_same() {
    let detail = Some(r#"{"detail":[{"loc":["body"],"msg":"Field required"}]}"#.to_owned());
    let error = VendorError { detail, ..VendorError::default() };
    let cause = Cause::Refused { html: false, error };
    let facts = FailureFacts { status: Some(422), ..FailureFacts::new(cause) };
    let told = diagnose(&facts);
    assert_eq!((told.kind, told.known), (K::Input, true));
    assert!(!facts.summary().contains("Field"), "it may repeat the prompt");
}

#[test]
fn a_lack_of_credit_in_any_wording() {
    for (status, kind, message) in [
        (429, "insufficient_quota", "You exceeded your current quota, please check your plan."),
        (400, "invalid_request_error", "You have reached your specified API usage limits."),
        (400, "invalid_request_error", "Your credit balance is too low to access the API."),
        (403, "billing_error", "Payment Required"),
        (402, "", ""),
    ] {
        assert_eq!(classify(&refusal(status, kind, message)), K::Quota, "{message}");
    }
    let minute = "You exceeded your current quota. Please retry in 34.07s.";
    assert_eq!(classify(&refusal(429, "RESOURCE_EXHAUSTED", minute)), K::RateLimited);
    assert_eq!(classify(&refusal(500, "", "spend limit service is down")), K::Transient);
}

/// What is true for a while must not end as the input's fault because a gateway chose the status.
#[test]
fn a_type_that_a_gateway_puts_under_another_status() {
    for (status, kind, told) in [
        (400, "overloaded_error", K::Overloaded),
        (400, "rate_limit_error", K::RateLimited),
        (422, "rate_limit_exceeded", K::RateLimited),
        (403, "rate_limit_error", K::RateLimited),
        (500, "insufficient_quota", K::Quota),
        (502, "billing_error", K::Quota),
        (400, "invalid_request_error", K::Input),
        (400, "api_error", K::Input),
    ] {
        assert_eq!(classify(&refusal(status, kind, "No.")), told, "{status} {kind}");
    }
    // Words that only stand in the sentence may be anybody's, the prompt's own too.
    for (status, kind) in [(400, K::Input), (403, K::Auth), (500, K::Transient)] {
        let said = refusal(status, "", "overloaded_error rate_limit_error");
        assert_eq!(classify(&said), kind, "{status}");
    }
    assert_eq!(classify(&refusal(500, "", "insufficient_quota")), K::Transient);
}

#[test]
fn too_long_in_any_wording_and_status() {
    for (status, message) in [
        (400, "prompt is too long: 214021 tokens > 200000 maximum"),
        (400, "This model's maximum context length is 8192 tokens. However, …"),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        (422, "Please reduce the length of the messages"),
        (500, "Requested token count exceeds the model's maximum context length of 16384"),
        (503, "PROMPT IS TOO LONG"),
        (413, ""),
        (429, "Request too large for gpt-4 on tokens per min (TPM): Limit 10000, Requested 15000"),
    ] {
        assert_eq!(classify(&refusal(status, "", message)), K::TooLarge, "{message}");
    }
    assert_eq!(classify(&in_band("context_length_exceeded", "", "")), K::TooLarge);
    let busy = "Number of request tokens has exceeded your per-minute rate limit; context window";
    assert_eq!(classify(&refusal(429, "rate_limit_error", busy)), K::RateLimited);
    // A limit on what a parameter may be is a matter of the parameter.
    let told = diagnose(&refusal(400, "invalid_request_error", "max_tokens: 100000 > 8192"));
    assert_eq!(told.kind, K::Input);
}

#[test]
fn two_kinds_of_403_and_the_region_as_a_400() {
    assert_eq!(classify(&refusal(403, "forbidden", "Request not allowed")), K::Region);
    assert_eq!(classify(&refusal(403, "permission_error", "Your API key may not.")), K::Auth);
    assert_eq!(classify(&refusal(400, "forbidden", "Request not allowed")), K::Input);
    let location = "User location is not supported for the API use.";
    assert_eq!(classify(&refusal(400, "FAILED_PRECONDITION", location)), K::Region);
    let code = refusal(403, "unsupported_country_region_territory", "Country not supported");
    assert_eq!(classify(&code), K::Region);
}

#[test]
fn filters_and_their_stage() {
    let filtered = refusal(400, "", "The response was filtered: content management policy");
    let told = diagnose(&filtered);
    assert_eq!((told.kind, told.stage), (K::Moderation, Some(ModerationStage::Input)));
    let flagged = "This model requires moderation. Your input was flagged for \"violence\".";
    assert_eq!(diagnose(&refusal(403, "", flagged)).stage, Some(ModerationStage::Input));
    let after_text = FailureFacts { text_flowed: true, ..in_band("content_filter", "", "") };
    assert_eq!(diagnose(&after_text).stage, Some(ModerationStage::Output));
    let blocked = refusal(400, "", "Output blocked by content filtering policy");
    assert_eq!(diagnose(&blocked).stage, Some(ModerationStage::Output));
    let reason = FailureFacts::new(Cause::Moderated(ModerationStage::Output));
    let told = diagnose(&reason);
    assert_eq!((told.kind, told.stage), (K::Moderation, Some(ModerationStage::Output)));
    assert_eq!(told.kind.as_str(), "moderation");
}

#[test]
fn a_refused_parameter_is_named() {
    for (message, name) in [
        ("`temperature` is deprecated for this model.", "temperature"),
        ("Unsupported value: 'temperature' does not support 0.5 with this model.", "temperature"),
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use \
             'max_completion_tokens' instead.",
            "max_tokens",
        ),
        ("Unsupported parameter: 'max_completion_tokens'.", "max_completion_tokens"),
        ("stream_options: Extra inputs are not permitted", "stream_options"),
    ] {
        let told = diagnose(&refusal(400, "invalid_request_error", message));
        assert_eq!(told.kind, K::Input);
        assert_eq!(told.refused_parameter.map(Parameter::as_str), Some(name), "{message}");
    }
    let mut by_param = error("invalid_request_error", "Unsupported value.");
    by_param.param = Some("temperature".to_owned());
    let cause = Cause::Refused { html: false, error: by_param };
    let told = diagnose(&FailureFacts { status: Some(400), ..FailureFacts::new(cause) });
    assert_eq!(told.refused_parameter, Some(Parameter::Temperature));
    let other = diagnose(&refusal(400, "invalid_request_error", "messages: empty"));
    assert_eq!((other.kind, other.refused_parameter), (K::Input, None));
}

#[test]
fn our_configuration_told_as_a_400() {
    assert_eq!(classify(&refusal(400, "", "model_not_found: gpt-9")), K::Config);
    assert_eq!(classify(&refusal(400, "API_KEY_INVALID", "API key not valid.")), K::Auth);
}

#[test]
fn an_error_inside_a_success_counts_by_its_own_code() {
    for (code, kind, message, expected) in [
        ("429", "", "Provider returned error", K::RateLimited),
        ("server_error", "", "stream closed", K::Transient),
        ("502", "", "upstream capacity limit reached", K::Transient),
        ("", "overloaded_error", "Overloaded", K::Overloaded),
        ("", "api_error", "Internal server error", K::Transient),
        ("", "Rate_Limit_Error", "", K::RateLimited),
        ("401", "", "no", K::Auth),
        ("404", "", "no such model", K::Config),
        ("400", "", "bad", K::Input),
        ("", "invalid_request_error", "prompt is too long", K::TooLarge),
        ("insufficient_quota", "", "", K::Quota),
        ("", "", "The engine is overloaded", K::Overloaded),
    ] {
        let told = diagnose(&in_band(code, kind, message));
        assert_eq!((told.kind, told.known), (expected, true), "{code} {kind} {message}");
    }
    let told = diagnose(&in_band("E77", "odd", "Something happened"));
    assert_eq!((told.kind, told.known), (K::Transient, false), "unknown, and said so");
}

#[test]
fn a_gateways_500_around_a_plea_to_wait() {
    assert_eq!(classify(&refusal(500, "overloaded_error", "Overloaded")), K::Overloaded);
    assert_eq!(classify(&refusal(502, "rate_limit_error", "slow down")), K::RateLimited);
    // Anything final needs a status that says so: a 500 is not an opinion about the input.
    assert_eq!(classify(&refusal(500, "invalid_request_error", "?")), K::Transient);
}

#[test]
fn everything_that_is_no_refusal() {
    let limit = Duration::from_secs(30);
    for (cause, kind) in [
        (Cause::Transport(TransportFault::Connect), K::Transient),
        (Cause::Transport(TransportFault::Request), K::Transient),
        (Cause::Transport(TransportFault::Body), K::Transient),
        (Cause::Deadline { kind: DeadlineKind::FirstByte, limit }, K::Timeout),
        (Cause::Deadline { kind: DeadlineKind::Idle, limit }, K::Timeout),
        (Cause::Deadline { kind: DeadlineKind::Absolute, limit }, K::Timeout),
        (Cause::Cut, K::Transient),
        (Cause::Unreadable { snippet: ".".to_owned() }, K::Transient),
        (Cause::NothingUsable, K::Transient),
        (Cause::OutputLimit, K::Truncated),
        (Cause::Moderated(ModerationStage::Input), K::Moderation),
        (Cause::AnswerTooLong { limit_bytes: 10 }, K::Malformed),
    ] {
        let facts = FailureFacts::new(cause);
        assert_eq!(classify(&facts), kind, "{}", facts.summary());
        assert!(!facts.summary().is_empty());
    }
}

#[test]
fn the_summary_holds_the_status_and_the_vendors_words() {
    let facts = refusal(429, "rate_limit_error", "Slow down.");
    assert_eq!(facts.summary(), "status 429, rate_limit_error: Slow down.");
    assert_eq!(page(502, "<html>").summary(), "status 502, an HTML page");
}
