//! What is answered to a value that cannot be meant: one line, with the place and a way out.

use super::{NO_VARIABLES, load};

#[track_caller]
fn assert_error<const N: usize>(text: &str, variables: [(&str, &str); N], expected: &str) {
    let error = load(text, variables).unwrap_err().to_string();
    assert_eq!(error, expected);
    assert!(!error.contains('\n'));
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest_one() {
    let unknown = |at: &str, nearest: &str| {
        format!("{at}: there is no such setting; the nearest one is {nearest}")
    };
    for (text, at, nearest) in [
        ("[limit]\ndrain = '1s'", "limit.drain", "limits.drain"),
        ("listn = 'x'", "listn", "listen"),
        ("[idempotency]\nretension = '1s'", "idempotency.retension", "idempotency.retention"),
        ("[providers.a]\nknd = 'x'", "providers.a.knd", "providers.a.kind"),
        (
            "[providers.a]\nroutes = [{ name = 'x', url = 'y' }]",
            "providers.a.routes[0].url",
            "providers.a.routes[0].name",
        ),
        ("[[outbox.sink]]\nkind = 'x'", "outbox.sink[0].kind", "outbox.sinks[0].kind"),
    ] {
        assert_error(text, NO_VARIABLES, &unknown(&format!("a.toml: {at}"), nearest));
    }
    for (variable, nearest) in [
        ("ONCEKEY_LIMITS__MAXBODY", "ONCEKEY_LIMITS__MAX_BODY"),
        ("ONCEKEY_IDEMPOTENCE__HEARTBEAT", "ONCEKEY_IDEMPOTENCY__HEARTBEAT"),
        ("ONCEKEY_PROVIDERS__MAIN__KEY_ENV", "ONCEKEY_PROVIDERS__MAIN__API_KEY_ENV"),
    ] {
        assert_error("", [(variable, "1")], &unknown(variable, nearest));
    }
}

#[test]
fn values_that_do_not_fit_their_type_say_what_would() {
    let period = "is no length of time: write it like \"10s\", \"5m\" or \"24h\"";
    assert_error(
        "[limits]\ndrain = 'soon'",
        NO_VARIABLES,
        &format!("a.toml: limits.drain: \"soon\" {period}"),
    );
    assert_error(
        "[idempotency]\nretention = ''",
        NO_VARIABLES,
        &format!("a.toml: idempotency.retention: \"\" {period}"),
    );
    assert_error(
        "",
        [("ONCEKEY_RETENTION__TURNS", "10")],
        &format!("ONCEKEY_RETENTION__TURNS: \"10\" {period}"),
    );
    assert_error(
        "[limits]\nmax_body = '10 boxes'",
        NO_VARIABLES,
        "a.toml: limits.max_body: \"10 boxes\" is no size: write it like \"10MiB\"",
    );
    for price in ["-1.0", "nan", "1e300", "true", "'free'"] {
        let file = format!("[models.default]\ninput_usd_per_mtok = {price}");
        let error = load(&file, NO_VARIABLES).unwrap_err().to_string();
        assert!(error.starts_with("a.toml: models.default.input_usd_per_mtok: "), "{error}");
        assert!(error.contains("is no price"), "{error}");
    }
    assert_error(
        "",
        [("ONCEKEY_DATABASE__POOL", "many")],
        "ONCEKEY_DATABASE__POOL: \"many\" is no whole number",
    );
    assert_error(
        "",
        [("ONCEKEY_MODELS__A__TEMPERATURE", "yes")],
        "ONCEKEY_MODELS__A__TEMPERATURE: \"yes\" is neither true nor false",
    );
    for (file, at) in [
        ("[database]\npool = -1", "database.pool"),
        ("limits = 5", "limits"),
        ("[providers.a]\nkind = 'mistral'", "providers.a.kind"),
    ] {
        let error = load(file, NO_VARIABLES).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a.toml: {at}: ")), "{error}");
    }
    let error = load("", [("ONCEKEY_OUTBOX__SINKS", "[{")]).unwrap_err().to_string();
    assert!(error.starts_with("ONCEKEY_OUTBOX__SINKS: no list "), "{error}");
}

#[test]
fn what_does_not_hold_together_is_refused() {
    let real = "[providers.main]\nkind = 'anthropic'\n";
    for (file, expected) in [
        ("listen = 'here'", "listen: \"here\" is no address: write it like 127.0.0.1:8080"),
        ("[database]\npool = 0", "database.pool: 0 is too few: at least 1"),
        ("[retry]\nmax_runs = 0", "retry.max_runs: 0 is too few: at least 1"),
        (
            "[idempotency]\nheartbeat = '21s'",
            "idempotency.stale_after: 1m is less than 3 times the heartbeat of 21s: living runs would be taken over",
        ),
        ("[idempotency]\nretention = '0s'", "idempotency.retention: it must be longer than 0s"),
        (
            "[limits]\nmax_wait = '901s'",
            "limits.max_wait: clients are promised that no wait exceeds 900s",
        ),
        (
            "[models.a]\nprovider = 'x'",
            "models.a.provider: there is no provider \"x\": one of simulated",
        ),
        (
            real,
            "models: there is none: say which model clients get, as in [models.default] provider = \"main\" upstream = \"the vendor's name of the model\"",
        ),
        (
            &format!("{real}[models.a]"),
            "models.a.upstream: it is missing: the vendor's name of the model",
        ),
        (
            &format!("{real}[providers.b]\nkind = 'openai'\n[models.a]"),
            "models.a.provider: it is missing: one of b, main",
        ),
        ("[providers.a]", "providers.a.kind: it is missing: anthropic, openai or simulated"),
        (
            &format!("{real}tokens_per_second = 5"),
            "providers.main.tokens_per_second: only a provider of the kind simulated has it",
        ),
        (
            &format!("{real}routes = [{{ name = 'a', base_url = 'ftp://a' }}]"),
            "providers.main.routes: \"ftp://a\": expected http:// or https://host",
        ),
        (
            "[[outbox.sinks]]\nkind = 'webhook'\nurl = 'https://a.example'",
            "outbox.sinks[0].secret_env: it is missing: deliveries are signed",
        ),
        ("[outbox]\nbatch = 0", "outbox.batch: 0 is too few: at least 1"),
        ("[outbox]\npoll = '0s'", "outbox.poll: it must be longer than 0s"),
        (
            "[[outbox.sinks]]\nkind = 'stdout'\nurl = 'https://a.example'",
            "outbox.sinks[0].url: only a sink of the kind webhook or nats has it",
        ),
        (
            "[[outbox.sinks]]\nkind = 'nats'\nurl = 'nats://a'\nallow_private = true",
            "outbox.sinks[0].allow_private: only a sink of the kind webhook has it",
        ),
        (
            "[[outbox.sinks]]\nkind = 'nats'\nurl = 'nats://u:p@a'",
            "outbox.sinks[0].url: a user or a password may not stand in it: secret_env names a secret",
        ),
        (
            "[[outbox.sinks]]\nkind = 'nats'\nurl = 'nats://a'\nsubject = 'a.*'",
            "outbox.sinks[0].subject: \"a.*\" is no subject: write it like oncekey.{type}",
        ),
        (
            "[[outbox.sinks]]\nkind = 'stdout'\nname = 'a b'",
            "outbox.sinks[0].name: \"a b\" is no name: at most 64 letters, digits, hyphens, dots and underscores",
        ),
        (
            "[[outbox.sinks]]\nkind = 'stdout'\n[[outbox.sinks]]\nkind = 'stdout'",
            "outbox.sinks[1].name: another sink is called \"stdout\" already",
        ),
    ] {
        assert_error(file, NO_VARIABLES, &format!("a.toml: {expected}"));
    }
    assert_error(
        "",
        [("ONCEKEY_OUTBOX__SINKS", "[{ kind = 'nats' }]")],
        "ONCEKEY_OUTBOX__SINKS: outbox.sinks[0].url: it is missing",
    );
    let error = load("a = 1\nb = = 2", NO_VARIABLES).unwrap_err().to_string();
    assert!(error.starts_with("a.toml: line 2: "), "{error}");
}

#[test]
fn captures_go_to_a_folder_or_to_s3() {
    for (location, found) in
        [("", ".oncekey/captures"), ("/srv/c", "/srv/c"), ("s3://b/p", "s3://b/p")]
    {
        let config = load(&format!("[captures]\nlocation = '{location}'"), NO_VARIABLES).unwrap();
        assert_eq!(config.captures.location, found);
    }
    assert_error(
        "",
        [("ONCEKEY_CAPTURES__LOCATION", "ftp://host/folder")],
        "ONCEKEY_CAPTURES__LOCATION: \"ftp://host/folder\": expected s3://host",
    );
}
