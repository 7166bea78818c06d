//! Old days: what letting a day go takes, beside deleting its rows, what claims feel of it meanwhile, and
//! how the tables stand after many days.

use std::time::Duration;

use chrono::{Days as CalendarDays, NaiveDate};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::oneshot;

use super::days_report::{Days, Felt, Going, Sizes};
use super::load::Load;
use super::report::Report;
use super::stage::Stage;
use super::workload::TENANT;
use super::{BenchError, Settings, database, direct, load, seed};
use crate::background::clear_keys;
use crate::domain::partition::DropRule;
use crate::store::{Dropping, PartitionSession, Store, partition_name};

/// Claims that are made while a day goes, one after the other each.
const CLIENTS: usize = 4;
/// Of the claims that nothing disturbs.
const QUIET: Duration = Duration::from_secs(5);
/// Rows of one statement.
const BATCH: u64 = 100_000;
/// Days of the simulation, how many of them stand at once, and the part of a day's rows that each has.
const SIMULATED: u64 = 14;
const STANDING: u64 = 2;
const PART: u64 = 20;
/// Attempts at a day that somebody holds; nobody but the claims does.
const ATTEMPTS: usize = 100;
/// Derived keys are none of this; none is so old.
const NO_DERIVED: Duration = Duration::from_secs(365 * 86_400);

/// The table without partitions that rows are deleted from.
const FLAT: &str = "flat_records";

/// Measures how a day goes.
pub async fn measure(
    stage: &Stage,
    settings: &Settings,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    let rows = settings.day_rows;
    let mut measured =
        Days { rows, simulated: SIMULATED, simulated_rows: rows / PART, ..Days::default() };
    for round in 1..=settings.repetitions {
        tell(&format!("a day of {rows} rows, round {round} of {}", settings.repetitions));
        let scene = Scene::set(stage, &format!("days_{round}"), settings).await?;
        measured.quiet.push(scene.quiet().await?);
        scene.drop_and_clear(&mut measured).await?;
        scene.delete(&mut measured).await?;
        scene.store.close().await;
    }
    tell(&format!("{SIMULATED} days of {} rows", rows / PART));
    measured.partitioned = simulate(stage, rows / PART, Way::Partitions).await?;
    measured.flat = simulate(stage, rows / PART, Way::Delete).await?;
    report.days = Some(measured);
    Ok(())
}

/// A database with an old day in partitions, and the same rows in a table of their own.
struct Scene<'a> {
    stage: &'a Stage,
    store: Store,
    url: String,
    day: NaiveDate,
    rows: u64,
}

impl<'a> Scene<'a> {
    async fn set(stage: &'a Stage, name: &str, settings: &Settings) -> Result<Self, BenchError> {
        let url = stage.server.make(name).await?;
        let store = database::store(&url, &stage.clock, CLIENTS as u32)?;
        store.migrate().await?;
        let mut session = database::session(&url).await?;
        seed::partitions(&mut session, 2).await?;
        let day = today(&mut session).await? - CalendarDays::new(3);
        make_day(&mut session, day).await?;
        flat(&mut session).await?;
        for table in ["request_records", FLAT] {
            a_day(&mut session, table, day, settings.day_rows).await?;
        }
        sqlx::raw_sql("vacuum analyze").execute(&mut session).await?;
        stage.server.settle().await;
        Ok(Self { stage, store, url, day, rows: settings.day_rows })
    }

    async fn quiet(&self) -> Result<Felt, BenchError> {
        let workers = direct::claims(&self.store, &self.stage.clock, CLIENTS);
        Ok(felt(&load::run(&self.stage.clock, workers, QUIET).await?))
    }

