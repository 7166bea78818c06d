//! Who is alive: registration, the node's lock, heartbeats and the detector.
//!
//! All of it runs on one session outside the pool, so that a busy pool cannot starve it, and
//! straight to the server: a session lock does not pass through a pooler. The session belongs to one
//! task; after any error it is closed and opened anew, which gives the lock back.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::error::StoreError;
use super::session;
use super::{Store, interval};
use crate::clock::Clock;
use crate::domain::ids::{NodeId, RequestId};
use crate::domain::record::{Guard, RecordKey};

/// First half of the two-part advisory lock; the second is the node's id.
const NODE_LOCK: i32 = 0x6F6B_6E64;
/// A lock must be free in two looks this far apart before its node is dead: a session of a living
/// node can be terminated by hand, and it locks again at once.
const CONFIRM: Duration = Duration::from_secs(1);
/// A beat that takes longer is no beat; the session is opened anew.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a dead node stays in the table, for people to see.
const DEAD_KEPT: Duration = Duration::from_secs(24 * 3_600);

/// The session on which a node beats and holds its lock. Dropped, it closes, which gives the lock back.
pub struct NodeSession {
    connection: PgConnection,
    clock: Clock,
    confirm: PgInterval,
    grace: PgInterval,
    /// The id whose lock this session holds.
    locked: Option<NodeId>,
}

/// What registering found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    Registered,
    /// Another node has declared this id dead: it must not be used any more.
    Dead,
}

/// What a beat found of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    Landed,
    /// The row is locked by a statement in progress; the next beat will tell.
    Passed,
    /// The record is another run's, or ended.
    Lost,
}

/// A run as the heartbeat knows it.
#[derive(Debug, Clone)]
pub struct BeatingRun {
    pub at: RecordKey,
    pub guard: Guard,
}

impl Store {
    /// A new id for this process, from a logged sequence: never one that was used before.
    pub async fn new_node_id(&self) -> Result<NodeId, StoreError> {
        self.database
            .run("nodes.id", |connection| {
                Box::pin(async move {
                    let id = sqlx::query_scalar!(
                        r#"/* nodes.id */ select nextval('node_ids')::int as "id!""#
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(NodeId(id))
                })
            })
            .await
    }

    /// Says that no other node can be alive: for a node that has just started the private server
    /// itself. Every earlier owner is dead from now on.
    pub async fn declare_alone(&self) -> Result<(), StoreError> {
        self.database
            .run("nodes.alone", |connection| {
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    sqlx::query!("/* nodes.alone */ delete from nodes")
                        .execute(&mut *transaction)
                        .await?;
                    sqlx::query!(
                        "/* nodes.old_epoch */
                        insert into server_epoch (first_seen) values (clock_timestamp() - interval '1 day')
                        on conflict (one) do update
                            set first_seen = excluded.first_seen, server_start = excluded.server_start"
                    )
                    .execute(&mut *transaction)
                    .await?;
                    transaction.commit().await?;
                    Ok(())
                })
            })
            .await
    }

    /// Opens the node's session. One before it that broke broke with the server, mostly: what rests
    /// in the pool is in doubt, so that no arrival finds out the hard way.
    pub async fn open_node_session(&self) -> Result<NodeSession, StoreError> {
        self.database.doubt();
        let opened = within(&self.clock, async {
            let connection = session::open(&self.direct).await?;
            Ok(connection)
        });
        Ok(NodeSession {
            connection: opened.await?,
            clock: self.clock.clone(),
            confirm: interval(CONFIRM),
            grace: interval(self.liveness.grace),
            locked: None,
        })
    }

    /// Clears away nodes that have been dead for a day: an unknown owner counts as dead.
    pub async fn forget_dead_nodes(&self) -> Result<u64, StoreError> {
        self.database
            .run("nodes.forget", |connection| {
                Box::pin(async move {
                    let gone = sqlx::query!(
                        "/* nodes.forget */
                        delete from nodes where dead_at < clock_timestamp() - $1::interval",
                        interval(DEAD_KEPT),
                    )
                    .execute(connection)
                    .await?;
                    Ok(gone.rows_affected())
                })
            })
            .await
    }
}

