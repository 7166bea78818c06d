//! A whole node in the test's own process, on a real port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oncekey::app::{App, Setup};
use oncekey::clock::Clock;
use oncekey::config::{Config, Environment, Overrides};
use oncekey::domain::api_key::ApiKey;
use oncekey::domain::ids::{ApiKeyId, TenantId};
use oncekey::faults::Faults;
use oncekey::store::{NewApiKey, Store};

use super::client::Client;
use super::database::{TestDatabase, coalesces};
use super::provider::{ScriptedProvider, Wire};

/// How a node differs from the usual one.
#[derive(Clone)]
pub struct NodeOptions {
    /// Configuration as variables; later ones win.
    pub variables: Vec<(String, String)>,
    pub clock: Clock,
    pub faults: Faults,
    pub clock_offset: Duration,
    /// Another way to the database than straight.
    pub database_url: Option<String>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            variables: Vec::new(),
            clock: Clock::system(),
            faults: Faults::none(),
            clock_offset: Duration::ZERO,
            database_url: None,
        }
    }
}

impl NodeOptions {
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }
}

/// The variables that point a node at a scripted provider, with prices and quick back-off.
pub fn provider_variables(provider: &ScriptedProvider, wire: Wire) -> Vec<(String, String)> {
    let kind = match wire {
        Wire::Anthropic => "anthropic",
        Wire::OpenAi => "openai",
    };
    let route = format!("[{{ name = \"direct\", base_url = \"{}\" }}]", provider.base_url(wire));
    [
        ("ONCEKEY_LISTEN", "127.0.0.1:0"),
        ("ONCEKEY_PROVIDERS__MAIN__KIND", kind),
        ("ONCEKEY_PROVIDERS__MAIN__API_KEY_ENV", "TEST_PROVIDER_KEY"),
        ("TEST_PROVIDER_KEY", "sk-test-0123456789"),
        ("ONCEKEY_PROVIDERS__MAIN__ROUTES", &route),
        ("ONCEKEY_MODELS__DEFAULT__PROVIDER", "main"),
        ("ONCEKEY_MODELS__DEFAULT__UPSTREAM", "fake-model-1"),
        ("ONCEKEY_MODELS__DEFAULT__INPUT_USD_PER_MTOK", "1.0"),
        ("ONCEKEY_MODELS__DEFAULT__OUTPUT_USD_PER_MTOK", "5.0"),
        ("ONCEKEY_MODELS__DEFAULT__CACHE_READ_USD_PER_MTOK", "0.1"),
        ("ONCEKEY_MODELS__DEFAULT__CACHE_WRITE_USD_PER_MTOK", "1.25"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// Where the nodes of this test process keep uploads.
pub fn captures_folder() -> String {
    format!("{}/captures-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id())
}

/// What a node is built from.
pub fn setup(
    database: &TestDatabase,
    mut variables: Vec<(String, String)>,
    options: NodeOptions,
) -> Setup {
    variables.extend(options.variables);
    // Uploads of tests lie beside what else they make.
    let captures = ("ONCEKEY_CAPTURES__LOCATION".to_owned(), captures_folder());
    variables.insert(0, captures);
    if !coalesces() {
        variables.insert(0, ("ONCEKEY_DATABASE__COALESCE".to_owned(), "false".to_owned()));
    }
    let environment: Environment = variables.into_iter().collect();
    let config = Config::load(None, &environment, &Overrides::default()).unwrap();
    Setup {
        config,
        database_url: options.database_url.unwrap_or_else(|| database.url.clone()),
        clock: options.clock,
        faults: options.faults,
        clock_offset: options.clock_offset,
        alone: false,
        render_metrics: Arc::new(String::new),
        program: env!("CARGO_BIN_EXE_oncekey").into(),
    }
}

/// A running node; shut it down at the end of a test.
pub struct TestNode {
    app: App,
}

impl TestNode {
    /// A node with the anthropic wire form.
    pub async fn start(
        database: &TestDatabase,
        provider: &ScriptedProvider,
        options: NodeOptions,
    ) -> Self {
        Self::start_with(database, provider_variables(provider, Wire::Anthropic), options).await
    }

    pub async fn start_with(
        database: &TestDatabase,
        variables: Vec<(String, String)>,
        options: NodeOptions,
    ) -> Self {
        Self { app: App::start(setup(database, variables, options)).await.unwrap() }
    }

    pub fn address(&self) -> SocketAddr {
        self.app.address()
    }

    pub fn app(&self) -> &App {
        &self.app
    }

    pub fn store(&self) -> &Store {
        self.app.store()
    }

    /// A client with a new key of role `client` for this tenant.
    pub async fn client(&self, tenant: &str) -> Client {
        self.client_as(tenant, "client", None).await
    }

    pub async fn client_as(&self, tenant: &str, role: &str, subject: Option<&str>) -> Client {
        let key = new_key(self.store(), tenant, role, subject).await;
        Client::new(self.address(), &key)
    }

    /// Drains and ends; `true` where nothing had to be cut.
    pub async fn shut_down(self) -> bool {
        self.app.shut_down(std::future::pending()).await
    }
}

/// A new API key.
pub async fn new_key(store: &Store, tenant: &str, role: &str, subject: Option<&str>) -> String {
    let clock = Clock::system();
    let key = ApiKey::from_secret(clock.secret());
    let row = NewApiKey {
        tenant: TenantId::new(tenant),
        id: ApiKeyId(clock.new_id()),
        hash: key.hash(),
        role: role.to_owned(),
        subject: subject.map(str::to_owned),
    };
    store.insert_api_key(row).await.unwrap();
    key.reveal().to_owned()
}

/// Fails where a database breaks an invariant.
pub async fn assert_clean(store: &Store) {
    for invariant in oncekey::store::INVARIANTS {
        let findings = store.broken(invariant, None).await.unwrap();
        assert!(findings.is_empty(), "{} is broken: {findings:?}", invariant.name);
    }
}
