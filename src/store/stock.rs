//! What every partition holds, for people.

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Row};

use super::error::StoreError;
use super::partitions::Partition;
use super::retire::PartitionSession;
use crate::domain::partition::Contents;

/// A partition with what it holds.
#[derive(Debug, Clone)]
pub struct PartitionStock {
    pub partition: Partition,
    /// Bytes on disk, with indexes and TOAST.
    pub bytes: i64,
    pub rows: i64,
    pub oldest_completion: Option<DateTime<Utc>>,
    pub contents: Contents,
}

impl PartitionSession {
    /// All partitions with what they hold, and the database's time. Reads every record.
    pub async fn stock(&mut self) -> Result<(Vec<PartitionStock>, DateTime<Utc>), StoreError> {
        let mut stock = Vec::new();
        for partition in self.partitions().await? {
            // A name from the catalog, quoted there.
            let sql = format!(
                "/* partitions.stock */
                select count(*) as rows, count(*) filter (where state = 'in_progress') as live,
                    min(completed_at) as oldest, max(completed_at) as newest,
                    pg_total_relation_size($1::text::regclass) as bytes
                from {}",
                partition.table
            );
            let row = sqlx::query(AssertSqlSafe(sql))
                .bind(&partition.table)
                .fetch_one(&mut self.connection)
                .await?;
            stock.push(PartitionStock {
                partition,
                bytes: row.try_get("bytes")?,
                rows: row.try_get("rows")?,
                oldest_completion: row.try_get("oldest")?,
                contents: Contents {
                    live_claims: row.try_get("live")?,
                    newest_completion: row.try_get("newest")?,
                },
            });
        }
        Ok((stock, self.now().await?))
    }
}
