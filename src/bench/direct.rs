//! What is measured without HTTP: the floor of the database, and the claim alone.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::load::{self, Step, Worker};
use super::report::Report;
use super::samples::Contest;
use super::stage::Stage;
use super::workload::{Question, TENANT, random_id};
use super::{BenchError, POOL, Settings, database, seed};
use crate::clock::{BoxFuture, Clock};
use crate::domain::chat::ENDPOINT;
use crate::domain::hash::RequestHash;
use crate::domain::ids::{ConversationId, OperationId, RequestId, TenantId};
use crate::domain::key::{IdempotencyKey, KeySource};
use crate::store::{ClaimOutcome, NewClaim, Store};

/// Commits of one row each.
pub struct Floor {
    pool: PgPool,
    clock: Clock,
}

impl Floor {
    /// A pool for all workers of the floor, with its table.
    pub async fn prepare(url: &str) -> Result<PgPool, BenchError> {
        let pool = pool(url).await?;
        sqlx::raw_sql("create table floor (id uuid primary key, body text not null)")
            .execute(&pool)
            .await?;
        Ok(pool)
    }

    pub fn worker(pool: &PgPool, clock: &Clock) -> Box<dyn Worker> {
        Box::new(Self { pool: pool.clone(), clock: clock.clone() })
    }
}

impl Worker for Floor {
    fn operate(&mut self) -> BoxFuture<'_, Result<Step, BenchError>> {
        Box::pin(async {
            sqlx::query("insert into floor (id, body) values ($1, $2)")
                .bind(random_id(&self.clock))
                .bind("one row, as small as rows are")
                .execute(&self.pool)
                .await?;
            Ok(Step::Done)
        })
    }
}

/// A pool as lean as sqlx has it: a connection is taken without being asked whether it stands.
pub async fn pool(url: &str) -> Result<PgPool, BenchError> {
    let options = PgPoolOptions::new().max_connections(POOL).test_before_acquire(false);
    Ok(options.connect(url).await?)
}

/// Claims of the store, one after the other.
struct Claims {
    store: Store,
    clock: Clock,
}

impl Worker for Claims {
    fn operate(&mut self) -> BoxFuture<'_, Result<Step, BenchError>> {
        Box::pin(async {
            let question = Question::new(&self.clock, "default");
            let new = NewClaim {
                tenant: TenantId::new(TENANT),
                key: IdempotencyKey::made(question.key, KeySource::Client),
                endpoint: ENDPOINT,
                subject: None,
                conversation_id: Some(ConversationId::new(question.conversation)),
                hash: RequestHash([7; 32]),
                operation_id: OperationId(self.clock.new_id()),
                request_id: RequestId(self.clock.new_id()),
            };
            match self.store.claim(new).await? {
                ClaimOutcome::Won(_) => Ok(Step::Done),
                _ => Err(BenchError::failed(
                    "a claim of a new key in a new conversation was not won",
                )),
            }
        })
    }
}

/// Tables of a certain size, under the schema of the product.
struct Tables {
    contest: Contest,
    /// The same, while no page images are written.
    control: Option<Contest>,
    store: Store,
}

impl Tables {
    async fn prepare(
        stage: &Stage,
        contest: Contest,
        name: &str,
        partitions: u32,
        rows: u64,
        tell: &(dyn Fn(&str) + Sync),
    ) -> Result<Self, BenchError> {
        let url = stage.server.make(name).await?;
        let store = database::store(&url, &stage.clock, 1)?;
        store.migrate().await?;
        let mut session = database::session(&url).await?;
        seed::partitions(&mut session, partitions).await?;
        // All but tomorrow's hold something.
        seed::records(&mut session, partitions - 1, rows, tell).await?;
        let control = match contest {
            Contest::ClaimFewRows => Some(Contest::ClaimFewNoImages),
            Contest::ClaimManyRows => Some(Contest::ClaimManyNoImages),
            _ => None,
        };
        Ok(Self { contest, control, store })
    }
}

/// Does a claim cost the same with many rows as with few, and with many partitions as with two?
pub async fn compare_claims(
    stage: &Stage,
    settings: &Settings,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    let few = settings.rows.min(FEW_ROWS);
    tell(&format!("claims among {few} and {} rows, with 2 and 9 partitions", settings.rows));
    let tables = [
        Tables::prepare(stage, Contest::ClaimFewPartitions, "claims_p2", 2, few, tell).await?,
        Tables::prepare(stage, Contest::ClaimFewRows, "claims_p9", 9, few, tell).await?,
        Tables::prepare(stage, Contest::ClaimManyRows, "claims_rows", 9, settings.rows, tell)
            .await?,
    ];
    stage.server.settle().await;
    let length = settings.length.min(CLAIMS_LENGTH);
    for table in &tables {
        // Plans, caches and connections are there before anything is counted.
        load::run(&stage.clock, worker(table, &stage.clock), length / 4).await?;
    }
    for _ in 0..settings.repetitions {
        take_turns(stage, report, &tables, length, |table| Some(table.contest)).await?;
        // Is it the number of rows that costs, or that a claim among many changes pages that none
        // has changed since the checkpoint? Once more, without the images of those.
        if stage.server.page_images(false).await? {
            take_turns(stage, report, &tables, length, |table| table.control).await?;
            stage.server.page_images(true).await?;
        }
    }
    for table in tables {
        table.store.close().await;
    }
    Ok(())
}

/// Short loads that take turns: what else the machine does meets all tables.
async fn take_turns(
    stage: &Stage,
    report: &mut Report,
    tables: &[Tables],
    length: Duration,
    contest: impl Fn(&Tables) -> Option<Contest>,
) -> Result<(), BenchError> {
    for _ in 0..TURNS {
        for table in tables {
            let Some(contest) = contest(table) else { continue };
            let sample = stage.measure(None, worker(table, &stage.clock), length).await?;
            report.add(contest, 1, sample);
        }
    }
    Ok(())
}

const FEW_ROWS: u64 = 10_000;
/// Long enough for hundreds of claims, and short enough that few rows stay few.
const CLAIMS_LENGTH: Duration = Duration::from_millis(250);
/// Turns of each table in a repetition.
const TURNS: usize = 3;

fn worker(table: &Tables, clock: &Clock) -> Vec<Box<dyn Worker>> {
    claims(&table.store, clock, 1)
}

/// So many clients that claim, one key after the other each.
pub fn claims(store: &Store, clock: &Clock, clients: usize) -> Vec<Box<dyn Worker>> {
    let one =
        |_| -> Box<dyn Worker> { Box::new(Claims { store: store.clone(), clock: clock.clone() }) };
    (0..clients).map(one).collect()
}
