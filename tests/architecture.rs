//! The plan of the house, held against its sources: which room may import which, where SQL, clocks
//! and outgoing calls live, and how long a file may be. One crate has no borders of its own, and
//! without this its modules grow into a circle within a year.
//!
//! To change the plan, change the tables here and say why in the commit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it cannot go on")]

#[path = "architecture/examples.rs"]
mod examples;
#[path = "architecture/operations.rs"]
mod operations;
#[path = "architecture/rules.rs"]
mod rules;
#[path = "architecture/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rules::{Home, LongFile, Room};
use source::House;

#[rustfmt::skip] // a table
const ROOMS: &[Room] = &[
    Room { name: "domain", rooms: "", crates: Some(DOMAIN_CRATES) },
    Room { name: "faults", rooms: "domain", crates: None },
    Room { name: "clock", rooms: "domain faults", crates: None },
    Room { name: "config", rooms: "domain", crates: None },
    Room { name: "telemetry", rooms: "domain", crates: None },
    Room { name: "lifecycle", rooms: "domain", crates: None },
    Room { name: "store", rooms: "domain clock faults", crates: None },
    Room { name: "provider", rooms: "domain clock faults", crates: None },
    // Files and buckets, through one crate.
    Room { name: "captures", rooms: "domain", crates: None },
    Room { name: "documents", rooms: "domain clock", crates: None },
    Room { name: "streams", rooms: "domain", crates: None },
    // The way from one node to another; the database and the door are none of its business.
    Room { name: "peers", rooms: "domain clock", crates: None },
    Room { name: "operation", rooms: "domain clock faults store provider documents captures streams peers lifecycle", crates: None },
    Room { name: "http", rooms: "domain operation streams clock lifecycle", crates: None },
    // Captures: it deletes those that are over their time.
    Room { name: "background", rooms: "domain clock faults store captures lifecycle", crates: None },
    // A leaf, which a program of somebody else's can do with alone.
    Room { name: "client", rooms: "domain clock", crates: None },
    Room { name: "postgres", rooms: "", crates: Some(POSTGRES_CRATES) },
    // An instrument beside the product, which no room of the product knows.
    Room { name: "bench", rooms: "domain clock faults store background lifecycle", crates: None },
    Room { name: "app", rooms: "* but bench cli main", crates: None },
    Room { name: "cli", rooms: "* but main", crates: None },
    Room { name: "main", rooms: "app cli config", crates: None },
];

/// Values and texts, no IO; bytes is an upload without a copy, httpdate reads the date of a Retry-After,
/// regex and jsonschema hold an answer against its rules, unicode_segmentation knows where a text may
/// be cut, and utoipa describes a type.
const DOMAIN_CRATES: &str = "std bytes chrono httpdate jsonschema regex rust_decimal serde serde_json \
    sha2 thiserror unicode_segmentation utoipa uuid";
/// Beside the system: an error type, and log lines about a process that is not ours.
const POSTGRES_CRATES: &str = "std libc thiserror tracing";

// Bench: the bare handlers that the service is compared with are made of the same crates.
const HOMES: &[Home] = &[
    Home { krate: "sqlx", rooms: "store bench" },
    Home { krate: "axum", rooms: "http app bench" },
    Home { krate: "hyper", rooms: "http app bench" },
    Home { krate: "hyper_util", rooms: "http app bench" },
    Home { krate: "tower", rooms: "http app" },
    Home { krate: "tower_http", rooms: "http app" },
    // Background: its sinks deliver events. Telemetry: the way to a collector. Peers: streams of other
    // nodes.
    Home { krate: "reqwest", rooms: "provider client background telemetry peers bench" },
    // The crates that read hostile files, and the one that keeps them.
    Home { krate: "hayro", rooms: "documents" },
    Home { krate: "image", rooms: "documents" },
    Home { krate: "object_store", rooms: "captures" },
    Home { krate: "clap", rooms: "cli main" },
    Home { krate: "toml", rooms: "config" },
    Home { krate: "metrics_exporter_prometheus", rooms: "telemetry" },
    Home { krate: "tracing_subscriber", rooms: "telemetry" },
    Home { krate: "opentelemetry", rooms: "telemetry" },
    Home { krate: "opentelemetry_http", rooms: "telemetry" },
    Home { krate: "opentelemetry_otlp", rooms: "telemetry" },
    Home { krate: "opentelemetry_sdk", rooms: "telemetry" },
];

/// All SQL of the product is the store's; that of the measuring instrument is none of the product's.
const SQL_ROOMS: &[&str] = &["store", "bench"];

/// The second waits for processes of the system, in threads, for whom no clock is handed in.
const CLOCK_FILES: &[&str] = &["src/clock.rs", "src/postgres/wait.rs"];

const MOST_LINES: usize = 400;
const LONG_FILES: &[LongFile] = &[];

#[track_caller]
fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

/// Rust files under the folder, by their names from the root of the package.
fn rust_files(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![Path::new(folder).to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path.to_str().unwrap().replace('\\', "/"), text));
            }
        }
    }
    files.sort();
    files
}

/// The crates that a path may begin with: those of the manifest and those of the compiler.
fn crates() -> BTreeSet<String> {
    let manifest: toml::Table = fs::read_to_string("Cargo.toml").unwrap().parse().unwrap();
    let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
    let names = sections.iter().flat_map(|section| manifest[*section].as_table().unwrap().keys());
    let own = ["std", "core", "alloc"].map(str::to_owned);
    names.map(|name| name.replace('-', "_")).chain(own).collect()
}

fn house() -> House {
    let files = rust_files("src");
    assert!(files.iter().any(|(name, _)| name == "src/domain/mod.rs"), "run from the package");
    House::read(&files, &crates()).unwrap()
}

#[test]
fn rooms_import_only_what_the_plan_allows() {
    assert_none(rules::imports_between_rooms(&house(), ROOMS));
    assert_none(rules::other_crates(&house(), ROOMS, HOMES));
}

#[test]
fn the_plan_and_the_modules_have_no_circles() {
    assert_none(rules::circles_of_table(ROOMS));
    assert_none(rules::circles(&house()));
}

#[test]
fn sql_and_clocks_stay_in_their_homes() {
    assert_none(rules::sql_outside(&house(), SQL_ROOMS));
    assert_none(rules::clocks_outside(&house(), CLOCK_FILES));
    assert_none(rules::asynchronous(&house(), "domain"));
}

#[test]
fn files_are_introduced_and_short() {
    assert_none(rules::introductions(&house()));
    let files = [rust_files("src"), rust_files("tests")].concat();
    assert_none(rules::lengths(&files, MOST_LINES, LONG_FILES));
}
