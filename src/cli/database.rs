//! The database of a command: the one that is named, or the private cluster.

use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::app;
use crate::clock::Clock;
use crate::config::Config;
use crate::postgres::{Cluster, ClusterSettings, start_or_attach};
use crate::store::Store;

#[derive(Args, Clone)]
pub struct Named {
    /// The database, instead of the configured one.
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Where the database is, and the private server if this process runs or uses it.
pub struct Database {
    pub url: String,
    cluster: Option<Cluster>,
}

impl Database {
    /// Starts the private server where no database is named.
    pub async fn open(config: &Config) -> Result<Self, Failure> {
        if let Some(url) = &config.database.url {
            return Ok(Self { url: url.expose().to_owned(), cluster: None });
        }
        let settings = ClusterSettings::new(config.database.data_dir.clone());
        let cluster = blocking(move || start_or_attach(&settings)).await?.map_err(Failure::no)?;
        Ok(Self { url: cluster.connection_url(), cluster: Some(cluster) })
    }

    /// Whether the private server was started just now, by this process.
    pub fn started_here(&self) -> bool {
        self.cluster.as_ref().is_some_and(Cluster::owned)
    }

    /// Where the private cluster lies.
    pub fn private_dir(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.data_dir().display().to_string())
    }

    /// Stops the private server if it was started here.
    pub async fn close(self) -> Result<(), Failure> {
        match self.cluster {
            Some(cluster) => blocking(move || cluster.stop()).await?.map_err(Failure::no),
            None => Ok(()),
        }
    }
}

/// Runs a command's work on a migrated store, and closes all of it.
pub async fn with_store<T, F>(config: &Config, work: impl FnOnce(Store) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let database = Database::open(config).await?;
    let outcome = async {
        let store = app::store(config, &database.url, &Clock::system(), Duration::ZERO)
            .map_err(Failure::no)?;
        store.migrate().await.map_err(Failure::no)?;
        let outcome = work(store.clone()).await;
        store.close().await;
        outcome
    }
    .await;
    database.close().await?;
    outcome
}

/// Runs what blocks on a thread for such work.
#[expect(clippy::disallowed_methods, reason = "awaited at once: a command has no lifecycle")]
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::no)
}
