//! The database of a command: the one that is named, or the private cluster.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::app;
use crate::clock::Clock;
use crate::config::Config;
use crate::faults::{Fault, Plan};
use crate::lifecycle::Lifecycle;
use crate::postgres::{Cluster, ClusterSettings, PostgresError, start_or_attach};
use crate::store::{Store, StoreError};

/// Between two looks at whether the private server still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Args, Clone)]
pub struct Named {
    /// The database, instead of the configured one.
    #[arg(long, global = true, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Where the database is, and the private server if this process runs or uses it.
pub struct Database {
    pub url: String,
    private: Option<Private>,
}

/// The private server; clones are one and the same.
#[derive(Clone)]
struct Private {
    settings: ClusterSettings,
    /// Absent only between an end of the server and its next start.
    cluster: Arc<Mutex<Option<Cluster>>>,
}

impl Database {
    /// Starts the private server where no database is named.
    pub async fn open(config: &Config) -> Result<Self, Failure> {
        if let Some(url) = &config.database.url {
            return Ok(Self { url: url.expose().to_owned(), private: None });
        }
        let settings = ClusterSettings::new(config.database.data_dir.clone());
        let private = Private { settings, cluster: Arc::default() };
        let starting = private.clone();
        let url = blocking(move || starting.start()).await?.map_err(Failure::no)?;
        Ok(Self { url, private: Some(private) })
    }

    /// Whether the private server was started just now, by this process.
    pub fn started_here(&self) -> bool {
        self.private.as_ref().is_some_and(|private| private.is(Cluster::owned))
    }

    /// Where the private cluster lies.
    pub fn private_dir(&self) -> Option<String> {
        let private = self.private.as_ref()?;
        private.lock().as_ref().map(|cluster| cluster.data_dir().display().to_string())
    }

    /// Keeps the private server up until the process is over: one that ends, or whose owner does (a
    /// command that was done before this process was), is started again, at the same address.
    pub fn tend(&self, lifecycle: &Lifecycle, clock: &Clock) {
        let Some(private) = self.private.clone() else { return };
        let (over, clock) = (lifecycle.clone(), clock.clone());
        lifecycle.spawn(async move {
            loop {
                tokio::select! {
                    () = over.over() => return,
                    () = clock.sleep(LOOK_EVERY) => {}
                }
                if private.is(Cluster::stands) {
                    continue;
                }
                let starting = private.clone();
                match blocking(move || starting.start()).await {
                    Ok(Ok(_)) => tracing::warn!(
                        event = "private_postgres",
                        owned = private.is(Cluster::owned),
                        "the private PostgreSQL had ended; there is one again"
                    ),
                    Ok(Err(error)) => {
                        tracing::error!(event = "private_postgres", %error, "it does not start");
                    }
                    Err(_) => return,
                }
            }
        });
    }

    /// Stops the private server if it was started here.
    pub async fn close(self) -> Result<(), Failure> {
        let Some(private) = self.private else { return Ok(()) };
        let cluster = private.lock().take();
        match cluster {
            Some(cluster) => blocking(move || cluster.stop()).await?.map_err(Failure::no),
            None => Ok(()),
        }
    }
}

impl Private {
    /// Starts or attaches; the server's address, which is always the same one.
    fn start(&self) -> Result<String, PostgresError> {
        // What is left of the one before gives the folder back.
        drop(self.lock().take());
        let cluster = start_or_attach(&self.settings)?;
        let url = cluster.connection_url();
        *self.lock() = Some(cluster);
        Ok(url)
    }

    fn is(&self, quality: impl FnOnce(&Cluster) -> bool) -> bool {
        self.lock().as_ref().is_some_and(quality)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Cluster>> {
        // A cluster is there or not, whatever panicked meanwhile.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a command has no database, and what can be done about it.
pub fn no_database(config: &Config, error: StoreError) -> Failure {
    match (&error, &config.database.url) {
        (StoreError::Unavailable(_), Some(url)) => Failure::No(format!(
            "{error}; check the one at {url}, or name another with --database-url or in DATABASE_URL"
        )),
        _ => Failure::no(error),
    }
}

/// Runs a command's work on a migrated store, and closes all of it.
pub async fn with_store<T, F>(config: &Config, work: impl FnOnce(Store) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let offset = fault_plan()?.duration(Fault::ClockOffset);
    let database = Database::open(config).await?;
    let outcome = async {
        let offset = offset.unwrap_or_default();
        let store =
            app::store(config, &database.url, &Clock::system(), offset).map_err(Failure::no)?;
        store.migrate().await.map_err(|error| no_database(config, error))?;
        let outcome = work(store.clone()).await;
        store.close().await;
        outcome
    }
    .await;
    database.close().await?;
    outcome
}

/// What this process is asked to do wrong.
pub fn fault_plan() -> Result<Plan, Failure> {
    // What is no text is no value either, and is refused as one.
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    Plan::read(variables).map_err(Failure::Usage)
}

/// Runs what blocks on a thread for such work.
#[expect(clippy::disallowed_methods, reason = "awaited at once: a command has no lifecycle")]
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::no)
}
