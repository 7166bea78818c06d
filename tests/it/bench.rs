//! `oncekey bench` measures everything it promises. What it measures decides nothing.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SCENARIOS: [(&str, &[u64]); 15] = [
    ("claim_few_partitions", &[1]),
    ("claim_few_rows", &[1]),
    ("claim_many_rows", &[1]),
    ("claim_few_no_images", &[1]),
    ("claim_many_no_images", &[1]),
    ("floor", &[1, 16, 64]),
    ("bare_commit", &[1, 16, 64]),
    ("bare_delayed", &[1]),
    ("new", &[1, 16, 64]),
    ("new_delayed", &[1, 16, 64]),
    ("talk", &[16]),
    ("bare_select", &[1, 16, 64]),
    ("replay", &[1, 16, 64]),
    ("in_progress", &[1, 16, 64]),
    ("takeover", &[16]),
];

fn bench(data_dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncekey"))
        .arg("bench")
        .args(arguments)
        .env("ONCEKEY_DATA_DIR", data_dir)
        // Only a named server is measured on, never a configured one.
        .env("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nowhere")
        .output()
        .unwrap()
}

#[test]
fn a_run_measures_every_scenario_and_leaves_nothing_behind() {
    let data_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench.json");
    let arguments = "--quick --seconds 0.02 --rows 300 --waiters 20 --streams 3 --json";
    let mut arguments: Vec<&str> = arguments.split(' ').collect();
    arguments.push(file.to_str().unwrap());
    let output = bench(&data_dir, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let measured = report["scenarios"].as_array().unwrap();
    for (contest, clients) in SCENARIOS {
        for clients in clients {
            let found = measured
                .iter()
                .find(|scenario| scenario["contest"] == contest && scenario["clients"] == *clients)
                .unwrap_or_else(|| panic!("no {contest} with {clients} clients"));
            for sample in found["samples"].as_array().unwrap() {
                assert!(sample["operations"].as_u64().unwrap() > 0, "{sample}");
                assert!(sample["per_second"].as_f64().unwrap() > 0.0, "{sample}");
            }
        }
    }
    assert_eq!(measured.len(), SCENARIOS.iter().map(|(_, clients)| clients.len()).sum::<usize>());
    assert_eq!(report["waits"]["waiters"], 20);
    assert!(report["waits"]["polls_per_second"].as_f64().unwrap() > 0.0, "{}", report["waits"]);

    assert_streams(&report["streams"]);

    let table = String::from_utf8(output.stdout).unwrap();
    for line in [
        "floor: one row, one commit",
        "takeover",
        "rate of replays",
        "p50 beyond a provider's 20 ms / of the bare handler",
        "PostgreSQL's CPU of a new operation",
        "waiting: 20 clients",
        "bare handler: forward",
        "CPU of a delivered delta",
        "first delta of a stream alone, by the service",
    ] {
        assert!(table.contains(line), "{line} is missing in:\n{table}");
    }
    assert!(!data_dir.join("bench").exists());
}

/// Deltas were delivered by both, to the readers of one stream as well.
fn assert_streams(streams: &Value) {
    let positive = |value: &Value| value.as_f64().unwrap() > 0.0;
    for kind in ["steady", "first_delta"] {
        for carrier in ["bare", "service"] {
            let samples = streams[kind].as_array().unwrap();
            let sample = samples.iter().find(|sample| sample["carrier"] == carrier).unwrap();
            let p99 = if kind == "steady" { "added_p99_ms" } else { "p99_ms" };
            assert!(positive(&sample[p99]), "{sample}");
            assert!(kind != "steady" || positive(&sample["delivered_per_second"]), "{sample}");
        }
    }
    for readers in [1, 3] {
        let mut fan_outs = streams["fan_out"].as_array().unwrap().iter();
        let fan_out = fan_outs.find(|fan_out| fan_out["readers"] == readers).unwrap();
        assert!(positive(&fan_out["delivered_per_second"]), "{fan_out}");
    }
}

#[test]
fn streams_can_be_measured_alone() {
    let data_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-streams");
    let arguments = ["--quick", "--seconds=0.02", "--streams=2", "--only=streams"];
    let output = bench(&data_dir, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("bare handler: forward") && !table.contains("takeover"), "{table}");
}

#[test]
fn numbers_that_measure_nothing_are_refused() {
    let data_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-refused");
    for argument in ["--seconds=0", "--seconds=-1", "--repetitions=0", "--rows=0", "--streams=0"] {
        let output = bench(&data_dir, &[argument]);
        assert_eq!(output.status.code(), Some(2), "{argument}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{argument}");
    }
}
