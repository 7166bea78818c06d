//! What is a profile and what is none.

use super::*;
use serde_json::json;

fn settings() -> ProfileSettings {
    ProfileSettings {
        tool_name: "save_receipt".into(),
        tool_description: "Saves a receipt.".into(),
        schema: json!({"type": "object", "properties": {
            "total": {"type": "number"},
            "items": {"type": "array", "items": {"type": "string"}},
            "place": {"$ref": "#/$defs/place"},
        }, "$defs": {"place": {"type": "object"}}})
        .to_string(),
        instructions: "Read receipts.".into(),
        merge: [("total", "first_non_empty"), ("items", "concat"), ("place", "first_non_empty")]
            .map(|(field, rule)| (field.to_owned(), rule.to_owned()))
            .into(),
        content: vec!["items".into()],
        noun: "receipt".into(),
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut ProfileSettings), expected: &str) {
    let mut settings = settings();
    change(&mut settings);
    let fault = Profile::from_settings("receipts", settings).unwrap_err().to_string();
    assert!(fault.starts_with(expected), "{fault}");
    assert!(!fault.contains('\n'), "{fault}");
}

#[test]
fn the_built_in_profile_is_one() {
    let script = Profile::script();
    assert_eq!((script.name(), script.tool().name.as_str()), ("script", "save_script"));
    let rules: Vec<_> = script.fields().iter().map(|field| (&*field.name, field.rule)).collect();
    let expected = [
        ("characters", MergeRule::Union),
        ("dialogue", MergeRule::Concat),
        ("title", MergeRule::FirstNonEmpty),
    ];
    assert_eq!(rules, expected);
    let first = script.tool().schema.get().find("\"title\"");
    assert!(first < script.tool().schema.get().find("\"characters\""), "in the writer's order");
    assert_eq!(script.nothing_found(), "No dialogue was found in what was sent.");
    assert!(script.is_empty(&json!({"title": "A", "characters": ["B"], "dialogue": []})));
    assert!(script.is_empty(&json!({})));
    assert!(!script.is_empty(&json!({"dialogue": [{"character": "", "line": ""}]})));
    assert_eq!(script.identity(), Profile::script().identity());
}

#[test]
fn another_profile_is_told_apart_by_its_content() {
    let made = |settings| Profile::from_settings("receipts", settings).unwrap();
    let receipts = made(settings());
    let other = ProfileSettings { instructions: "Read them well.".into(), ..settings() };
    assert_ne!(made(other).identity(), receipts.identity());
    assert_eq!(made(settings()).identity(), receipts.identity());
    assert!(receipts.identity().starts_with("receipts/"));
}

#[test]
fn what_cannot_work_is_named() {
    for name in ["", " ", "save receipt", "sävë", &"a".repeat(65)] {
        refused(|settings| settings.tool_name = name.into(), "tool_name: ");
    }
    refused(|settings| settings.tool_description.clear(), "tool_description: it is missing");
    refused(|settings| settings.instructions = " \n".into(), "instructions: it is missing");
    refused(|settings| settings.noun.clear(), "noun: it is missing");
    for (schema, expected) in [
        ("{", "schema: no JSON"),
        (r#"{"type": "objct", "properties": {}}"#, "schema: no JSON Schema"),
        (r#"{"type": "array"}"#, "schema: the input of a tool is an object"),
        ("true", "schema: the input of a tool is an object"),
        (r#"{"type": "object"}"#, "schema: it has no properties"),
        (r##"{"type": "object", "properties": {"a": {"$ref": "#/no"}}}"##, "schema: "),
        (
            r#"{"type": "object", "properties": {"total": {}, "items": {"type": "array"}, "place": {}}}"#,
            "schema: the field \"place\" does not say its type",
        ),
    ] {
        refused(|settings| settings.schema = schema.into(), expected);
    }
    let rule = |field: &'static str, rule: &'static str| {
        move |settings: &mut ProfileSettings| drop(settings.merge.insert(field.into(), rule.into()))
    };
    refused(rule("tip", "union"), "merge: the schema has no field \"tip\"");
    refused(
        rule("items", "join"),
        "merge: \"items\": there is no rule \"join\": one of first_non_empty",
    );
    refused(rule("total", "concat"), "merge: \"total\" is number, which concat cannot merge");
    refused(rule("place", "union"), "merge: \"place\" is object, which union cannot merge");
    refused(
        |settings| drop(settings.merge.remove("items")),
        "merge: the field \"items\" has no rule",
    );
    refused(|settings| settings.content.clear(), "content: it names no field");
    refused(
        |settings| settings.content.push("tip".into()),
        "content: the schema has no field \"tip\"",
    );
}
