//! Sentences by which vendors and gateways say a thing that has no status of its own.
//!
//! All patterns are lower case and are searched in the lower-cased type, code, message and detail
//! of an error. They are kept here and nowhere else; a new wording is a new line and a new test.

/// The input does not fit. Words that rate limits use too ("too many tokens") are left out.
pub(super) const TOO_LARGE: &[&str] = &[
    "context_length_exceeded",
    "context length",
    "context window",
    "context limit",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input length exceeds",
    "token count exceeds",
    "reduce the length of the messages",
    "exceeds the maximum number of tokens",
    "exceeds the maximum size",
    "string_above_max_length",
    "request_too_large",
    "request too large",
    "request entity too large",
    "payload too large",
    "content too large",
];

/// The same in a 429, where the limit is that of a minute: a request above it fails at any time.
pub(super) const TOO_LARGE_IN_429: &[&str] = &["request too large", "context_length_exceeded"];

/// The account is out of credit or at a limit that a person has set.
pub(super) const QUOTA: &[&str] = &[
    "insufficient_quota",
    "exceeded your current quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "specified api usage limits",
    "spend limit",
    "spending limit",
    "spend_limit",
    "credit balance is too low",
    "insufficient credit",
    "insufficient balance",
    "insufficient funds",
    "out of credit",
    "payment required",
];

/// Said next to a quota wording when it is a limit per minute after all.
pub(super) const QUOTA_THAT_PASSES: &[&str] =
    &["retry in ", "per minute", "per_minute", "perminute"];

/// The region is refused, with 400 or 403.
pub(super) const REGION: &[&str] = &[
    "user location is not supported",
    "unsupported_country_region_territory",
    "country, region, or territory not supported",
    "not available in your country",
    "not available in your region",
    "not supported in your country",
    "not supported in your region",
    "banned the country or region",
];

/// Means the region only with 403.
pub(super) const REGION_IN_403: &[&str] = &["request not allowed"];

/// A filter at either stage.
pub(super) const MODERATION: &[&str] = &[
    "content_filter",
    "content filter",
    "content_policy_violation",
    "content policy",
    "content management policy",
    "responsible_ai_policy_violation",
    "violating our usage policy",
    "safety system",
    "input was flagged",
    "prohibited_content",
    "prohibited content",
    "data_inspection_failed",
];

/// A filter that blames the output.
pub(super) const MODERATED_OUTPUT: &[&str] = &["output blocked", "response was blocked"];

/// The configured model is not known, with a 400.
pub(super) const UNKNOWN_MODEL: &[&str] = &[
    "model_not_found",
    "model not found",
    "model_decommissioned",
    "invalid model",
    "unknown model",
    "not a valid model",
];

/// The credentials are refused, with a 400.
pub(super) const BAD_KEY: &[&str] =
    &["api key not valid", "api_key_invalid", "invalid_api_key", "incorrect api key"];

/// A parameter is refused by this model.
pub(super) const REFUSED_PARAMETER: &[&str] = &[
    "is deprecated for this model",
    "unsupported parameter",
    "unsupported_parameter",
    "unsupported value",
    "unsupported_value",
    "is not supported",
    "not support",
    "not permitted",
];

/// Overload told in words inside an error with no telling status.
pub(super) const OVERLOADED: &[&str] = &["overloaded", "at capacity"];

/// The status that an inner type or code stands for.
pub(super) const INNER_STATUS: &[(&str, u16)] = &[
    ("invalid_request_error", 400),
    ("invalid_argument", 400),
    ("failed_precondition", 400),
    ("authentication_error", 401),
    ("invalid_api_key", 401),
    ("unauthenticated", 401),
    ("billing_error", 402),
    ("insufficient_quota", 402),
    ("permission_error", 403),
    ("permission_denied", 403),
    ("not_found_error", 404),
    ("model_not_found", 404),
    ("not_found", 404),
    ("request_too_large", 413),
    ("context_length_exceeded", 413),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("rate_limited", 429),
    ("resource_exhausted", 429),
    ("too_many_requests", 429),
    ("api_error", 500),
    ("server_error", 500),
    ("internal_error", 500),
    ("internal_server_error", 500),
    ("internal", 500),
    ("bad_gateway", 502),
    ("unavailable", 503),
    ("service_unavailable", 503),
    ("timeout_error", 504),
    ("deadline_exceeded", 504),
    ("overloaded_error", 529),
    ("overloaded", 529),
];

/// Whether the text holds one of the patterns.
pub(super) fn says(text: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| text.contains(pattern))
}
