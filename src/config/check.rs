//! What the types of the file cannot say: ranges, references, and what follows from a provider's
//! kind. The first thing that is wrong ends it, named by its setting.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::file::{File, Kind, ProviderSection, RouteEntry};
use super::layers::Layers;
use super::models;
use super::profiles;
use super::sinks;
use super::wrong::{SIMULATED, Wrong, address, at_least_one, given, longer_than_zero, wrong};
use super::{
    Captures, Config, ConfigError, Database, DatabaseUrl, Environment, Provider, ProviderKind,
    Route, SecretVariable, Simulated, Upstream,
};

/// The longest wait that `Prefer` may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(900);
/// Smaller chunks cut every speech to pieces.
const LEAST_CHUNK_CHARS: u32 = 100;
/// Beats that fit into the silence after which a run counts as lost: one lost, one late, one more.
const BEATS_UNTIL_STALE: u32 = 3;

pub(super) fn config(layers: Layers, environment: &Environment) -> Result<Config, ConfigError> {
    let file = layers.read()?;
    build(file, environment, &layers.folder())
        .map_err(|(setting, message)| layers.invalid(&setting, message))
}

fn build(file: File, environment: &Environment, folder: &Path) -> Result<Config, Wrong> {
    numbers(&file)?;
    let listen = file.listen.parse().map_err(|_| {
        wrong("listen", format!("{:?} is no address: write it like 127.0.0.1:8080", file.listen))
    })?;
    let advertise = match given(file.advertise.as_deref()) {
        Some(text) => Some(address("advertise", text, &["http", "https"])?),
        None => None,
    };
    let providers = providers(&file.providers, environment)?;
    let (models, warnings) = models::check(file.models, &providers)?;
    Ok(Config {
        listen,
        advertise,
        database: Database {
            url: database_url("database_url", file.database_url.as_deref())?,
            url_direct: database_url("database_url_direct", file.database_url_direct.as_deref())?,
            pool: file.database.pool,
            coalesce: file.database.coalesce,
            data_dir: file.database.data_dir.as_str().into(),
        },
        idempotency: file.idempotency,
        limits: file.limits,
        retry: file.retry,
        providers,
        models,
        parse: file.parse,
        profiles: profiles::check(file.profiles, folder)?,
        captures: captures(&file.captures.location, &file.database.data_dir)?,
        chat: file.chat,
        retention: file.retention,
        outbox: sinks::check(&file.outbox, environment)?,
        warnings,
    })
}

fn numbers(file: &File) -> Result<(), Wrong> {
    let counts = [
        ("database.pool", file.database.pool),
        ("retry.max_attempts", file.retry.max_attempts),
        ("retry.max_runs", file.retry.max_runs),
        ("parse.parallel", file.parse.parallel),
        ("chat.max_history_turns", file.chat.max_history_turns),
        ("limits.max_readers", file.limits.max_readers),
    ];
    for (setting, count) in counts {
        at_least_one(setting, count)?;
    }
    let chunk_chars = file.parse.chunk_chars;
    if chunk_chars < LEAST_CHUNK_CHARS {
        let message = format!("{chunk_chars} is too few: at least {LEAST_CHUNK_CHARS}");
        return Err(wrong("parse.chunk_chars", message));
    }
    if file.limits.max_body == 0 {
        return Err(wrong("limits.max_body", "0 lets no request in"));
    }
    if file.database.data_dir.is_empty() {
        return Err(wrong("database.data_dir", "it is empty: name a folder"));
    }
    let periods = [
        ("idempotency.retention", Some(file.idempotency.retention)),
        ("idempotency.derive_window", Some(file.idempotency.derive_window)),
        ("idempotency.heartbeat", Some(file.idempotency.heartbeat)),
        ("retry.give_up_after", Some(file.retry.give_up_after)),
        ("retention.turns", file.retention.turns),
        ("retention.captures", file.retention.captures),
        ("retention.provider_calls", file.retention.provider_calls),
        ("retention.published_events", file.retention.published_events),
    ];
    for (setting, period) in periods {
        if let Some(period) = period {
            longer_than_zero(setting, period)?;
        }
    }
    let (beat, stale) = (file.idempotency.heartbeat, file.idempotency.stale_after);
    if beat.checked_mul(BEATS_UNTIL_STALE).is_none_or(|beats| stale < beats) {
        let shown = (humantime::format_duration(stale), humantime::format_duration(beat));
        return Err(wrong(
            "idempotency.stale_after",
            format!(
                "{} is less than {BEATS_UNTIL_STALE} times the heartbeat of {}: living runs would be taken over",
                shown.0, shown.1
            ),
        ));
    }
    if file.limits.max_wait > LONGEST_WAIT {
        return Err(wrong("limits.max_wait", "clients are promised that no wait exceeds 900s"));
    }
    Ok(())
}

