//! Thousands of clients that wait for one run: what each costs in memory, and what all of them ask
//! of the database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::child::Contestant;
use super::client::Connection;
use super::held::Held;
use super::report::{Report, Waits};
use super::stage::Stage;
use super::workload::{Client, Door, Question, Questions};
use super::{BenchError, Settings, load, machine};
use crate::clock::Clock;

/// Clients that come at once, and how long until the next ones: some 1,300 a second.
const AT_ONCE: usize = 64;
const PACE: Duration = Duration::from_millis(50);
/// The service's own Retry-After where it has no connection left.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long polls are counted for, and how often is looked: more often than a node polls.
const COUNTED_FOR: Duration = Duration::from_secs(2);
const COUNTED_EVERY: Duration = Duration::from_millis(40);
/// Descriptors that both sides need beside one for each waiter.
const OTHER_DESCRIPTORS: usize = 200;
/// Between two looks at whether the service has come to rest, the CPU time that rest may take in
/// between, and how many looks there are.
const LOOK: Duration = Duration::from_millis(500);
const AT_REST: Duration = Duration::from_millis(50);
const LOOKS: u32 = 120;

/// Lets many clients wait for one run.
pub async fn measure(
    stage: &Stage,
    settings: &Settings,
    clock: &Clock,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    let most =
        machine::descriptors().map_or(usize::MAX, |most| most.saturating_sub(OTHER_DESCRIPTORS));
    let count = settings.waiters.min(most);
    if count < settings.waiters {
        report.notes.push(format!(
            "{count} waiters instead of {}: a process may have {} files open here (ulimit -n)",
            settings.waiters,
            most + OTHER_DESCRIPTORS
        ));
    }
    tell(&format!("{count} clients that wait for one run"));
    let held = Held::start().await?;
    // A process of its own, whose memory was never needed for anything else.
    let service = stage.start_service(&held, &[]).await?;
    let door = Arc::new(Door { prefer: Some("wait=900"), ..stage.door(&service, 200, true) });
    warm_up(stage, &service).await?;

    let question = Question::new(clock, "held");
    let first = stage.door(&service, 200, false);
    let asked = question.clone();
    let mut run = JoinSet::new();
    run.spawn(async move {
        let mut connection = Connection::open(first.address).await?;
        first.ask(&mut connection, &asked).await.map(drop)
    });
    held.until_calls(1).await;
    let before = machine::resident(service.pid);

    let sent = watch::Sender::new(0);
    let mut waiters = JoinSet::new();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for _ in 0..count {
        let (door, question, clock) = (door.clone(), question.clone(), clock.clone());
        let (turns, sent) = (turns.clone(), sent.clone());
        waiters.spawn(async move {
            let turn = turns.acquire_owned().await;
            let mut connection = Connection::open(door.address).await?;
            let next = async {
                clock.sleep(PACE).await;
                drop(turn);
                sent.send_modify(|sent| *sent += 1);
            };
            let answered = until_answered(&door, &mut connection, &question, &clock);
            tokio::join!(answered, next).0
        });
    }
    drop(sent.subscribe().wait_for(|sent| *sent == count).await);
    at_rest(&service, clock).await;
    let resident = machine::resident(service.pid);
    let polls_per_second = polls_per_second(stage, clock).await?;

    let let_go = clock.now();
    held.let_go();
    let mut asked_again = 0;
    while let Some(ended) = waiters.join_next().await {
        asked_again += ended.map_err(|error| BenchError::failed(error.to_string()))??;
    }
    let all_answered = clock.now().since(let_go);
    while let Some(ended) = run.join_next().await {
        ended.map_err(|error| BenchError::failed(error.to_string()))??;
    }
    report.waits = Some(Waits {
        waiters: count,
        bytes_each: grown(before, resident, count),
        polls_per_second,
        all_answered_seconds: all_answered.as_secs_f64(),
        asked_again,
    });
    service.stop().await
}

/// A few operations over as many connections as the service may want of the database.
async fn warm_up(stage: &Stage, service: &Contestant) -> Result<(), BenchError> {
    let door = Arc::new(stage.door(service, 200, false));
    let questions = Questions::New { clock: stage.clock.clone(), model: "default" };
    let mut workers = Vec::new();
    for place in 0..AT_ONCE {
        workers.push(Client::open(&door, &questions, place).await?);
    }
    load::run(&stage.clock, workers, LOOK).await.map(drop)
}

/// Asks, and where the service says that it cannot answer now, asks again like any client. Returns
/// how often that was.
async fn until_answered(
    door: &Door,
    connection: &mut Connection,
    question: &Question,
    clock: &Clock,
) -> Result<u32, BenchError> {
    let mut again = 0;
    loop {
        let answer = door.send(connection, question).await?;
        if answer.status != StatusCode::SERVICE_UNAVAILABLE {
            return door.check(answer).map(|_| again);
        }
        again += 1;
        clock.sleep(AGAIN_AFTER).await;
    }
}

fn grown(before: Option<u64>, after: Option<u64>, count: usize) -> Option<f64> {
    Some(after?.saturating_sub(before?) as f64 / count.max(1) as f64)
}

/// Waits until the service does next to nothing: everybody who waits then has found the run.
async fn at_rest(service: &Contestant, clock: &Clock) {
    for _ in 0..LOOKS {
        let Some(before) = machine::cpu_of(service.pid) else { return };
        clock.sleep(LOOK).await;
        let Some(after) = machine::cpu_of(service.pid) else { return };
        if after.saturating_sub(before) <= AT_REST {
            return;
        }
    }
}

/// How often the node asks what became of the runs that are waited for.
async fn polls_per_second(stage: &Stage, clock: &Clock) -> Result<f64, BenchError> {
    let begun = clock.now();
    let mut seen = BTreeSet::new();
    let known: BTreeSet<_> = stage.server.polls(stage.service_url()).await?.into_iter().collect();
    while clock.now().since(begun) < COUNTED_FOR {
        clock.sleep(COUNTED_EVERY).await;
        seen.extend(stage.server.polls(stage.service_url()).await?);
    }
    let polls = seen.difference(&known).count() as f64;
    Ok(polls / clock.now().since(begun).as_secs_f64())
}
