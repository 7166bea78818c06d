//! Uploads as they came, kept before anything is spent on them: whatever goes wrong later, the file
//! is there to be looked at and parsed once more.
//!
//! A capture lies under its tenant and its own id, in a folder or a bucket that the configuration
//! names. What is kept of it in the database is its place *within* the store, so that a folder can be
//! moved, or copied into a bucket, and nothing has to be written anew.

mod place;

use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use url::Url;
use uuid::Uuid;

use crate::domain::ids::TenantId;

/// One request to a bucket, with its answer. A body of 10 MiB goes at 350 kB/s.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Buckets answer 503 to a request now and then and want it once more. Whatever takes longer is the
/// operation's to repeat.
const RETRIES: usize = 2;

/// The store of captures; clones are one and the same.
#[derive(Clone)]
pub struct Captures {
    store: Arc<dyn ObjectStore>,
    /// The same as `store`, where that is a folder.
    folder: Option<Arc<LocalFileSystem>>,
}

impl fmt::Debug for Captures {
    /// Without what the store says of itself: there may be credentials in it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Captures").finish_non_exhaustive()
    }
}

/// Why a capture was not kept or found.
#[derive(Debug, thiserror::Error)]
pub enum CapturesError {
    #[error("captures cannot be kept in {location:?}: {problem}")]
    Location { location: String, problem: String },
    #[error("there is no capture at {location:?}: it was deleted, or the store is another one")]
    Missing { location: String },
    #[error("the store of captures: {problem}")]
    Store {
        problem: String,
        /// Whether the same is worth trying again by machine: no, where permissions or settings
        /// must be mended first.
        passing: bool,
    },
}

impl CapturesError {
    /// Whether waiting helps.
    pub fn is_passing(&self) -> bool {
        matches!(self, CapturesError::Store { passing: true, .. })
    }
}

impl Captures {
    /// `location`: a folder, made where it is missing; or `s3://bucket/prefix`, with the account and
    /// endpoint that the variables `AWS_…` name, as for any program.
    ///
    /// # Errors
    /// [`CapturesError::Location`]. A bucket is not asked for: that shows at the first capture.
    pub fn open(location: &str) -> Result<Captures, CapturesError> {
        let wrong =
            |problem: String| CapturesError::Location { location: location.to_owned(), problem };
        match Url::parse(location) {
            Ok(url) if url.scheme() == "s3" && url.host_str().is_none_or(str::is_empty) => {
                Err(wrong("it names no bucket".to_owned()))
            }
            Ok(url) if url.scheme() == "s3" => {
                bucket(&url).map_err(|error| wrong(error.to_string()))
            }
            Ok(url) if location.contains("://") => {
                Err(wrong(format!("{} is neither a folder nor s3", url.scheme())))
            }
            Ok(_) | Err(_) => folder(FilePath::new(location)).map_err(wrong),
        }
    }

    /// Keeps the bytes and says where, as it stands in `captures.location`. When it is ready, they
    /// are on the disk or in the bucket, and whole.
    ///
    /// # Errors
    /// [`CapturesError::Store`].
    pub async fn put(
        &self,
        tenant: &TenantId,
        capture: Uuid,
        bytes: Bytes,
    ) -> Result<String, CapturesError> {
        let place = place::of(tenant, capture);
        self.store.put(&place, bytes.into()).await.map_err(|error| failed(error, &place))?;
        if let Some(folder) = &self.folder {
            make_private(folder, &place);
        }
        Ok(place.to_string())
    }

    /// The bytes that were kept there.
    ///
    /// # Errors
    /// [`CapturesError::Missing`], [`CapturesError::Store`].
    pub async fn get(&self, location: &str) -> Result<Bytes, CapturesError> {
        let place = place::read(location)?;
        let read = async { self.store.get(&place).await?.bytes().await };
        read.await.map_err(|error| failed(error, &place))
    }

    /// Deletes what was kept under this name, whether or not it was written down where.
    ///
    /// # Errors
    /// [`CapturesError::Store`].
    pub async fn delete_stored(
        &self,
        tenant: &TenantId,
        capture: Uuid,
    ) -> Result<(), CapturesError> {
        self.delete(place::of(tenant, capture).as_ref()).await
    }

    /// Deletes what was kept there; that there is nothing is as good.
    ///
    /// # Errors
    /// [`CapturesError::Store`].
    pub async fn delete(&self, location: &str) -> Result<(), CapturesError> {
        let place = place::read(location)?;
        match self.store.delete(&place).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error, &place)),
        }
    }
}

fn folder(folder: &FilePath) -> Result<Captures, String> {
    // An existing folder keeps the permissions that somebody gave it.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| error.to_string())?;
    let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| error.to_string())?;
    let store = Arc::new(store.with_fsync(true));
    Ok(Captures { store: store.clone(), folder: Some(store) })
}

fn bucket(url: &Url) -> Result<Captures, object_store::Error> {
    // The first to need TLS installs it; all install the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let prefix = Path::from_url_path(url.path())?;
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES,
        retry_timeout: REQUEST_LIMIT,
    };
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(url.host_str().unwrap_or_default())
        .with_retry(retry)
        .with_client_options(ClientOptions::new().with_timeout(REQUEST_LIMIT))
        .build()?;
    Ok(Captures { store: Arc::new(PrefixStore::new(store, prefix)), folder: None })
}

/// For the owner of the process alone, also where the folder around it is open to others. Failing at
/// it loses no capture, and shows in the log.
fn make_private(folder: &LocalFileSystem, place: &Path) {
    let made = folder.path_to_filesystem(place).map_err(std::io::Error::other).and_then(|file| {
        std::fs::set_permissions(&file, Permissions::from_mode(0o600))?;
        file.parent().map_or(Ok(()), |tenant| {
            std::fs::set_permissions(tenant, Permissions::from_mode(0o700))
        })
    });
    if let Err(error) = made {
        tracing::warn!(event = "capture_open", %error, "a capture may be read by other users");
    }
}

fn failed(error: object_store::Error, place: &Path) -> CapturesError {
    use object_store::Error;
    let passing = match &error {
        Error::NotFound { .. } => return CapturesError::Missing { location: place.to_string() },
        Error::Generic { .. } | Error::JoinError { .. } => !is_forbidden(&error),
        _ => false,
    };
    CapturesError::Store { problem: error.to_string(), passing }
}

/// Whether the system said that it may not be: a folder of somebody else's, a disk for reading only.
fn is_forbidden(error: &object_store::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    let causes =
        std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    causes
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| matches!(cause.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory))
}

#[cfg(test)]
mod tests;
