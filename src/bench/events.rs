//! Events: how fast the relay empties an outbox, beside the least that a loop over such a table costs.
//!
//! The same events are put into the outbox for each contestant, which take turns: a bare loop that deletes
//! batches with `SKIP LOCKED` and delivers nothing, the relay with a sink that takes everything at once, and
//! the relay with a webhook on loopback. What the second loses to the first is what marks, the order of each
//! conversation and several sinks cost; what the third loses to the second is HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::events_report::{Emptying, Events};
use super::report::Report;
use super::stage::Stage;
use super::workload::{TENANT, random_id};
use super::{BenchError, POOL, Settings, database};
use crate::background::sinks::{EventSink, SigningSecrets, Webhook, WebhookSettings};
use crate::background::{Relay, RelaySettings};
use crate::clock::{BoxFuture, Clock};
use crate::domain::outbox::{Delivery, Event, LetterRules};
use crate::faults::Faults;
use crate::lifecycle::Lifecycle;

/// Events of one emptying, and how many of them are of one conversation.
const EVENTS: i32 = 20_000;
const OF_ONE_CONVERSATION: i32 = 4;
/// The relay's defaults.
const BATCH: u32 = 100;
const POLL: Duration = Duration::from_millis(100);
/// Looks at an outbox that is being emptied.
const LOOK: Duration = Duration::from_millis(5);
/// Events that come one by one to a relay with nothing to do.
const SINGLE: usize = 60;
/// Of a webhook's call; loopback answers at once.
const WEBHOOK_LIMIT: Duration = Duration::from_secs(10);
const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Measures the relay.
pub async fn measure(
    stage: &Stage,
    settings: &Settings,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    tell("events: an outbox is emptied");
    let mut session = database::session(stage.service_url()).await?;
    let receiver = Receiver::start().await?;
    let mut measured = Events { events: EVENTS, ..Events::default() };
    for _ in 0..settings.repetitions {
        fill(&mut session).await?;
        measured.bare.push(emptied(stage, bare_loop(stage)).await?);
        for (sink, emptyings) in [
            (taking_all(None), &mut measured.no_op),
            (receiver.sink(&stage.clock)?, &mut measured.webhook),
        ] {
            fill(&mut session).await?;
            emptyings.push(emptied(stage, relayed(stage, sink, &mut session)).await?);
        }
    }
    measured.lag_ms = lag_at_rest(stage, &mut session).await?;
    report.events = Some(measured);
    Ok(())
}

/// Puts events into an empty outbox, as commits would have written them.
async fn fill(session: &mut PgConnection) -> Result<(), BenchError> {
    sqlx::raw_sql("truncate outbox").execute(&mut *session).await?;
    sqlx::query(
        "insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
        select gen_random_uuid(), $1, 'conversation', 'talk-' || (n / $3), 'call_completed',
            jsonb_build_object('operation_id', gen_random_uuid(), 'turn_id', gen_random_uuid(),
                'conversation_id', 'talk-' || (n / $3), 'model', 'default',
                'usage', jsonb_build_object('input_tokens', n, 'output_tokens', 2 * n))
        from generate_series(1, $2) n",
    )
    .bind(TENANT)
    .bind(EVENTS)
    .bind(OF_ONE_CONVERSATION)
    .execute(&mut *session)
    .await?;
    sqlx::raw_sql("analyze outbox").execute(session).await?;
    Ok(())
}

/// How long the work took, and what the database's processes took for it.
async fn emptied(
    stage: &Stage,
    work: impl Future<Output = Result<(), BenchError>>,
) -> Result<Emptying, BenchError> {
    stage.server.settle().await;
    let (outcome, taken) = stage.while_doing(work).await?;
    outcome?;
    Ok(Emptying {
        seconds: taken.elapsed.as_secs_f64(),
        postgres_cpu_us: taken.postgres.map(|cpu| cpu.as_secs_f64() * 1e6 / f64::from(EVENTS)),
        foreign_cpus: taken.foreign_cpus,
    })
}

/// Deletes batches until nothing is left.
async fn bare_loop(stage: &Stage) -> Result<(), BenchError> {
    let mut session = database::session(stage.service_url()).await?;
    loop {
        let taken: Vec<(String, String)> = sqlx::query_as(
            "delete from outbox where ctid = any (array(
                select ctid from outbox order by ordinal limit $1 for update skip locked))
            returning aggregateid, payload::text",
        )
        .bind(i64::from(BATCH))
        .fetch_all(&mut session)
        .await?;
        if taken.is_empty() {
            return Ok(());
        }
    }
}