fn providers(
    sections: &BTreeMap<String, ProviderSection>,
    environment: &Environment,
) -> Result<BTreeMap<String, Provider>, Wrong> {
    let mut providers = BTreeMap::new();
    for (name, section) in sections {
        providers.insert(name.clone(), provider(name, section, environment)?);
    }
    if providers.is_empty() {
        let section = ProviderSection::default();
        providers.insert(SIMULATED.to_owned(), provider(SIMULATED, &section, environment)?);
    }
    Ok(providers)
}

fn provider(
    name: &str,
    section: &ProviderSection,
    environment: &Environment,
) -> Result<Provider, Wrong> {
    let at = |field: &str| format!("providers.{name}.{field}");
    let seconds =
        |period: Option<Duration>, default| period.unwrap_or(Duration::from_secs(default));
    let kind = match section.kind {
        Some(kind) => kind,
        None if name == SIMULATED => Kind::Simulated,
        None => return Err(wrong(at("kind"), "it is missing: anthropic, openai or simulated")),
    };
    let provider = Provider {
        kind: match kind {
            Kind::Anthropic => ProviderKind::Anthropic(upstream(name, kind, section, environment)?),
            Kind::OpenAi => ProviderKind::OpenAi(upstream(name, kind, section, environment)?),
            // Its routes and key may stand there: to try things, only the kind is changed.
            Kind::Simulated => ProviderKind::Simulated(Simulated {
                first_byte_delay: seconds(section.first_byte_delay, 0),
                tokens_per_second: section.tokens_per_second.unwrap_or(50),
            }),
        },
        max_concurrency: section.max_concurrency.unwrap_or(64),
        slot_wait: seconds(section.slot_wait, 30),
        first_byte_timeout: seconds(section.first_byte_timeout, 60),
        idle_timeout: seconds(section.idle_timeout, 30),
        call_timeout: seconds(section.call_timeout, 600),
    };
    at_least_one(at("max_concurrency"), provider.max_concurrency)?;
    longer_than_zero(at("first_byte_timeout"), provider.first_byte_timeout)?;
    longer_than_zero(at("idle_timeout"), provider.idle_timeout)?;
    longer_than_zero(at("call_timeout"), provider.call_timeout)?;
    if let Some(rate) = section.tokens_per_second {
        at_least_one(at("tokens_per_second"), rate)?;
    }
    Ok(provider)
}

fn upstream(
    name: &str,
    kind: Kind,
    section: &ProviderSection,
    environment: &Environment,
) -> Result<Upstream, Wrong> {
    let at = |field: &str| format!("providers.{name}.{field}");
    let only_simulated = [
        ("first_byte_delay", section.first_byte_delay.is_some()),
        ("tokens_per_second", section.tokens_per_second.is_some()),
    ];
    if let Some((field, _)) = only_simulated.iter().find(|(_, is_set)| *is_set) {
        return Err(wrong(at(field), "only a provider of the kind simulated has it"));
    }
    let (vendor_variable, vendor_url) = match kind {
        Kind::OpenAi => ("OPENAI_API_KEY", "https://api.openai.com/v1"),
        Kind::Anthropic | Kind::Simulated => ("ANTHROPIC_API_KEY", "https://api.anthropic.com"),
    };
    let variable = section.api_key_env.as_deref().unwrap_or(vendor_variable);
    let vendor = [RouteEntry { name: "direct".to_owned(), base_url: vendor_url.to_owned() }];
    let entries = section.routes.as_deref().unwrap_or(&vendor);
    if entries.is_empty() {
        return Err(wrong(
            at("routes"),
            "there is none: leave it out for the vendor's own address",
        ));
    }
    let mut routes: Vec<Route> = Vec::new();
    for entry in entries {
        if entry.name.is_empty() || routes.iter().any(|known| known.name == entry.name) {
            return Err(wrong(
                at("routes"),
                format!("{:?}: each route needs a name of its own", entry.name),
            ));
        }
        let base_url = address(&at("routes"), &entry.base_url, &["http", "https"])?;
        routes.push(Route { name: entry.name.clone(), base_url });
    }
    let api_key = given(Some(variable)).map(|variable| {
        SecretVariable::look_up(variable, "the key of the provider account", environment)
    });
    Ok(Upstream { api_key, routes })
}

/// Left out, it is a folder beside what else the server keeps.
fn captures(location: &str, data_dir: &str) -> Result<Captures, Wrong> {
    let setting = "captures.location";
    if location.is_empty() {
        let folder = Path::new(data_dir).join("captures");
        return Ok(Captures { location: folder.display().to_string() });
    }
    if location.contains("://") {
        address(setting, location, &["s3"])?;
    }
    Ok(Captures { location: location.to_owned() })
}

fn database_url(setting: &str, text: Option<&str>) -> Result<Option<DatabaseUrl>, Wrong> {
    given(text)
        .map(|text| DatabaseUrl::parse(text).map_err(|message| wrong(setting, message)))
        .transpose()
}
