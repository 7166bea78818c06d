//! Inputs that are refused from memory. They are written where a run ends and read where one is
//! claimed; here they are forgotten.

use super::Store;
use super::error::StoreError;

impl Store {
    /// Forgets inputs whose time is over. Returns how many.
    pub async fn forget_refused_inputs(&self) -> Result<u64, StoreError> {
        self.database
            .run("refused.forget", |connection| {
                Box::pin(async move {
                    let forgotten = sqlx::query!(
                        "/* refused.forget */
                        delete from refused_inputs where until < clock_timestamp()"
                    )
                    .execute(connection)
                    .await?;
                    Ok(forgotten.rows_affected())
                })
            })
            .await
    }
}
