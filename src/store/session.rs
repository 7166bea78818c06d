//! A session with the server: where it is, how it is opened, and the bounds it sets itself.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tracing::log::LevelFilter;

use super::error::StoreError;

/// A statement that takes longer is logged, without its values.
const SLOW_STATEMENT: Duration = Duration::from_secs(1);

/// Reads an address.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| {
        StoreError::Bug("the database's address is not of the form postgres://…".into())
    })?;
    Ok(options
        .application_name("oncekey")
        .log_statements(LevelFilter::Off)
        .log_slow_statements(LevelFilter::Warn, SLOW_STATEMENT))
}

/// Opens a session. Generic plans, because with partitions the server would plan every call anew; and
/// bounds on what a session of ours can hold up.
pub(super) async fn open(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    sqlx::raw_sql(
        "set plan_cache_mode = force_generic_plan; set lock_timeout = '10s'; \
         set statement_timeout = '30s'; set idle_in_transaction_session_timeout = '20s'; \
         set timezone = 'UTC'",
    )
    .execute(&mut connection)
    .await?;
    Ok(connection)
}
