//! All SQL of the product. Each function is one transaction with a name; what was decided on the facts
//! read here is decided in `domain`, and written back here under the guard of those facts.

mod api_keys;
mod audit;
mod calls;
mod cancel;
mod captures;
mod claim;
mod cleaning;
mod coalesce;
mod commit;
mod connection;
mod conversations;
mod derived;
mod erase;
mod erase_subject;
mod error;
mod event_shares;
mod fail;
mod first_claim;
mod lease;
mod lost_connection;
mod nodes;
mod outbox;
mod outbox_letters;
mod owner;
mod parse;
mod partitions;
mod pool;
mod prices;
mod reclaim;
mod reconcile;
mod record;
mod refused;
mod retention;
mod retire;
mod schema;
mod session;
mod stock;
mod usage;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

pub use api_keys::{ApiKeyRow, KnownKey, NewApiKey};
pub use audit::{Finding, INVARIANTS, Invariant, Kept};
pub use calls::KeptCall;
pub use captures::Capture;
pub use claim::{Claim, ClaimOutcome, NewClaim};
pub use cleaning::{Cleaned, Cleaning};
pub use commit::{CallRow, ChatCommit, CommitOutcome, CommitTrace};
pub use connection::Database;
pub use conversations::{TurnPage, TurnRow};
pub use erase::Deletion;
pub use erase_subject::{ErasedConversation, Erasing, RecordsStep, RunningOperation};
pub use error::StoreError;
pub use event_shares::SharesHeld;
pub use fail::Failure;
pub use lease::Holder;
pub use nodes::{Beat, BeatingRun, NodeSession, Registration};
pub use outbox::{EventRefusal, EventsAsked, OutboxStanding, WaitingEvent};
pub use outbox_letters::{EventRow, Redriven};
pub use owner::RunOwner;
pub use parse::{DoneChunk, KeptChunk, PaidCall, ParseCommit};
pub use partitions::{DAYS_AHEAD, Partition, Runway, Standing, partition_name};
pub use prices::PricedModel;
pub use reclaim::{Counting, ReclaimOutcome};
pub use reconcile::{ReceiptCheck, Span};
pub use retention::{OfOperation, OldCapture, TurnsPlace, TurnsStep};
pub use retire::{Dropping, PartitionSession, Reader};
pub use session::SESSION_SETTINGS;
pub use stock::PartitionStock;

use self::coalesce::Coalescers;
use crate::clock::Clock;
use crate::domain::ids::{NodeId, TenantId};
use crate::domain::liveness::LivenessRules;
use crate::domain::record::Record;
use crate::faults::Faults;

/// What the store is built from.
#[derive(Clone)]
pub struct StoreSettings {
    /// `postgres://…`, for the pool.
    pub url: String,
    /// For the node's session, which must not pass through a pooler; none where `url` does not.
    pub direct_url: Option<String>,
    pub pool_size: u32,
    /// Whether claims, commits and look-ups that come at once travel together.
    pub coalesce: bool,
    pub liveness: LivenessRules,
    /// Added to the database's clock wherever a day or a retention is computed; zero but in tests.
    pub clock_offset: Duration,
}

/// The database as the rest of the product sees it. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    database: Database,
    direct: Arc<PgConnectOptions>,
    clock: Clock,
    liveness: LivenessRules,
    clock_offset: PgInterval,
    node: Arc<AtomicI32>,
    faults: Faults,
    /// None where each statement is sent by itself.
    coalescers: Option<Arc<Coalescers>>,
}

impl Store {
    /// Opens no connection yet. The error says what is wrong with an address, not the address.
    pub fn new(settings: StoreSettings, clock: Clock) -> Result<Self, StoreError> {
        let pool = session::options(&settings.url)?;
        let direct = settings.direct_url.as_deref().map(session::options).transpose()?;
        let direct = direct.unwrap_or_else(|| pool.clone());
        Ok(Self {
            database: Database::new(pool, settings.pool_size, clock.clone())?,
            direct: Arc::new(direct),
            clock,
            liveness: settings.liveness,
            clock_offset: interval(settings.clock_offset),
            node: Arc::new(AtomicI32::new(0)),
            faults: Faults::none(),
            coalescers: settings.coalesce.then(Arc::default),
        })
    }

    /// The same store, whose commits meet these faults.
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The id under which this process claims; 0 before the first registration, which no node has.
    pub fn node(&self) -> NodeId {
        NodeId(self.node.load(Ordering::Acquire))
    }

    /// From now on this process claims under `node`.
    pub fn set_node(&self, node: NodeId) {
        self.node.store(node.0, Ordering::Release);
    }

    pub fn liveness_rules(&self) -> LivenessRules {
        self.liveness
    }

    /// The record under a key, with its stored answer.
    pub async fn record(&self, tenant: TenantId, key: Uuid) -> Result<Option<Record>, StoreError> {
        self.database
            .run("record.read", move |connection| {
                let tenant = tenant.clone();
                Box::pin(async move {
                    let row = record::read(connection, &tenant, key, true).await?;
                    Ok(row.and_then(|row| row.record))
                })
            })
            .await
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.database
            .run("ping", |connection| {
                Box::pin(async move {
                    sqlx::query!(r#"/* ping */ select 1 as "one!""#).fetch_one(connection).await?;
                    Ok(())
                })
            })
            .await
    }

    /// Waits for statements in progress, then closes every connection.
    pub async fn close(&self) {
        self.database.close().await;
    }

    fn stale_after_interval(&self) -> PgInterval {
        interval(self.liveness.stale_after)
    }
}

/// A duration as PostgreSQL takes it; one beyond 290,000 years stops there.
fn interval(duration: Duration) -> PgInterval {
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    PgInterval { months: 0, days: 0, microseconds }
}
