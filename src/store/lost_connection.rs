//! Commits that lose their connection because a fault was asked for. The server ends the session for
//! real, at its own request, so that all that follows is what a broken network brings.

use sqlx::PgConnection;

use super::error::StoreError;
use crate::faults::{Fault, Faults};

/// Before the commit is sent: whatever is sent next finds the connection gone.
pub(super) async fn before_commit(faults: &Faults, connection: &mut PgConnection) {
    if faults.take(Fault::DatabaseCutBeforeCommit) {
        // That this goes wrong is the purpose; the commit meets the same.
        let _ = end_session(connection).await;
    }
}

/// After the commit has taken effect: the error in which its answer is lost.
pub(super) async fn after_commit(
    faults: &Faults,
    connection: &mut PgConnection,
) -> Result<(), StoreError> {
    if faults.take(Fault::DatabaseCutAfterCommit) {
        end_session(connection).await?;
        return Err(StoreError::unavailable("the session was to end, and did not"));
    }
    Ok(())
}

async fn end_session(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("/* commit.lose_connection */ select pg_terminate_backend(pg_backend_pid())")
        .execute(connection)
        .await?;
    Ok(())
}
