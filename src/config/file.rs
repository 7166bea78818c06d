//! The file as it is written. Its shape is the one list of all settings: serialised with every
//! field filled in ([`File::with_everything`]) it tells which names exist, what the variables are
//! called, and which of them hold numbers.
//!
//! No `Debug` here: a database address stands in it as plain text.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::sections::{Chat, Idempotency, Limits, Parse, Retention, Retry};
use super::values::{Price, optional_period, period};

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub listen: String,
    pub database_url: Option<String>,
    pub database_url_direct: Option<String>,
    pub advertise: Option<String>,
    pub database: DatabaseSection,
    pub idempotency: Idempotency,
    pub limits: Limits,
    pub retry: Retry,
    pub providers: BTreeMap<String, ProviderSection>,
    pub models: BTreeMap<String, ModelSection>,
    pub parse: Parse,
    pub profiles: BTreeMap<String, ProfileSection>,
    pub captures: CapturesSection,
    pub chat: Chat,
    pub retention: Retention,
    pub outbox: OutboxSection,
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DatabaseSection {
    pub pool: u32,
    pub coalesce: bool,
    pub data_dir: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CapturesSection {
    pub location: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Anthropic,
    OpenAi,
    Simulated,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ProviderSection {
    pub kind: Option<Kind>,
    pub api_key_env: Option<String>,
    pub routes: Option<Vec<RouteEntry>>,
    pub max_concurrency: Option<u32>,
    #[serde(with = "optional_period")]
    pub slot_wait: Option<Duration>,
    #[serde(with = "optional_period")]
    pub first_byte_timeout: Option<Duration>,
    #[serde(with = "optional_period")]
    pub idle_timeout: Option<Duration>,
    #[serde(with = "optional_period")]
    pub call_timeout: Option<Duration>,
    #[serde(with = "optional_period")]
    pub first_byte_delay: Option<Duration>,
    pub tokens_per_second: Option<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteEntry {
    pub name: String,
    pub base_url: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModelSection {
    pub provider: Option<String>,
    pub upstream: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub temperature: Option<bool>,
    pub images: Option<bool>,
    pub input_usd_per_mtok: Option<Price>,
    pub output_usd_per_mtok: Option<Price>,
    pub cache_read_usd_per_mtok: Option<Price>,
    pub cache_write_usd_per_mtok: Option<Price>,
    pub system: Option<String>,
    pub tiers: Option<Vec<String>>,
    pub max_chars: Option<u32>,
    pub must_match: Option<String>,
    pub json_schema: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ProfileSection {
    pub tool_name: Option<String>,
    pub tool_description: Option<String>,
    /// A JSON Schema as a table, or as JSON text.
    pub schema: Option<toml::Value>,
    pub schema_file: Option<String>,
    pub instructions: Option<String>,
    pub merge: Option<BTreeMap<String, String>>,
    pub content: Option<Vec<String>>,
    pub noun: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OutboxSection {
    pub relay: bool,
    #[serde(with = "period")]
    pub poll: Duration,
    pub batch: u32,
    pub max_attempts: u32,
    #[serde(with = "period")]
    pub give_up_after: Duration,
    pub sinks: Vec<SinkEntry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SinkKind {
    Webhook,
    Nats,
    Stdout,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SinkEntry {
    pub kind: SinkKind,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub url: Option<String>,
    #[serde(default)]
    pub secret_env: Option<String>,
    #[serde(default)]
    pub allow_private: Option<bool>,
    #[serde(default)]
    pub subject: Option<String>,
    #[serde(default, with = "optional_period")]
    pub timeout: Option<Duration>,
}

impl Default for File {
    fn default() -> Self {
        File {
            listen: "127.0.0.1:8080".to_owned(),
            database_url: None,
            database_url_direct: None,
            advertise: None,
            database: DatabaseSection::default(),
            idempotency: Idempotency::default(),
            limits: Limits::default(),
            retry: Retry::default(),
            providers: BTreeMap::new(),
            models: BTreeMap::new(),
            parse: Parse::default(),
            profiles: BTreeMap::new(),
            captures: CapturesSection::default(),
            chat: Chat::default(),
            retention: Retention::default(),
            outbox: OutboxSection::default(),
        }
    }
}

impl Default for OutboxSection {
    fn default() -> Self {
        OutboxSection {
            relay: true,
            poll: Duration::from_millis(100),
            batch: 100,
            max_attempts: 10,
            give_up_after: Duration::from_secs(3_600),
            sinks: Vec::new(),
        }
    }
}

impl Default for DatabaseSection {
    fn default() -> Self {
        DatabaseSection { pool: 16, coalesce: true, data_dir: ".oncekey".to_owned() }
    }
}

impl File {
    /// Every setting there is, with some value of its type; `*` where a name is the operator's.
    /// Without `..`, so that a new field cannot be forgotten here.
    pub(super) fn with_everything() -> File {
        let text = || Some(String::new());
        let provider = ProviderSection {
            kind: Some(Kind::Anthropic),
            api_key_env: text(),
            routes: Some(vec![RouteEntry { name: String::new(), base_url: String::new() }]),
            max_concurrency: Some(1),
            slot_wait: Some(Duration::ZERO),
            first_byte_timeout: Some(Duration::ZERO),
            idle_timeout: Some(Duration::ZERO),
            call_timeout: Some(Duration::ZERO),
            first_byte_delay: Some(Duration::ZERO),
            tokens_per_second: Some(1),
        };
        let model = ModelSection {
            provider: text(),
            upstream: text(),
            max_output_tokens: Some(1),
            temperature: Some(true),
            images: Some(true),
            input_usd_per_mtok: Some(Price::default()),
            output_usd_per_mtok: Some(Price::default()),
            cache_read_usd_per_mtok: Some(Price::default()),
            cache_write_usd_per_mtok: Some(Price::default()),
            system: text(),
            tiers: Some(vec![String::new()]),
            max_chars: Some(1),
            must_match: text(),
            json_schema: text(),
        };
        let profile = ProfileSection {
            tool_name: text(),
            tool_description: text(),
            // Tables of the operator's own names.
            schema: Some(toml::Value::Table(toml::Table::new())),
            merge: Some(BTreeMap::new()),
            schema_file: text(),
            instructions: text(),
            content: Some(vec![String::new()]),
            noun: text(),
        };
        let sink = SinkEntry {
            kind: SinkKind::Stdout,
            name: text(),
            url: text(),
            secret_env: text(),
            allow_private: Some(false),
            subject: text(),
            timeout: Some(Duration::ZERO),
        };
        File {
            database_url: text(),
            database_url_direct: text(),
            advertise: text(),
            providers: BTreeMap::from([("*".to_owned(), provider)]),
            models: BTreeMap::from([("*".to_owned(), model)]),
            profiles: BTreeMap::from([("*".to_owned(), profile)]),
            outbox: OutboxSection { sinks: vec![sink], ..OutboxSection::default() },
            ..File::default()
        }
    }
}
