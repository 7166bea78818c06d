//! The build script decides which SQL compiles, so what it makes of `sqlx-data.json` is tested
//! like any other code; cargo gives a build script no tests of its own, hence the inclusion.

#[path = "../build.rs"]
#[expect(dead_code, reason = "cargo runs its main, here only its parts are called")]
#[expect(clippy::print_stdout, reason = "how a build script talks to cargo")]
mod build_script;

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn every_query_becomes_the_file_that_sqlx_looks_for() {
    let files = build_script::split(
        r#"{"b1": {"hash": "b1", "query": "SELECT 1"}, "a2": {"hash": "a2", "query": "SELECT 2"}}"#,
    )
    .unwrap();

    assert_eq!(files.keys().collect::<Vec<_>>(), ["query-a2.json", "query-b1.json"]);
    let query: serde_json::Value = serde_json::from_str(&files["query-b1.json"]).unwrap();
    assert_eq!(query["query"], "SELECT 1");
}

#[test]
fn a_file_that_is_no_list_of_queries_says_how_to_make_one() {
    for text in ["", "[]", r#"{"a": "#] {
        let error = build_script::split(text).unwrap_err();
        assert!(error.contains("sqlx-data.json"), "{error}");
        assert!(error.contains(".ci/sqlx-data"), "{error}");
    }
}

#[test]
fn an_entry_under_a_foreign_hash_is_refused() {
    for text in [r#"{"a": {"hash": "b"}}"#, r#"{"a": {}}"#, r#"{"a": 1}"#] {
        let error = build_script::split(text).unwrap_err();
        assert!(error.contains("the entry a "), "{error}");
    }
}

#[test]
fn a_query_that_left_the_file_leaves_the_folder() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sqlx-data");
    let old = build_script::split(r#"{"a": {"hash": "a"}, "b": {"hash": "b"}}"#).unwrap();
    build_script::write_queries(&old, &dir).unwrap();
    let new = build_script::split(r#"{"b": {"hash": "b"}}"#).unwrap();
    build_script::write_queries(&new, &dir).unwrap();

    let names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(names, ["query-b.json"]);
}

/// An edit by hand would compile here and describe another statement than the one that is sent.
#[test]
fn the_committed_file_is_keyed_by_the_hash_of_each_text() {
    let text = fs::read_to_string("sqlx-data.json").unwrap();
    let queries: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    for (key, query) in &queries {
        let hash = Sha256::digest(query["query"].as_str().unwrap());
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(key, &hash);
    }
}
