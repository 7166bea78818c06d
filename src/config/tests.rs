//! What an operator may write, what it means, and what is answered to everything else.

mod profiles;
mod refusals;

use std::path::PathBuf;

use rust_decimal::Decimal;
use toml::Value;

use super::layers::{self, Layers};
use super::*;

const EXAMPLE: &str = include_str!("../../docs/oncekey.toml");
const NO_VARIABLES: [(&str, &str); 0] = [];

fn load<const N: usize>(text: &str, variables: [(&str, &str); N]) -> Result<Config, ConfigError> {
    load_with(text, variables, &Overrides::default())
}

fn load_with<const N: usize>(
    text: &str,
    variables: [(&str, &str); N],
    overrides: &Overrides,
) -> Result<Config, ConfigError> {
    let environment = Environment::from_iter(variables);
    // The example names a file beside it.
    let file_name = if text.starts_with(EXAMPLE) { "docs/oncekey.toml" } else { "a.toml" };
    let layers = Layers::merge(Some(file_name.to_owned()), text, &environment, overrides)?;
    check::config(layers, &environment)
}

#[test]
fn the_documented_example_is_read_whole() {
    let variables = [("ANTHROPIC_API_KEY", " sk-1\n"), ("ONCEKEY_WEBHOOK_SECRET", "whsec_1")];
    let config = load(EXAMPLE, variables).unwrap();

    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.advertise.as_deref(), Some("http://10.0.0.5:8080"));
    let url = config.database.url.unwrap();
    assert_eq!(url.expose(), "postgres://oncekey:secret@db.example.com/oncekey");
    assert!(config.database.url_direct.unwrap().expose().contains("db-direct"));
    assert_eq!((config.database.pool, config.database.data_dir), (16, PathBuf::from(".oncekey")));

    assert_eq!(config.idempotency, Idempotency::default());
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.retry, Retry::default());
    assert_eq!(config.parse, Parse::default());
    assert_eq!(config.captures.location, ".oncekey/captures");
    assert_eq!(config.chat, Chat::default());
    assert_eq!(config.retention, Retention::default());

    let main = &config.providers["main"];
    let ProviderKind::Anthropic(upstream) = &main.kind else { panic!("{main:?}") };
    assert_eq!(upstream.api_key.as_ref().unwrap().get().unwrap().expose(), "sk-1");
    let direct =
        Route { name: "direct".to_owned(), base_url: "https://api.anthropic.com".to_owned() };
    assert_eq!(upstream.routes, [direct]);
    assert_eq!(main.max_concurrency, 64);
    let seconds = [main.slot_wait, main.first_byte_timeout, main.idle_timeout, main.call_timeout];
    assert_eq!(seconds.map(|period| period.as_secs()), [30, 60, 30, 600]);

    let model = &config.models["default"];
    assert_eq!((model.provider.as_str(), model.upstream.as_str()), ("main", "claude-haiku-4-5"));
    assert_eq!((model.max_output_tokens, model.temperature, model.images), (8192, true, true));
    let profiles: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    assert_eq!(profiles, ["contacts", "receipts", "script"]);
    let prices = Prices {
        input: Decimal::ONE,
        output: Decimal::from(5),
        cache_read: Decimal::new(1, 1),
        cache_write: Decimal::new(125, 2),
    };
    assert_eq!(model.prices, prices);
    let [webhook, nats] = &config.outbox.sinks[..] else { panic!("{:?}", config.outbox) };
    let SinkPlace::Webhook { url, secret, allow_private: false, .. } = &webhook.place else {
        panic!("{webhook:?}")
    };
    assert_eq!(webhook.name, "billing");
    assert!(matches!(&nats.place, SinkPlace::Nats { subject, .. } if subject == "oncekey.{type}"));
    assert_eq!(
        (url.as_str(), secret.get().unwrap().expose()),
        ("https://example.com/hook", "whsec_1")
    );
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn nothing_configured_serves_a_simulated_model() {
    let config = Config::load(None, &Environment::default(), &Overrides::default()).unwrap();

    let ProviderKind::Simulated(simulated) = &config.providers["simulated"].kind else { panic!() };
    assert_eq!(simulated, &Simulated { first_byte_delay: Duration::ZERO, tokens_per_second: 50 });
    assert_eq!(config.models["default"].provider, "simulated");
    assert!(!config.models["default"].images);
    assert_eq!(config.profiles.keys().collect::<Vec<_>>(), ["script"]);
    assert!(config.database.url.is_none());
    assert_eq!(config.limits.max_body, 10 * 1024 * 1024);
    assert_eq!(config.idempotency.retention, Duration::from_secs(24 * 3600));
    assert!(config.outbox.sinks.is_empty() && config.warnings.is_empty());
}

