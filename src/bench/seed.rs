//! Rows that stand in the tables before a load: as many records as after some days of service, and
//! runs that nobody owns any more.

use chrono::NaiveDate;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::BenchError;
use super::workload::{Question, TENANT};
use crate::store::partition_name;

/// Rows of one statement.
const BATCH: u64 = 100_000;

/// The day that claims fall into.
async fn today(session: &mut PgConnection) -> Result<NaiveDate, BenchError> {
    Ok(sqlx::query_scalar("select (clock_timestamp() at time zone 'UTC')::date")
        .fetch_one(session)
        .await?)
}

/// So many partitions, at least two: tomorrow's, today's, and those of the days before.
pub async fn partitions(session: &mut PgConnection, count: u32) -> Result<(), BenchError> {
    let today = today(session).await?;
    for back in 0..count {
        let day = today + chrono::Days::new(1) - chrono::Days::new(u64::from(back));
        let (name, next) = (partition_name(day), day + chrono::Days::new(1));
        // Built from dates and a constant.
        let statement = format!(
            "create table {name} partition of request_records
             for values from ('{day}') to ('{next}') with (fillfactor = 70)"
        );
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *session).await?;
    }
    Ok(())
}

/// Committed records, spread over the days up to today, a conversation for every four.
pub async fn records(
    session: &mut PgConnection,
    days: u32,
    count: u64,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    let mut made = 0;
    while made < count {
        let batch = BATCH.min(count - made);
        sqlx::query(
            "with keys as (
                insert into request_keys (tenant_id, idempotency_key, day)
                select $1, gen_random_uuid(),
                    (clock_timestamp() at time zone 'UTC')::date - (n % $2)::int
                from generate_series(1, $3) n returning *),
            talks as (
                insert into conversations (tenant_id, conversation_id, head_seq)
                select $1, gen_random_uuid()::text, 8 from generate_series(1, ($3 + 3) / 4))
            insert into request_records (tenant_id, idempotency_key, day, operation_id, key_source,
                endpoint, conversation_id, request_hash, state, owner, completed_at, request_id,
                turn_id, response_status, response)
            select tenant_id, idempotency_key, day, gen_random_uuid(), 'client', 'chat',
                gen_random_uuid()::text, decode(repeat('5a', 32), 'hex'), 'committed', 0,
                clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 200,
                convert_to(repeat('answer ', 50), 'UTF8')
            from keys",
        )
        .bind(TENANT)
        .bind(i64::from(days))
        .bind(i64::try_from(batch).unwrap_or(i64::MAX))
        .execute(&mut *session)
        .await?;
        made += batch;
        if made % (10 * BATCH) == 0 {
            tell(&format!("{made} of {count} rows"));
        }
    }
    sqlx::raw_sql("analyze request_keys; analyze request_records; analyze conversations")
        .execute(session)
        .await?;
    Ok(())
}

/// Runs that were claimed a minute ago and whose heartbeats have aged past every patience, one for
/// each question; and an incarnation of the database that is old enough for silence to count.
pub async fn lost_runs(
    session: &mut PgConnection,
    questions: &[Question],
) -> Result<(), BenchError> {
    let keys: Vec<Uuid> = questions.iter().map(|question| question.key).collect();
    let hashes: Vec<Vec<u8>> =
        questions.iter().map(|question| question.hash()).collect::<Result<_, _>>()?;
    let talks: Vec<String> =
        questions.iter().map(|question| question.conversation.clone()).collect();
    sqlx::query(
        "with runs as (
            select key, hash, talk, (clock_timestamp() at time zone 'UTC')::date as day
            from unnest($2::uuid[], $3::bytea[], $4::text[]) as n (key, hash, talk)),
        keys as (
            insert into request_keys (tenant_id, idempotency_key, day) select $1, key, day from runs),
        talks as (
            insert into conversations (tenant_id, conversation_id, active_key)
            select $1, talk, key from runs),
        old as (
            update server_epoch set first_seen = clock_timestamp() - interval '1 day')
        insert into request_records (tenant_id, idempotency_key, day, operation_id, key_source,
            endpoint, conversation_id, request_hash, owner, heartbeat_at, first_claimed_at,
            claimed_at, request_id)
        select $1, key, day, gen_random_uuid(), 'client', 'chat', talk, hash, 0,
            clock_timestamp() - interval '1 day', clock_timestamp() - interval '1 minute',
            clock_timestamp() - interval '1 minute', gen_random_uuid()
        from runs",
    )
    .bind(TENANT)
    .bind(keys)
    .bind(hashes)
    .bind(talks)
    .execute(session)
    .await?;
    Ok(())
}
