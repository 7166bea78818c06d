//! The migrations, which are only ever added to.

use std::time::Duration;

use sqlx::Connection;
use sqlx::PgConnection;
use sqlx::migrate::Migrator;

use super::Store;
use super::error::StoreError;
use super::partitions::execute;

static MIGRATOR: Migrator = sqlx::migrate!();

/// The oldest server that has what the migrations and statements use.
const OLDEST_SERVER: i32 = 150_000;

/// A server that takes a connection and says nothing is none of ours.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

impl Store {
    /// Brings the schema up to date; several nodes may do so at once. Needs no pool, so that it also
    /// works where the tables are not there yet.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let connecting = PgConnection::connect_with(&self.direct);
        let mut connection = self
            .clock
            .timeout(CONNECT_LIMIT, connecting)
            .await
            .map_err(|_| StoreError::unavailable("it did not answer in time"))??;
        let version = sqlx::query_scalar::<_, i32>(
            "/* schema.version */ select current_setting('server_version_num')::int",
        )
        .fetch_one(&mut connection)
        .await?;
        if version < OLDEST_SERVER {
            return Err(StoreError::Bug(format!(
                "PostgreSQL 15 or newer is needed; this server is {}",
                version / 10_000
            )));
        }
        // A migration may read a large table, and waits for the one of another node; the role may have
        // bounds for statements behind a pooler.
        execute(&mut connection, "set statement_timeout = 0; set lock_timeout = 0".to_owned())
            .await?;
        MIGRATOR
            .run(&mut connection)
            .await
            .map_err(|error| StoreError::Bug(format!("migration failed: {error}")))?;
        connection.close().await?;
        Ok(())
    }

    /// Whether the role of finance is there and may read what is meant for it.
    pub async fn finance_role(&self) -> Result<bool, StoreError> {
        self.database
            .run("schema.finance_role", |connection| {
                Box::pin(async move {
                    Ok(sqlx::query_scalar!(
                        r#"/* schema.finance_role */
                        select coalesce(has_schema_privilege(to_regrole('oncekey_finance')::oid,
                                'finance', 'usage')
                            and has_table_privilege(to_regrole('oncekey_finance')::oid,
                                'finance.receipts', 'select'), false) as "may!""#
                    )
                    .fetch_one(connection)
                    .await?)
                })
            })
            .await
    }
}