impl NodeSession {
    /// Takes the node's lock, if this session does not hold it yet. Tried, not waited for: an
    /// earlier session of this node, cut off without the server's knowing, may hold it for minutes,
    /// which stands for the node as well as this one would; and a detector holds it for a moment.
    /// The lock of an id that the node had before says nothing of this one.
    pub async fn hold_lock(&mut self, node: NodeId) -> Result<(), StoreError> {
        if self.locked == Some(node) {
            return Ok(());
        }
        let connection = &mut self.connection;
        let locked = within(&self.clock, async {
            Ok(sqlx::query_scalar!(
                r#"/* nodes.lock */ select pg_try_advisory_lock($1, $2) as "locked!""#,
                NODE_LOCK,
                node.0
            )
            .fetch_one(connection)
            .await?)
        })
        .await?;
        self.locked = locked.then_some(node);
        Ok(())
    }

    /// Takes the node's lock and enters it in `nodes`. The first node after a start of the server,
    /// orderly or not, begins the epoch anew.
    pub async fn register(
        &mut self,
        node: NodeId,
        advertised: &str,
    ) -> Result<Registration, StoreError> {
        self.hold_lock(node).await?;
        let connection = &mut self.connection;
        within(&self.clock, async {
            sqlx::query!(
                "/* nodes.epoch */
                insert into server_epoch as e default values
                on conflict (one) do update
                    set first_seen = excluded.first_seen, server_start = excluded.server_start
                    where e.server_start <> excluded.server_start"
            )
            .execute(&mut *connection)
            .await?;
            let alive = sqlx::query_scalar!(
                r#"/* nodes.register */
                insert into nodes as n (node_id, advertised) values ($1, $2)
                on conflict (node_id) do update set suspected_at = null, advertised = excluded.advertised
                returning n.dead_at is null as "alive!""#,
                i64::from(node.0),
                advertised,
            )
            .fetch_one(&mut *connection)
            .await?;
            Ok(if alive { Registration::Registered } else { Registration::Dead })
        })
        .await
    }

    /// Beats for all runs in one statement. Rows that somebody has locked are passed over, so that
    /// one stuck transaction cannot silence a whole node. The answers stand in the order of `runs`.
    pub async fn beat(&mut self, runs: &[BeatingRun]) -> Result<Vec<Beat>, StoreError> {
        let landed = self.beat_landed(runs).await?;
        let missing: Vec<&BeatingRun> =
            runs.iter().filter(|run| !landed.contains(&run.guard.request_id)).collect();
        let standing =
            if missing.is_empty() { Vec::new() } else { self.still_ours(&missing).await? };
        let found = |run: &BeatingRun| {
            let id = run.guard.request_id;
            if landed.contains(&id) {
                Beat::Landed
            } else if standing.contains(&id) {
                Beat::Passed
            } else {
                Beat::Lost
            }
        };
        Ok(runs.iter().map(found).collect())
    }

    async fn beat_landed(&mut self, runs: &[BeatingRun]) -> Result<Vec<RequestId>, StoreError> {
        let columns = RunColumns::of(runs.iter());
        let connection = &mut self.connection;
        within(&self.clock, async {
            let rows = sqlx::query_scalar!(
                "/* nodes.beat */
                with setting as (select set_config('synchronous_commit', 'off', true) as async_commit),
                mine as (
                    select r.tenant_id, r.idempotency_key, r.day
                    from unnest($1::text[], $2::uuid[], $3::date[], $4::bigint[], $5::uuid[])
                        as n (tenant_id, idempotency_key, day, fence, request_id)
                    join setting on setting.async_commit is not null
                    join request_records r on r.tenant_id = n.tenant_id
                        and r.idempotency_key = n.idempotency_key and r.day = n.day
                    where r.state = 'in_progress' and r.fence = n.fence and r.request_id = n.request_id
                    order by r.tenant_id, r.idempotency_key
                    for update of r skip locked)
                update request_records r set heartbeat_at = clock_timestamp() from mine
                where r.tenant_id = mine.tenant_id and r.idempotency_key = mine.idempotency_key
                    and r.day = mine.day and r.state = 'in_progress'
                returning r.request_id",
                &columns.tenants,
                &columns.keys,
                &columns.days,
                &columns.fences,
                &columns.requests,
            )
            .fetch_all(connection)
            .await?;
            Ok(rows.into_iter().map(RequestId).collect())
        })
        .await
    }

