//! Profiles in the configuration: the documented ones work, and a fault is told with its setting.

use serde_json::json;

use super::{EXAMPLE, NO_VARIABLES, load};
use crate::domain::parse::{Profile, merge, salvage};

fn documented(name: &str) -> Profile {
    load(EXAMPLE, NO_VARIABLES).unwrap().profiles[name].clone()
}

#[test]
fn the_documented_receipts_are_read_and_merged() {
    let receipts = documented("receipts");
    let order = |field: &str| receipts.tool().schema.get().find(&format!("\"{field}\""));
    assert!(order("merchant") < order("date"), "the file's own order goes to the model");
    let read = |raw: serde_json::Value| salvage(&receipts, &raw.to_string()).map(|read| read.value);
    let first = read(json!({
        "merchant": "Tea & Co", "date": "2026-03-01", "currency": "EUR", "total": null,
        "items": [{"name": "Kettle", "price": 20}], "remarks": "till 3",
    }));
    // As a text, which is unwrapped, and with a total on the second page.
    let second = read(json!({
        "merchant": "", "items": r#"[{"name": "Cup", "quantity": 2, "price": 5.5}]"#, "total": 25.5,
        "remarks": "thank you",
    }));
    let merged = merge(&receipts, [first.unwrap(), second.unwrap()]);
    assert!(!merged.is_empty());
    let expected = json!({
        "merchant": "Tea & Co", "date": "2026-03-01", "currency": "EUR", "total": 25.5,
        "items": [{"name": "Kettle", "price": 20}, {"name": "Cup", "quantity": 2, "price": 5.5}],
        "remarks": "till 3\nthank you",
    });
    assert_eq!(merged.into_value(), expected);

    let blank = read(json!({"merchant": "Tea & Co", "items": [], "total": null})).unwrap();
    assert!(receipts.is_empty(&blank));
    assert_eq!(receipts.nothing_found(), "No receipt was found in what was sent.");
    for wrong in [
        json!({"merchant": "x", "items": [{"name": "Cup"}], "total": 1}),
        json!({"merchant": "x", "items": [], "total": "1.00"}),
        json!({"merchant": "x", "items": [], "total": 1, "currency": "euro"}),
    ] {
        assert!(read(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn the_documented_contacts_are_unified() {
    let contacts = documented("contacts");
    let ann = json!({"name": "Ann", "email": "ann@example.com"});
    let part = |people: serde_json::Value| json!({"people": people});
    let merged = merge(&contacts, [part(json!([ann])), part(json!([ann, {"name": "Ben"}]))]);
    assert_eq!(merged.into_value(), part(json!([ann, {"name": "Ben"}])));
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"a": {"type": "array"}}}"#;

fn section(name: &str, rest: &str) -> String {
    format!(
        "[profiles.{name}]\ntool_name = 't'\ntool_description = 'd'\ninstructions = 'i'\n\
         content = ['a']\nnoun = 'n'\n{rest}"
    )
}

#[test]
fn a_fault_is_told_with_its_setting() {
    let good = format!("merge = {{ a = 'union' }}\nschema = '{SCHEMA}'");
    load(&section("p", &good), NO_VARIABLES).unwrap();
    let gone = "profiles/none.json";
    for (text, expected) in [
        (section("script", &good), "profiles.script: it is built in"),
        (section("'a b'", &good), "profiles.a b: its name must have"),
        (section("p", "merge = { a = 'union' }"), "profiles.p.schema: it is missing"),
        (
            section("p", &format!("schema = '{SCHEMA}'")),
            "profiles.p.merge: the field \"a\" has no rule",
        ),
        (section("p", "schema = 5"), "profiles.p.schema: it is neither a table nor text"),
        (section("p", "schema = '{'"), "profiles.p.schema: no JSON"),
        (section("p", "[profiles.p.schema]\ntype = 'strnig'"), "profiles.p.schema: no JSON Schema"),
        (
            section("p", &format!("{good}\nschema_file = 'x'")),
            "profiles.p.schema_file: there is a schema",
        ),
        (
            section("p", &format!("schema_file = '{gone}'")),
            "profiles.p.schema_file: profiles/none.json: ",
        ),
        (
            "[profiles.p]\nschema_fle = 'x'".to_owned(),
            "profiles.p.schema_fle: there is no such setting",
        ),
        (section("p", "merge = 5"), "profiles.p.merge: "),
    ] {
        let error = load(&text, NO_VARIABLES).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a.toml: {expected}")), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_profile_can_be_said_in_variables() {
    let variable = |field: &str| format!("ONCEKEY_PROFILES__P__{field}");
    let names =
        ["TOOL_NAME", "TOOL_DESCRIPTION", "INSTRUCTIONS", "NOUN", "SCHEMA", "MERGE", "CONTENT"];
    let texts = ["t", "d", "i", "n", SCHEMA, "{ a = 'concat' }", "['a']"];
    let variables = names.map(variable);
    let pairs: Vec<_> = variables.iter().map(String::as_str).zip(texts).collect();
    let set = |pairs: &[(&str, &str)]| {
        let pairs: [(&str, &str); 7] = pairs.try_into().unwrap();
        load("", pairs)
    };
    assert_eq!(set(&pairs).unwrap().profiles["p"].tool().schema.get(), SCHEMA);
    let mut wrong = pairs.clone();
    wrong[5].1 = "concat";
    let error = set(&wrong).unwrap_err().to_string();
    assert!(error.starts_with("ONCEKEY_PROFILES__P__MERGE: "), "{error}");
}

#[test]
fn chunks_are_not_too_small() {
    let error = load("[parse]\nchunk_chars = 99", NO_VARIABLES).unwrap_err().to_string();
    assert_eq!(error, "a.toml: parse.chunk_chars: 99 is too few: at least 100");
    let error = load("[parse]\nparallel = 0", NO_VARIABLES).unwrap_err().to_string();
    assert_eq!(error, "a.toml: parse.parallel: 0 is too few: at least 1");
}
