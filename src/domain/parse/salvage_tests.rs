//! What models write instead of a value, and what comes of it.

use super::*;
use crate::domain::parse::ProfileSettings;
use proptest::prelude::*;
use serde_json::json;

fn file(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tool");
    std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap()
}

fn script(raw: &str) -> Result<(Value, u32), Violation> {
    salvage(&Profile::script(), raw).map(|salvaged| (salvaged.value, salvaged.repairs))
}

fn kettles() -> Value {
    json!({
        "title": "Two Kettles", "characters": ["MARA", "OTTO"],
        "dialogue": [
            {"character": "MARA", "line": "Is it boiling?"}, {"character": "OTTO", "line": "Not yet."},
        ],
    })
}

fn line(text: &str) -> Value {
    json!({
        "title": "Two Kettles", "characters": ["MARA"], "dialogue": [{"character": "MARA", "line": text}],
    })
}

#[test]
fn recorded_inputs_are_read() {
    for (name, expected, repairs) in [
        ("ok", kettles(), 0),
        ("array_as_string", kettles(), 1),
        ("array_double_encoded", kettles(), 2),
        ("whole_input_as_string", kettles(), 1),
        ("empty_dialogue", json!({"title": "", "characters": [], "dialogue": []}), 0),
        ("nul_in_line", line("Is it\u{fffd} boiling?"), 0),
        ("lone_surrogate", line("Tea \u{fffd} and"), 1),
        ("literal_backslash_u0000", line(r"type \u0000 please"), 0),
    ] {
        assert_eq!(script(&file(name)), Ok((expected, repairs)), "{name}");
    }
    let corrupt = script(&file("array_string_corrupt")).unwrap_err();
    assert_eq!(corrupt.code, ViolationCode::JsonSyntax);
    assert!(corrupt.sentence().contains("/dialogue"), "{}", corrupt.sentence());
    assert!(!corrupt.to_string().contains("boi"), "nothing of the answer for the log: {corrupt}");
}

#[test]
fn the_form_around_a_value_does_not_matter() {
    let plain = kettles().to_string();
    let encoded = Value::String(plain.clone()).to_string();
    let twice = Value::String(encoded.clone()).to_string();
    for (raw, repairs) in [
        (format!("```json\n{plain}\n```"), 1),
        (format!("\u{feff} ```\n{plain}```\n"), 1),
        (format!("\u{feff}{plain}"), 0),
        (plain.replace("]}", ", ]}").replace("}]", "},\n ]"), 1),
        (format!("{}, }}", &plain[..plain.len() - 1]), 1),
        (encoded.clone(), 1),
        (twice, 2),
        (Value::String(format!("```\n{plain}\n```")).to_string(), 2),
        (format!("{plain}\n{plain}"), 1),
        (format!("{plain}{plain}{plain}"), 1),
    ] {
        let (value, told) = script(&raw).unwrap_or_else(|error| panic!("{raw}: {error:?}"));
        assert_eq!(value, kettles(), "{raw}");
        assert!(told >= repairs && told <= repairs + 1, "{raw}: {told}");
    }
    let thrice = Value::String(Value::String(encoded).to_string()).to_string();
    assert_eq!(script(&thrice).unwrap_err().code, ViolationCode::JsonSchema);
}

