//! Parses: how close one comes to what its slowest calls allow, and what long answers cost.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;

use super::child::Contestant;
use super::client::Connection;
use super::held::Held;
use super::parses_report::Parses;
use super::report::Report;
use super::scribe::{LONG, LONGER, SLOW, Scribe};
use super::stage::Stage;
use super::workload::random_id;
use super::{BenchError, Settings, machine};
use crate::domain::parse::chunk;

/// The service's defaults.
const CHUNK_CHARS: usize = 12_000;
const PARALLEL: usize = 8;
/// Chunks of the play: a whole number of rounds, so that the bound can be reached. About as long as
/// Hamlet.
const PLAY_CHUNKS: usize = 16;
/// Parses for each figure.
const TIMES: usize = 5;
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(5);

/// Measures parses.
pub async fn measure(
    stage: &Stage,
    _settings: &Settings,
    report: &mut Report,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), BenchError> {
    tell("parses: a play, and long answers");
    let held = Held::start().await?;
    let scribe = Scribe::start(&stage.clock).await?;
    let service = start(stage, &held, &scribe).await?;
    let mut measured = Parses { idle_bytes: machine::resident(service.pid), ..Parses::default() };
    let play = play(PLAY_CHUNKS);
    (measured.chunks, measured.characters) = (PLAY_CHUNKS, play.chars().count());
    for _ in 0..TIMES {
        let begun = stage.clock.now();
        parse(stage, &service, SLOW, &play).await?;
        measured.took.push(stage.clock.now().since(begun).as_secs_f64());
        let (calls, slowest) = scribe.take();
        measured.calls = calls;
        let rounds = PLAY_CHUNKS as f64 / PARALLEL as f64;
        measured.bound.push(rounds * slowest.as_secs_f64());
    }
    for _ in 0..TIMES {
        measured.long_cpu_us.extend(cpu_of_one(stage, &service, LONG).await?);
        measured.longer_cpu_us.extend(cpu_of_one(stage, &service, LONGER).await?);
    }
    // A process of its own, whose memory was never needed for anything else.
    service.stop().await?;
    let service = start(stage, &held, &scribe).await?;
    measured.eight_long_bytes = most_memory(stage, &service).await?;
    report.parses = Some(measured);
    service.stop().await
}

async fn start(stage: &Stage, held: &Held, scribe: &Scribe) -> Result<Contestant, BenchError> {
    let routes = format!("[{{ name = \"bench\", base_url = \"http://{}/v1\" }}]", scribe.address);
    let mut variables = vec![
        ("ONCEKEY_PROVIDERS__SCRIBE__KIND".to_owned(), "openai"),
        ("ONCEKEY_PROVIDERS__SCRIBE__API_KEY_ENV".to_owned(), ""),
        ("ONCEKEY_PROVIDERS__SCRIBE__ROUTES".to_owned(), &routes),
    ];
    for model in [SLOW, LONG, LONGER] {
        let name = format!("ONCEKEY_MODELS__{}__", model.to_uppercase());
        variables.push((format!("{name}PROVIDER"), "scribe"));
        variables.push((format!("{name}UPSTREAM"), model));
    }
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    stage.start_service(held, &variables).await
}

/// A script that is cut into exactly so many chunks.
fn play(chunks: usize) -> String {
    let mut text = String::new();
    let mut speech = 0;
    while chunk(&text, CHUNK_CHARS).len() < chunks {
        // A hundred speeches at a time: cutting is linear, and done again each time.
        for _ in 0..100 {
            let name = if speech % 2 == 0 { "MARA" } else { "OTTO" };
            text.push_str(&format!("{name}: This is what I say now, {speech} times at least.\n"));
            speech += 1;
        }
    }
    text
}

async fn parse(
    stage: &Stage,
    service: &Contestant,
    model: &str,
    text: &str,
) -> Result<(), BenchError> {
    let request = Request::post(format!("/v1/parse?model={model}"))
        .header("host", "bench")
        .header("content-type", "text/plain")
        .header("authorization", stage.authorization())
        .header("idempotency-key", random_id(&stage.clock).to_string())
        .body(Full::new(Bytes::copy_from_slice(text.as_bytes())))?;
    let answer = Connection::open(service.address).await?.send(request).await?;
    if answer.status.as_u16() == 200 {
        return Ok(());
    }
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Err(BenchError::failed(format!("a parse was answered with {}: {body}", answer.status)))
}

async fn cpu_of_one(
    stage: &Stage,
    service: &Contestant,
    model: &str,
) -> Result<Option<f64>, BenchError> {
    let before = machine::cpu_of(service.pid);
    parse(stage, service, model, "MARA: Go on.\n").await?;
    let after = machine::cpu_of(service.pid);
    Ok(before.zip(after).map(|(before, after)| after.saturating_sub(before).as_secs_f64() * 1e6))
}

/// The most memory while eight long answers come at once.
async fn most_memory(stage: &Stage, service: &Contestant) -> Result<Option<u64>, BenchError> {
    let text = play(PARALLEL);
    let work = parse(stage, service, LONG, &text);
    tokio::pin!(work);
    let mut most = machine::resident(service.pid);
    loop {
        tokio::select! {
            done = &mut work => return done.map(|()| most),
            () = stage.clock.sleep(LOOK) => most = most.max(machine::resident(service.pid)),
        }
    }
}