    /// Lets claims go on until the work is done.
    async fn beside_claims(
        &self,
        work: impl Future<Output = Result<(), BenchError>>,
    ) -> Result<Going, BenchError> {
        let (done, is_done) = oneshot::channel();
        let workers = direct::claims(&self.store, &self.stage.clock, CLIENTS);
        let clock = &self.stage.clock;
        let claims = load::until(clock, workers, is_done);
        let work = async {
            let outcome = self.stage.while_doing(work).await;
            // The claims hear of it, or have failed.
            let _ = done.send(());
            outcome
        };
        let (claims, outcome) = tokio::join!(claims, work);
        let (outcome, taken) = outcome?;
        outcome?;
        Ok(Going {
            seconds: taken.elapsed.as_secs_f64(),
            // With that of the claims meanwhile.
            wal_bytes: taken.wal_bytes,
            felt: felt(&claims?),
            foreign_cpus: taken.foreign_cpus,
        })
    }

    async fn drop_and_clear(&self, measured: &mut Days) -> Result<(), BenchError> {
        let mut partitions = self.store.partition_session().await?;
        let dropping = self.beside_claims(drop_day(&mut partitions, self.day));
        measured.dropping.push(dropping.await?);
        let clearing = self.beside_claims(async {
            let cleared = clear_keys(&mut partitions, NO_DERIVED).await?;
            if cleared.keys == self.rows {
                return Ok(());
            }
            Err(BenchError::failed(format!("{} of {} keys were cleared", cleared.keys, self.rows)))
        });
        measured.clearing.push(clearing.await?);
        Ok(())
    }

    async fn delete(&self, measured: &mut Days) -> Result<(), BenchError> {
        let mut session = database::session(&self.url).await?;
        let deleting = self.beside_claims(delete_day(&mut session, self.day));
        measured.deleting.push(deleting.await?);
        Ok(())
    }
}

fn felt(load: &Load) -> Felt {
    Felt {
        claims: load.operations(),
        p50_ms: load.quantile(0.5).as_secs_f64() * 1e3,
        p99_ms: load.quantile(0.99).as_secs_f64() * 1e3,
        longest_ms: load.quantile(1.0).as_secs_f64() * 1e3,
    }
}

async fn today(session: &mut PgConnection) -> Result<NaiveDate, BenchError> {
    Ok(sqlx::query_scalar("select (clock_timestamp() at time zone 'UTC')::date")
        .fetch_one(session)
        .await?)
}

/// The partition of a day.
async fn make_day(session: &mut PgConnection, day: NaiveDate) -> Result<(), BenchError> {
    let (name, next) = (partition_name(day), day + CalendarDays::new(1));
    // Built from dates.
    let statement = format!(
        "create table {name} partition of request_records
            for values from ('{day}') to ('{next}') with (fillfactor = 70)"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(session).await?;
    Ok(())
}

/// The records as one table, with what finds the rows of a day.
async fn flat(session: &mut PgConnection) -> Result<(), BenchError> {
    let statement = format!(
        "create table {FLAT} (like request_records including all) with (fillfactor = 70);
        create index on {FLAT} (day)"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(session).await?;
    Ok(())
}

/// The records of a day as their life left them: claimed, then committed; and their keys.
async fn a_day(
    session: &mut PgConnection,
    table: &str,
    day: NaiveDate,
    rows: u64,
) -> Result<(), BenchError> {
    // Keys of the table without partitions are in the same table of keys only where nothing else is.
    let keys = if table == FLAT {
        ""
    } else {
        "keys as (insert into request_keys (tenant_id, idempotency_key, day)
            select $1, key, $2 from made),"
    };
    let claim = format!(
        "with made as materialized (select gen_random_uuid() as key from generate_series(1, $3)),
        {keys}
        rest as (select 1)
        insert into {table} (tenant_id, idempotency_key, day, operation_id, key_source, endpoint,
            conversation_id, request_hash, owner, request_id)
        select $1, key, $2, gen_random_uuid(), 'client', 'chat', key::text,
            decode(repeat('5a', 32), 'hex'), 0, gen_random_uuid()
        from made"
    );
    let commit = format!(
        "update {table} set state = 'committed', turn_id = gen_random_uuid(), response_status = 200,
            response = convert_to(repeat('answer ', 50), 'UTF8'),
            completed_at = $1::date + interval '12 hours'
        where day = $1 and state = 'in_progress'"
    );
    let mut made = 0;
    while made < rows {
        let batch = BATCH.min(rows - made);
        sqlx::query(AssertSqlSafe(claim.clone()))
            .bind(TENANT)
            .bind(day)
            .bind(i64::try_from(batch).unwrap_or(i64::MAX))
            .execute(&mut *session)
            .await?;
        sqlx::query(AssertSqlSafe(commit.clone())).bind(day).execute(&mut *session).await?;
        made += batch;
    }
    Ok(())
}

/// As the keeper drops it.
async fn drop_day(session: &mut PartitionSession, day: NaiveDate) -> Result<(), BenchError> {
    let rule = DropRule::of(Duration::from_secs(3_600));
    if !session.alone().await? {
        return Err(BenchError::failed("somebody else drops days here"));
    }
    for _ in 0..ATTEMPTS {
        let partitions = session.partitions().await?;
        let name = partition_name(day);
        let meant =
            partitions.into_iter().find(|known| known.day() == Some(day) || known.table == name);
        let Some(partition) = meant else { return Ok(()) };
        match session.retire(&partition, &rule).await? {
            Dropping::Dropped => return Ok(()),
            Dropping::Waits(_) => {}
            other => return Err(BenchError::failed(format!("the day was not dropped: {other:?}"))),
        }
    }
    Err(BenchError::failed("the day could not be dropped for its readers"))
}

/// What somebody without partitions does.
async fn delete_day(session: &mut PgConnection, day: NaiveDate) -> Result<(), BenchError> {
    let statement = format!("delete from {FLAT} where day = $1");
    sqlx::query(AssertSqlSafe(statement)).bind(day).execute(&mut *session).await?;
    let statement = format!("vacuum {FLAT}");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(session).await?;
    Ok(())
}

/// How old days go in the simulation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Partitions,
    Delete,
}