#[test]
fn the_documented_example_shows_every_setting() {
    fn shows(value: &Value, path: &[String]) -> bool {
        let Some((part, rest)) = path.split_first() else { return true };
        match value {
            Value::Table(table) if part == "*" => table.values().any(|value| shows(value, rest)),
            Value::Table(table) => table.get(part).is_some_and(|value| shows(value, rest)),
            Value::Array(entries) => entries.iter().any(|entry| shows(entry, rest)),
            _ => false,
        }
    }
    let example = Value::Table(EXAMPLE.parse().unwrap());
    let settings = layers::settings();
    assert!(settings.iter().any(|setting| setting.path.join(".") == "outbox.sinks.*.url"));
    for setting in settings {
        assert!(shows(&example, &setting.path), "{} is not in the example", setting.path.join("."));
    }
}

/// The list is that of the types the file is read into, so a new setting is held to this too.
#[test]
fn every_setting_is_reachable_by_a_variable() {
    let settings = layers::settings();
    let single: Vec<_> = settings.iter().filter(|setting| !setting.in_list).collect();
    for setting in single {
        let path: Vec<_> = setting.path.iter().map(|part| part.replace('*', "main")).collect();
        let variable = layers::variable_of(&path);
        let text = match &setting.sample {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let environment = Environment::from_iter([(variable.as_str(), text.as_str())]);
        let layers = Layers::merge(None, "", &environment, &Overrides::default()).unwrap();
        assert_eq!(layers.value(&path), Some(&setting.sample), "{variable}");
        assert_eq!(layers.invalid(&path.join("."), "no").to_string(), format!("{variable}: no"));
    }
}

#[test]
fn variables_of_each_type_win_over_the_file() {
    let file = r#"
        [providers.main]
        kind = "openai"
        [models.default]
        provider = "main"
        upstream = "a"
        [models."fast-1.5"]
        provider = "main"
    "#;
    let config = load(
        file,
        [
            ("ONCEKEY_LISTEN", "[::1]:0"),
            ("ONCEKEY_ADVERTISE", "https://a.example/"),
            ("ONCEKEY_DATA_DIR", "/var/lib/oncekey"),
            ("ONCEKEY_DATABASE_URL_DIRECT", "postgres:///oncekey?host=/run/postgresql"),
            ("ONCEKEY_DATABASE__POOL", "3"),
            ("ONCEKEY_IDEMPOTENCY__MISSING_KEY", "require"),
            ("ONCEKEY_IDEMPOTENCY__RETENTION", "7d"),
            ("ONCEKEY_LIMITS__MAX_BODY", "1048576"),
            ("ONCEKEY_RETENTION__CAPTURES", ""),
            ("ONCEKEY_RETENTION__TURNS", "1h 30m"),
            ("ONCEKEY_MODELS__DEFAULT__TEMPERATURE", "false"),
            ("ONCEKEY_MODELS__DEFAULT__UPSTREAM", "4"),
            ("ONCEKEY_MODELS__DEFAULT__INPUT_USD_PER_MTOK", "0.1234567890123456789"),
            ("ONCEKEY_MODELS__FAST_1_5__UPSTREAM", "b"),
            ("ONCEKEY_MODELS__OTHER__UPSTREAM", "c"),
            ("ONCEKEY_PROVIDERS__MAIN__ROUTES", r#"[{ name = "a", base_url = "http://a/v1/" }]"#),
            ("ONCEKEY_OUTBOX__SINKS", r#"[{ kind = "stdout" }]"#),
        ],
    )
    .unwrap();

    assert_eq!(config.listen.to_string(), "[::1]:0");
    assert_eq!(config.advertise.as_deref(), Some("https://a.example"));
    assert_eq!(config.database.data_dir, PathBuf::from("/var/lib/oncekey"));
    assert!(config.database.url_direct.unwrap().expose().ends_with("host=/run/postgresql"));
    assert_eq!(config.database.pool, 3);
    assert_eq!(config.idempotency.missing_key, MissingKey::Require);
    assert_eq!(config.idempotency.retention, Duration::from_secs(7 * 86_400));
    assert_eq!(config.limits.max_body, 1_048_576);
    assert_eq!(config.retention.captures, None);
    assert_eq!(config.retention.turns, Some(Duration::from_secs(5_400)));
    let default = &config.models["default"];
    assert_eq!((default.temperature, default.upstream.as_str()), (false, "4"));
    assert_eq!(default.prices.input.to_string(), "0.1234567890123456789");
    assert_eq!(config.models["fast-1.5"].upstream, "b");
    assert_eq!(config.models["other"].provider, "main");
    let ProviderKind::OpenAi(upstream) = &config.providers["main"].kind else { panic!() };
    assert_eq!(upstream.routes[0].base_url, "http://a/v1");
    assert!(matches!(&config.outbox.sinks[..], [sink] if sink.name == "stdout"));
}

#[test]
fn the_database_is_named_by_flag_variable_file_and_last_the_shared_variable() {
    let file = "database_url = 'postgres://file/a'";
    let shared = ("DATABASE_URL", "postgres://shared/a");
    let variable = ("ONCEKEY_DATABASE_URL", "postgres://variable/a");
    let flag = Overrides {
        database_url: Some("postgres://flag/a".to_owned()),
        listen: Some("0.0.0.0:1".to_owned()),
    };
    let url = |config: Result<Config, ConfigError>| {
        config.unwrap().database.url.map(|url| url.expose().to_owned())
    };

    assert_eq!(url(load("", [shared])).as_deref(), Some("postgres://shared/a"));
    assert_eq!(url(load(file, [shared])).as_deref(), Some("postgres://file/a"));
    assert_eq!(url(load(file, [shared, variable])).as_deref(), Some("postgres://variable/a"));
    let flagged = load_with(file, [shared, variable, ("ONCEKEY_LISTEN", "x")], &flag);
    assert_eq!(flagged.as_ref().unwrap().listen.port(), 1);
    assert_eq!(url(flagged).as_deref(), Some("postgres://flag/a"));
    assert_eq!(url(load("", [("DATABASE_URL", "")])), None);
}

#[test]
fn variables_for_other_things_are_not_settings() {
    let others = [
        ("ONCEKEY_LOG", "json"),
        ("ONCEKEY_LOG_LEVEL", "debug"),
        ("ONCEKEY_FAULTS", "on"),
        ("ONCEKEY_FAULT_PROVIDER_FAIL_ONCE", "2"),
        ("ONCEKEY_API_KEY", "ok_1"),
        ("PATH__A", "x"),
    ];
    load("", others).unwrap();
}

#[test]
fn what_is_odd_is_told_and_allowed() {
    let file = "[providers.main]\nkind = 'openai'\n[models.fast]\nupstream = 'x'";
    let config = load(file, NO_VARIABLES).unwrap();
    let [no_default, no_price] = &config.warnings[..] else { panic!("{:?}", config.warnings) };
    assert!(no_default.contains("no model is called default"), "{no_default}");
    assert!(no_price.contains("model fast has no price"), "{no_price}");
}

#[test]
fn a_real_provider_is_tried_as_simulated_by_changing_its_kind() {
    let config = load(EXAMPLE, [("ONCEKEY_PROVIDERS__MAIN__KIND", "simulated")]).unwrap();
    assert!(matches!(config.providers["main"].kind, ProviderKind::Simulated(_)));
}

#[test]
fn prices_are_what_stands_in_the_file() {
    for (written, exact) in [("0.1", "0.1"), ("1e-7", "0.0000001"), ("3", "3"), ("'2.50'", "2.50")]
    {
        let config = load(&format!("[models.a]\noutput_usd_per_mtok = {written}"), NO_VARIABLES);
        assert_eq!(config.unwrap().models["a"].prices.output.to_string(), exact);
    }
    let config = load("[models.a]\ninput_usd_per_mtok = 2.0", NO_VARIABLES).unwrap();
    let prices = config.models["a"].prices;
    assert_eq!((prices.cache_read, prices.cache_write), (Decimal::from(2), Decimal::from(2)));
}

#[test]
fn no_secret_is_shown() {
    let file =
        format!("{EXAMPLE}\n[[outbox.sinks]]\nkind='nats'\nurl='nats://n'\nsecret_env='TOKEN'");
    let config = load(
        &file,
        [
            ("ANTHROPIC_API_KEY", "hush-1"),
            ("ONCEKEY_WEBHOOK_SECRET", "hush-2"),
            ("TOKEN", "hush-3"),
            ("ONCEKEY_DATABASE_URL", "postgres://u:hush-4@db/a?password=hush-5&sslmode=require"),
        ],
    )
    .unwrap();
    let shown = format!("{config:?} {}", config.database.url.as_ref().unwrap());
    assert!(!shown.contains("hush"), "{shown}");
    assert!(shown.contains("postgres://u:hidden@db/a?password=hidden&sslmode=require"), "{shown}");

    for url in ["postgres://u:hush@:x/a", "mysql://u:hush@a/b", "u:hush@a"] {
        let error = load("", [("DATABASE_URL", url)]).unwrap_err();
        assert!(error.to_string().starts_with("DATABASE_URL: "), "{error}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
    let error = load("database_url = 'postgres://u:hush@a/b\nx", NO_VARIABLES).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
}

#[test]
fn a_missing_secret_is_the_error_of_who_uses_it() {
    let config = load(EXAMPLE, [("ANTHROPIC_API_KEY", " ")]).unwrap();
    let ProviderKind::Anthropic(upstream) = &config.providers["main"].kind else { panic!() };
    let error = upstream.api_key.as_ref().unwrap().get().unwrap_err().to_string();
    assert_eq!(
        error,
        "the variable ANTHROPIC_API_KEY is not set: it holds the key of the provider account"
    );

    let keyless = "[providers.main]\nkind='openai'\napi_key_env=''\n[models.default]\nupstream='x'";
    let config = load(keyless, NO_VARIABLES).unwrap();
    let ProviderKind::OpenAi(upstream) = &config.providers["main"].kind else { panic!() };
    assert!(upstream.api_key.is_none());
}

#[test]
fn the_file_is_named_by_the_flag_or_by_its_variable() {
    let dir = std::env::temp_dir().join(format!("oncekey-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let [flag, variable] = ["flag.toml", "variable.toml"].map(|name| dir.join(name));
    std::fs::write(&flag, "listen = '127.0.0.1:1'").unwrap();
    std::fs::write(&variable, "listen = '127.0.0.1:2'").unwrap();
    let environment = Environment::from_iter([("ONCEKEY_CONFIG", variable.to_str().unwrap())]);
    let port = |path: Option<&Path>| {
        Config::load(path, &environment, &Overrides::default()).unwrap().listen.port()
    };
    let ports = (port(Some(&flag)), port(None));
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(ports, (1, 2));

    let gone = Config::load(Some(&flag), &environment, &Overrides::default()).unwrap_err();
    assert!(gone.to_string().starts_with(&format!("{}: ", flag.display())), "{gone}");
}
