//! The values of a text's chunks as one, field by field, by the rules of their profile.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::fields;
use super::profile::{Field, MergeRule, Profile};

/// What the chunks gave together.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    value: Value,
    empty: bool,
}

impl Merged {
    /// Whether there is none of what the profile looks for.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// An object with every field of the profile's schema and no other: a field that no chunk told is an
    /// empty list or text, or null, by its type.
    pub fn into_value(self) -> Value {
        self.value
    }
}

/// Merges values in the order of the text; those of chunks that failed are left out. In linear time: each
/// value is moved once.
///
/// In a union texts are the same that differ in the blanks around them alone, and stand there without them;
/// nothing else is changed, so a name in a script's dialogue is what the model said.
pub fn merge(profile: &Profile, values: impl IntoIterator<Item = Value>) -> Merged {
    let mut growing: Vec<Growing<'_>> = profile.fields().iter().map(Growing::new).collect();
    for value in values {
        let Value::Object(mut members) = value else { continue };
        for field in &mut growing {
            if let Some(value) = members.remove(&field.field.name) {
                field.add(value);
            }
        }
    }
    let members: Map<String, Value> = growing.into_iter().map(Growing::finish).collect();
    let value = Value::Object(members);
    Merged { empty: profile.is_empty(&value), value }
}

/// A field's value as it grows.
struct Growing<'a> {
    field: &'a Field,
    value: Value,
    /// The items of a union, each as JSON.
    seen: HashSet<String>,
}

impl<'a> Growing<'a> {
    fn new(field: &'a Field) -> Growing<'a> {
        Growing { field, value: field.nothing.clone(), seen: HashSet::new() }
    }

    fn add(&mut self, told: Value) {
        if fields::is_empty(&told) {
            return;
        }
        match (self.field.rule, told, &mut self.value) {
            (MergeRule::Concat, Value::Array(items), Value::Array(all)) => all.extend(items),
            (MergeRule::Concat, Value::String(text), Value::String(all)) => {
                if !all.is_empty() {
                    all.push('\n');
                }
                all.push_str(&text);
            }
            (MergeRule::Union, Value::Array(items), Value::Array(all)) => {
                let items = items.into_iter().map(trimmed).filter(|item| !fields::is_empty(item));
                all.extend(items.filter(|item| self.seen.insert(item.to_string())));
            }
            // The first one; a value that does not fit its rule was refused by the schema before.
            (_, told, value) if fields::is_empty(value) => *value = told,
            (_, _, _) => {}
        }
    }

    fn finish(self) -> (String, Value) {
        (self.field.name.clone(), self.value)
    }
}

fn trimmed(item: Value) -> Value {
    match item {
        Value::String(text) if text.trim().len() < text.len() => {
            Value::String(text.trim().to_owned())
        }
        item => item,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::parse::ProfileSettings;
    use proptest::prelude::*;
    use serde_json::json;

    fn part(title: &str, characters: &[&str], lines: &[(&str, &str)]) -> Value {
        let lines =
            lines.iter().map(|(character, line)| json!({"character": character, "line": line}));
        json!({"title": title, "characters": characters, "dialogue": lines.collect::<Vec<_>>()})
    }

    #[test]
    fn a_script_is_put_together_in_order() {
        let parts = [
            part(" ", &["MARA", "OTTO"], &[("MARA", "one"), ("OTTO", "two")]),
            part("Two Kettles", &["OTTO ", "", "Mara"], &[("OTTO ", "three")]),
            part("Another", &[], &[]),
            json!({"characters": ["MARA", "ANN"], "dialogue": [{"character": "ANN", "line": "one"}]}),
        ];
        let merged = merge(&Profile::script(), parts);
        assert!(!merged.is_empty());
        let lines = [("MARA", "one"), ("OTTO", "two"), ("OTTO ", "three"), ("ANN", "one")];
        let expected = part("Two Kettles", &["MARA", "OTTO", "Mara", "ANN"], &lines);
        assert_eq!(merged.into_value(), expected);
    }

    #[test]
    fn nothing_is_empty_and_has_every_field() {
        let script = Profile::script();
        let poster = part("A poster", &["MARA"], &[]);
        for (values, title) in [(vec![], ""), (vec![poster.clone(), poster], "A poster")] {
            let merged = merge(&script, values);
            assert!(merged.is_empty());
            let value = merged.into_value();
            assert_eq!((&value["title"], &value["dialogue"]), (&json!(title), &json!([])));
            assert!(value["characters"].is_array());
        }
    }

    #[test]
    fn texts_are_joined_and_items_of_any_kind_unified() {
        let settings = ProfileSettings {
            tool_name: "t".into(),
            tool_description: "d".into(),
            schema: r#"{"type": "object", "properties": {
                "notes": {"type": ["string", "null"]}, "tags": {"type": "array"}, "total": {"type": "number"}
            }}"#
            .into(),
            instructions: "i".into(),
            merge: [("notes", "concat"), ("tags", "union"), ("total", "first_non_empty")]
                .map(|(field, rule)| (field.to_owned(), rule.to_owned()))
                .into(),
            content: vec!["tags".into(), "total".into()],
            noun: "n".into(),
        };
        let profile = Profile::from_settings("p", settings).unwrap();
        let merged = merge(
            &profile,
            [
                json!({"notes": null, "tags": [1, "1", {"a": 1, "b": 2}], "total": null}),
                json!({"notes": "x", "tags": [{"b": 2, "a": 1}, 1.5, 1], "total": 0, "other": 1}),
                json!({"notes": "y", "total": 5}),
            ],
        );
        assert!(!merged.is_empty());
        let expected =
            json!({"notes": "x\ny", "tags": [1, "1", {"a": 1, "b": 2}, 1.5], "total": 0});
        assert_eq!(merged.into_value(), expected);
        let nothing = json!({"notes": "", "tags": [], "total": null});
        assert_eq!(merge(&profile, []).into_value(), nothing);
    }

    proptest! {
        /// However the lines are spread over chunks, they come out in order, and names once.
        #[test]
        fn cuts_make_no_difference(
            spoken in prop::collection::vec(("[A-C]{1,2}", "[a-z]{0,3}"), 0..30),
            cuts in prop::collection::vec(0usize..30, 0..5),
        ) {
            let whole = |lines: &[(String, String)]| {
                let names: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
                let lines: Vec<_> = lines.iter().map(|(name, line)| (name.as_str(), line.as_str())).collect();
                part("", &names, &lines)
            };
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(spoken.len())).collect();
            cuts.extend([0, spoken.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| whole(&spoken[cut[0]..cut[1]]));
            let script = Profile::script();
            prop_assert_eq!(merge(&script, parts), merge(&script, [whole(&spoken)]));
        }
    }
}