    async fn still_ours(&mut self, runs: &[&BeatingRun]) -> Result<Vec<RequestId>, StoreError> {
        let columns = RunColumns::of(runs.iter().copied());
        let connection = &mut self.connection;
        within(&self.clock, async {
            let rows = sqlx::query_scalar!(
                "/* nodes.still_ours */
                select r.request_id
                from unnest($1::text[], $2::uuid[], $3::date[], $4::bigint[], $5::uuid[])
                    as n (tenant_id, idempotency_key, day, fence, request_id)
                join request_records r on r.tenant_id = n.tenant_id
                    and r.idempotency_key = n.idempotency_key and r.day = n.day
                where r.state = 'in_progress' and r.fence = n.fence and r.request_id = n.request_id",
                &columns.tenants,
                &columns.keys,
                &columns.days,
                &columns.fences,
                &columns.requests,
            )
            .fetch_all(connection)
            .await?;
            Ok(rows.into_iter().map(RequestId).collect())
        })
        .await
    }

    /// Whether this node still stands in `nodes` and is not dead. `None`: it does not stand there.
    pub async fn own_standing(&mut self, node: NodeId) -> Result<Option<Registration>, StoreError> {
        let connection = &mut self.connection;
        within(&self.clock, async {
            let alive = sqlx::query_scalar!(
                r#"/* nodes.own */ select dead_at is null as "alive!" from nodes where node_id = $1"#,
                i64::from(node.0),
            )
            .fetch_optional(connection)
            .await?;
            Ok(alive.map(|alive| {
                if alive { Registration::Registered } else { Registration::Dead }
            }))
        })
        .await
    }

    /// Looks at every other node's lock. One found free in two looks a second apart is dead, unless
    /// this incarnation of the database is too young for a free lock to mean anything. The lock is
    /// tried in shared mode and for the length of the statement only, so that detectors do not see
    /// each other. Returns the nodes that this look declared dead.
    pub async fn detect_dead(&mut self, own: NodeId) -> Result<Vec<NodeId>, StoreError> {
        let (confirm, grace) = (self.confirm, self.grace);
        let connection = &mut self.connection;
        within(&self.clock, async {
            let rows = sqlx::query!(
                r#"/* nodes.detect */
                with looked as materialized (
                    select node_id, suspected_at,
                        pg_try_advisory_xact_lock_shared($1, node_id::int) as free
                    from nodes where dead_at is null and node_id <> $2),
                judged as (
                    select node_id, free, suspected_at, clock_timestamp() as now,
                        exists (select from server_epoch
                            where server_start = pg_postmaster_start_time()
                                and first_seen <= clock_timestamp() - $3::interval) as counts
                    from looked)
                update nodes n set
                    suspected_at = case when judged.free and judged.counts
                        then coalesce(n.suspected_at, judged.now) end,
                    dead_at = case when judged.free and judged.counts
                        and n.suspected_at <= judged.now - $4::interval then judged.now end
                from judged
                where n.node_id = judged.node_id and n.dead_at is null
                    and ((judged.free and judged.counts) or n.suspected_at is not null)
                returning n.node_id, n.dead_at is not null as "dead!""#,
                NODE_LOCK,
                i64::from(own.0),
                grace,
                confirm,
            )
            .fetch_all(connection)
            .await?;
            Ok(rows
                .into_iter()
                .filter(|row| row.dead)
                .filter_map(|row| i32::try_from(row.node_id).ok().map(NodeId))
                .collect())
        })
        .await
    }
}

async fn within<T>(
    clock: &Clock,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::select! {
        outcome = work => outcome,
        () = clock.sleep(ANSWER_LIMIT) => {
            Err(StoreError::unavailable("the node's session did not answer in time"))
        }
    }
}

#[derive(Default)]
struct RunColumns {
    tenants: Vec<String>,
    keys: Vec<Uuid>,
    days: Vec<chrono::NaiveDate>,
    fences: Vec<i64>,
    requests: Vec<Uuid>,
}

impl RunColumns {
    fn of<'a>(runs: impl Iterator<Item = &'a BeatingRun>) -> Self {
        let mut columns = Self::default();
        for run in runs {
            columns.tenants.push(run.at.tenant.as_str().to_owned());
            columns.keys.push(run.at.key);
            columns.days.push(run.at.day);
            columns.fences.push(run.guard.fence.0);
            columns.requests.push(run.guard.request_id.0);
        }
        columns
    }
}