/// Day after day comes, and the one that is too old goes. The sizes after the first days and after the
/// last.
async fn simulate(stage: &Stage, rows: u64, way: Way) -> Result<Option<Sizes>, BenchError> {
    let (name, table) = match way {
        Way::Partitions => ("fortnight_parts", "request_records"),
        Way::Delete => ("fortnight_flat", FLAT),
    };
    let url = stage.server.make(name).await?;
    let store = database::store(&url, &stage.clock, 1)?;
    store.migrate().await?;
    let mut session = database::session(&url).await?;
    seed::partitions(&mut session, 2).await?;
    flat(&mut session).await?;
    let mut partitions = store.partition_session().await?;
    let first = today(&mut session).await? - CalendarDays::new(SIMULATED + 1);
    let (mut early, mut late) = (None, None);
    for number in 0..SIMULATED {
        let day = first + CalendarDays::new(number);
        make_day(&mut session, day).await?;
        a_day(&mut session, table, day, rows).await?;
        if number >= STANDING {
            let old = day - CalendarDays::new(STANDING);
            match way {
                Way::Partitions => {
                    drop_day(&mut partitions, old).await?;
                    clear_keys(&mut partitions, NO_DERIVED).await?;
                    // What autovacuum does in its time.
                    sqlx::raw_sql("vacuum request_keys").execute(&mut session).await?;
                }
                Way::Delete => delete_day(&mut session, old).await?,
            }
        }
        let sizes = (size(&mut session, table).await?, size(&mut session, "request_keys").await?);
        if number == STANDING {
            early = Some(sizes);
        }
        late = Some(sizes);
    }
    store.close().await;
    Ok(early.zip(late).map(|(early, late)| Sizes {
        records_early: early.0,
        records_late: late.0,
        keys_early: early.1,
        keys_late: late.1,
    }))
}

/// Bytes of a table with its partitions, indexes and long values.
async fn size(session: &mut PgConnection, table: &str) -> Result<i64, BenchError> {
    Ok(sqlx::query_scalar(
        "select (pg_total_relation_size($1::text::regclass)
            + coalesce(sum(pg_total_relation_size(relid)) filter (where isleaf), 0))::bigint
        from pg_partition_tree($1::text::regclass)",
    )
    .bind(table)
    .fetch_one(session)
    .await?)
}
