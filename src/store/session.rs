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

/// What every session of ours is set to.
///
/// Generic plans, because with partitions the server would plan every call anew. Such a plan is kept,
/// and may have been made while the tables were empty: then reading a whole table looks as cheap as
/// an index, and goes on when it has become a large one, until the server has counted its rows (more
/// than 1 ms a commit at ten thousand conversations). All statements here look rows up by their keys,
/// so whole tables are not offered; and no plan is compiled: what is not offered counts as endlessly
/// dear, and where there is nothing else (a table of one row without an index) the server would take
/// it for worth compiling. The rest bounds what a session can hold up.
pub const SESSION_SETTINGS: &str = "set plan_cache_mode = force_generic_plan; \
     set enable_seqscan = off; set jit = off; set lock_timeout = '10s'; \
     set statement_timeout = '30s'; set idle_in_transaction_session_timeout = '20s'; \
     set timezone = 'UTC'";

/// Opens a session.
pub(super) async fn open(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    sqlx::raw_sql(SESSION_SETTINGS).execute(&mut connection).await?;
    Ok(connection)
}