/// A relay of its own, from its start until every event is marked.
async fn relayed(
    stage: &Stage,
    sink: Arc<dyn EventSink>,
    session: &mut PgConnection,
) -> Result<(), BenchError> {
    let (lifecycle, store) = start_relay(stage, sink)?;
    while waiting(session).await? {
        stage.clock.sleep(LOOK).await;
    }
    lifecycle.end().await;
    store.close().await;
    Ok(())
}

fn start_relay(
    stage: &Stage,
    sink: Arc<dyn EventSink>,
) -> Result<(Lifecycle, crate::store::Store), BenchError> {
    let (lifecycle, clock) = (Lifecycle::new(), stage.clock.clone());
    let store = database::store(stage.service_url(), &clock, POOL)?;
    let letters = LetterRules { max_attempts: 20, give_up_after: Duration::from_secs(86_400) };
    Relay {
        store: store.clone(),
        clock,
        lifecycle: lifecycle.clone(),
        faults: Faults::none(),
        settings: RelaySettings { poll: POLL, batch: BATCH, letters },
        sinks: vec![sink],
    }
    .start();
    Ok((lifecycle, store))
}

async fn waiting(session: &mut PgConnection) -> Result<bool, BenchError> {
    Ok(sqlx::query_scalar(
        "select exists (select from outbox where published_at is null
            and (dead_at is null or owed))",
    )
    .fetch_one(session)
    .await?)
}

/// From the commit of an event to its sink, one at a time and at a relay that had nothing to do.
async fn lag_at_rest(stage: &Stage, session: &mut PgConnection) -> Result<Vec<f64>, BenchError> {
    sqlx::raw_sql("truncate outbox").execute(&mut *session).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let (lifecycle, store) = start_relay(stage, taking_all(Some((stage.clock.clone(), tell))))?;
    let mut lags = Vec::with_capacity(SINGLE);
    for _ in 0..SINGLE {
        // At any moment of the relay's round, not at its beginning.
        stage.clock.sleep(POLL.mul_f64(stage.clock.chance())).await;
        sqlx::query(
            "insert into outbox (id, tenant_id, aggregatetype, aggregateid, type, payload)
            values ($1, $2, 'conversation', $1::uuid::text, 'call_completed', '{}')",
        )
        .bind(random_id(&stage.clock))
        .bind(TENANT)
        .execute(&mut *session)
        .await?;
        let committed = stage.clock.utc_now();
        let delivered: Option<DateTime<Utc>> = told.recv().await;
        let lag = delivered.unwrap_or(committed) - committed;
        lags.push(lag.as_seconds_f64().max(0.0) * 1e3);
    }
    lifecycle.end().await;
    store.close().await;
    // The first one waits until the relay has its shares.
    lags.remove(0);
    Ok(lags)
}

/// A sink that takes everything at once, and may say when.
struct TakingAll(Option<(Clock, mpsc::UnboundedSender<DateTime<Utc>>)>);

fn taking_all(told: Option<(Clock, mpsc::UnboundedSender<DateTime<Utc>>)>) -> Arc<dyn EventSink> {
    Arc::new(TakingAll(told))
}

impl EventSink for TakingAll {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn deliver<'a>(&'a self, _event: &'a Event) -> BoxFuture<'a, Delivery> {
        Box::pin(async {
            if let Some((clock, tell)) = &self.0 {
                // Nobody listens any more where the measuring has ended.
                let _ = tell.send(clock.utc_now());
            }
            Delivery::Accepted
        })
    }
}

/// Something that takes every event over HTTP; it ends when this is dropped.
struct Receiver {
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Receiver {
    async fn start() -> Result<Self, BenchError> {
        let router = Router::new().route("/", post(|| async { StatusCode::NO_CONTENT }));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Ends with the set that it is in.
            drop(axum::serve(listener, router).await);
        });
        Ok(Self { address, _serving: serving })
    }

    fn sink(&self, clock: &Clock) -> Result<Arc<dyn EventSink>, BenchError> {
        let wrong = |error: String| BenchError::failed(error);
        let settings = WebhookSettings {
            name: "bench".into(),
            url: format!("http://{}/", self.address),
            secrets: SigningSecrets::parse(SECRET).map_err(|error| wrong(error.to_string()))?,
            allow_private: true,
            timeout: WEBHOOK_LIMIT,
        };
        Ok(Arc::new(Webhook::new(settings, clock.clone()).map_err(wrong)?))
    }
}