#[test]
fn what_is_not_whole_stays_broken() {
    let plain = kettles().to_string();
    let cuts = (0..plain.len()).filter(|at| plain.is_char_boundary(*at));
    for at in cuts {
        assert!(script(&plain[..at]).is_err(), "cut at {at} of {}", plain.len());
    }
    for (raw, part) in [
        ("I cannot do this.", "not valid JSON"),
        (
            r#"{"characters": [], "dialogue": [], "dialogue": [1]}"#,
            "\"dialogue\" stands there twice",
        ),
        (
            r#"{"characters": [], "dialogue": []}{"characters": ["A"], "dialogue": []}"#,
            "more than one value",
        ),
        (r#"{"characters": [], "dialogue": []} and that is all"#, "not valid JSON"),
        (r#"{"characters": [,], "dialogue": []}"#, "not valid JSON"),
        (r#"{"characters": ["A",,], "dialogue": []}"#, "not valid JSON"),
        (r#"{"title": "Two Kettles"}"#, "required"),
        (r#"{"characters": [], "dialogue": [], "mood": "x"}"#, "mood"),
        (r#"{"characters": [], "dialogue": ""}"#, "/dialogue"),
        (r#"{"characters": [], "dialogue": "MARA: yes"}"#, "/dialogue"),
        (r#"{"characters": [], "dialogue": "5"}"#, "/dialogue"),
        (r#"{"characters": "[1]", "dialogue": []}"#, "/characters/0"),
        ("[]", "object"),
        ("\"\"", "object"),
    ] {
        let violation = script(raw).unwrap_err();
        assert!(violation.sentence().contains(part), "{raw}: {}", violation.sentence());
    }
    let deep = "[".repeat(100_000);
    assert!(script(&deep).is_err());
    assert!(script(&format!(r#"{{"dialogue": {}}}"#, Value::String(deep))).is_err());
}

#[test]
fn text_that_looks_like_json_stays_text_where_text_belongs() {
    let quoted = r#"["a", "b",]"#;
    let raw = json!({
        "title": "[1, 2]", "characters": [r#"{"name": "MARA"}"#],
        "dialogue": [{"character": "\"MARA\"", "line": quoted}],
    });
    assert_eq!(script(&raw.to_string()), Ok((raw, 0)));
    let commas =
        json!({"characters": [",]"], "dialogue": [{"character": "A\\", "line": "x,}\\\","}]});
    let broken = commas.to_string().replace("}]", "},]");
    assert_eq!(script(&broken), Ok((commas, 1)), "commas in strings are text");
}

fn nested() -> Profile {
    let node = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "parts": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/node"}}]},
        "either": {"type": ["array", "string"]},
    }, "additionalProperties": {"type": "array"}});
    let schema = json!({
        "type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": node},
    });
    let rule = ("root".to_owned(), "first_non_empty".to_owned());
    let settings = ProfileSettings {
        tool_name: "t".into(),
        tool_description: "d".into(),
        schema: schema.to_string(),
        instructions: "i".into(),
        merge: [rule].into(),
        content: vec!["root".into()],
        noun: "n".into(),
    };
    Profile::from_settings("nested", settings).unwrap()
}

#[test]
fn fields_inside_fields_are_unwrapped_too() {
    let inner = json!([{"name": "[]", "either": "[]", "parts": null}]).to_string();
    let outer = json!([{"parts": inner, "extra": "[1]"}]).to_string();
    let raw = json!({"root": json!({"parts": outer}).to_string()}).to_string();
    let salvaged = salvage(&nested(), &raw).unwrap();
    let parts = json!([{"name": "[]", "either": "[]", "parts": null}]);
    let expected = json!({"root": {"parts": [{"parts": parts, "extra": [1]}]}});
    assert_eq!((salvaged.value, salvaged.repairs), (expected, 4));
}

#[test]
fn nesting_without_end_ends() {
    let mut text = "[]".to_owned();
    for _ in 0..14 {
        text = json!([{"parts": text}]).to_string();
    }
    let wrapped = format!(r#"{{"root": {{"parts": {text}}}}}"#);
    assert_eq!(salvage(&nested(), &wrapped).unwrap().repairs, 14);
    let deep = r#"{"parts":["#.repeat(60) + &"]}".repeat(60);
    assert_eq!(salvage(&nested(), &format!(r#"{{"root":{deep}}}"#)).unwrap().repairs, 0);
    let deeper = r#"{"parts":["#.repeat(200) + &"]}".repeat(200);
    assert!(
        salvage(&nested(), &format!(r#"{{"root":{deeper}}}"#)).is_err(),
        "the parser's own limit"
    );
}

/// Five megabytes in every form that is mended; were one of them quadratic, this would not end.
#[test]
fn millions_of_bytes_are_read_in_every_form() {
    let speech = json!({"character": "MARA", "line": "Is it \"boiling\", \\ or [not,]?"});
    let lines = vec![speech; 80_000];
    let whole = json!({"characters": ["MARA"], "dialogue": lines});
    let plain = whole.to_string();
    assert!(plain.len() > 5_000_000, "{}", plain.len());
    let as_text =
        json!({"characters": ["MARA"], "dialogue": whole["dialogue"].to_string()}).to_string();
    let commas = plain.replace("\"},", "\",},");
    let halves = plain.replace("MARA", r"\ud83e");
    for (raw, repairs) in [(plain, 0), (as_text, 1), (commas, 79_999), (halves, 1)] {
        let (value, told) = script(&raw).unwrap();
        assert_eq!((value["dialogue"].as_array().unwrap().len(), told), (80_000, repairs));
    }
}

proptest! {
    /// Whatever is said comes out as it was, through any wrapping.
    #[test]
    fn wrapping_changes_nothing(said in prop::collection::vec(("\\PC{0,8}", any::<String>()), 0..6), way in 0..5) {
        let said: Vec<Value> = said
            .iter()
            .map(|(name, text)| json!({"character": name, "line": text.replace('\0', "\u{fffd}")}))
            .collect();
        let whole = json!({"title": "t", "characters": [], "dialogue": said});
        let mut sent = whole.clone();
        let once = sent["dialogue"].to_string();
        let raw = match way {
            0 => sent.to_string(),
            1 => {
                sent["dialogue"] = Value::String(once);
                sent.to_string()
            }
            2 => {
                sent["dialogue"] = Value::String(Value::String(once).to_string());
                sent.to_string()
            }
            3 => Value::String(sent.to_string()).to_string(),
            _ => format!("```json\n{sent}\n```"),
        };
        prop_assert_eq!(script(&raw).map(|(value, _)| value), Ok(whole));
    }

    #[test]
    fn no_text_panics(raw in "(\\[|\\]|\\{|\\}|,|\"|\\\\|:|`|\n|u00|d83e|dialogue|\\PC){0,40}") {
        let _ = script(&raw);
        let _ = script(&json!({"dialogue": raw, "characters": raw}).to_string());
    }
}
