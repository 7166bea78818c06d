//! What operators are given must be of what there is: metrics and log lines that are documented, in rules
//! and a board that can be read.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

const MANUAL: &str = "docs/operations.md";
/// What Prometheus makes of one histogram.
const OF_HISTOGRAMS: [&str; 3] = ["_bucket", "_count", "_sum"];

fn read(name: &str) -> String {
    fs::read_to_string(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The names in a text that begin like a metric's.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_of_name(letter));
    words
        .filter(|word| word.starts_with("oncekey_") && *word != "oncekey_")
        .map(str::to_owned)
        .collect()
}

/// Those that the sources count, set or record, by a literal or by a constant of the telemetry's.
fn counted(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, text) in sources {
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for macro_name in ["counter!(", "gauge!(", "histogram!("] {
            for call in text.split(macro_name).skip(1) {
                let literal =
                    call.trim_start().strip_prefix('"').and_then(|it| it.split('"').next());
                found.extend(literal.map(str::to_owned));
            }
        }
        if name == "src/telemetry.rs" {
            for constant in text.split(": &str = \"").skip(1) {
                let value = constant.split('"').next().filter(|it| it.starts_with("oncekey_"));
                found.extend(value.map(str::to_owned));
            }
        }
    }
    found
}

/// The first cells of the rows of a section's table.
fn rows(section: &str) -> String {
    let manual = read(MANUAL);
    let (_, rest) = manual.split_once(&format!("\n## {section}\n")).expect(section);
    let section = rest.split("\n## ").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .collect::<Vec<_>>()
        .join("\n")
}

fn documented() -> BTreeSet<String> {
    metrics_in(&rows("Metrics, and when to look"))
}

#[test]
fn every_metric_is_documented_and_every_documented_one_exists() {
    let counted = counted(&super::rust_files("src"));
    assert!(counted.len() > 20, "{counted:?}");
    assert_eq!(counted, documented());
}

fn known(name: &str) -> bool {
    let histogram = OF_HISTOGRAMS.iter().find_map(|end| name.strip_suffix(end));
    documented().contains(name) || histogram.is_some_and(|name| documented().contains(name))
}

/// All strings under a name, anywhere in a tree.
fn under<'a>(tree: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match tree {
        Value::Object(members) => {
            found.extend(members.get(name).and_then(Value::as_str));
            members.values().for_each(|member| under(member, name, found));
        }
        Value::Array(items) => items.iter().for_each(|item| under(item, name, found)),
        _ => {}
    }
}

fn assert_of_what_there_is(file: &str, tree: &Value, expressions: usize) {
    let mut found = Vec::new();
    under(tree, "expr", &mut found);
    assert!(found.len() >= expressions, "{file} has {} expressions", found.len());
    for expression in found {
        let names = metrics_in(expression);
        assert!(!names.is_empty(), "{file}: {expression}");
        for name in names {
            assert!(known(&name), "{file}: there is no {name}");
        }
    }
}

#[test]
fn alerts_are_of_metrics_and_log_lines_that_there_are() {
    let file = "docs/operations/alerts.yml";
    let rules: Value = yaml_serde::from_str(&read(file)).unwrap();
    assert_of_what_there_is(file, &rules, 15);
    let mut events = Vec::new();
    under(&rules, "event", &mut events);
    let lines = rows("Log events");
    for event in events {
        assert!(lines.contains(&format!("`{event}`")), "{file}: there is no line {event}");
    }
}

#[test]
fn the_board_is_of_metrics_that_there_are() {
    let file = "docs/operations/board.json";
    assert_of_what_there_is(file, &serde_json::from_str(&read(file)).unwrap(), 20);
}
