//! Random histories: whole nodes on a real PostgreSQL, clients that send again, a provider that
//! fails, and everything around them going wrong in an order that follows from a seed.
//!
//! A history is a list of commands (`history.rs`), made from one number (`generate.rs`, `scenes.rs`)
//! and carried out by a world (`world.rs`). The seed fixes the commands, not how they fall between
//! the statements, packets and threads of several real programs: the same history may go well a
//! hundred times and fail the next. So a history that failed is kept, in `kept/`, and always run.
//!
//! When all commands are done every fault is ended, every operation is sent until it is answered, and
//! then once more. The history has failed if after that
//!
//! - an invariant of `oncekey audit` is broken;
//! - a record is in progress, was answered for good and is not ended, or a conversation is held;
//! - a key was committed more than once (or more than once for every time that its partition was
//!   dropped), or answered 200 by more than one run;
//! - two 200s of a run differ by a byte, or differ from the record, its turns and its receipt; or a
//!   client got an answer to another question than the one it asked;
//! - an answer in a conversation was given to a prompt that lacked one of the turns before it;
//! - a receipt has other tokens than the provider wrote down for the answer in its turn;
//! - an operation is not answered within a minute, however often it is sent; a node does not come up
//!   again, or does not end in good order;
//! - a client was told of a failure that nothing here is a reason for, or by an answer that breaks
//!   the promises of its status (a 409 and a 503 say when to ask again);
//! - in a history where clients alone misbehave: an operation cost more than one run or more than one
//!   provider call, an answer was paid for and not used, or anything was answered by a 5xx.
//!
//! How to run it longer, or one history again: `docs/simulation.md`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test ends where it cannot go on, keeps real time and reports to its reader"
)]

mod check;
mod clients;
mod crowds;
mod facts;
mod generate;
mod history;
mod journal;
mod lanes;
mod model;
mod node;
mod rng;
mod scenes;
mod server;
#[path = "../it/support/mod.rs"]
mod support;
mod world;

use std::path::Path;

use history::History;
use lanes::Settings;

/// Where histories are that once failed.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation/kept");

#[tokio::test(flavor = "multi_thread")]
async fn random_histories_keep_every_promise() {
    let settings = Settings::of_process();
    lanes::run(&settings, "random", settings.histories()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scene_by_itself_keeps_every_promise() {
    let settings = Settings::of_process();
    if settings.is_about_one() {
        return;
    }
    let scenes = (0..scenes::ALL.len()).map(generate::scene);
    lanes::run(&settings.with_lanes(1), "scenes", scenes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_that_once_failed_keep_every_promise() {
    let settings = Settings::of_process();
    if settings.is_about_one() {
        return;
    }
    let histories: Vec<History> = kept(Path::new(KEPT)).collect();
    lanes::run(&settings.with_lanes(1), "kept", histories.into_iter()).await;
}

fn kept(folder: &Path) -> impl Iterator<Item = History> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    files.into_iter().map(|path| History::from_json(&std::fs::read_to_string(path).unwrap()))
}

#[test]
fn a_seed_always_gives_the_same_history_and_its_text_gives_it_back() {
    for seed in 0..200 {
        let history = generate::history(seed);
        assert_eq!(history, generate::history(seed));
        assert_eq!(history, History::from_json(&history.to_json()));
        assert!(history.commands.len() >= 15 && history.nodes.len() >= 2);
    }
    assert_ne!(generate::history(1), generate::history(2));
}
