//! What a JSON Schema says about the types of its fields, as far as reading and merging must know it.

use serde_json::Value;

/// References and wrappings that are followed; a schema that refers to itself ends there.
const MAX_STEPS: usize = 16;

/// The schema that this one stands for: through references into the same document, and through `anyOf`,
/// `oneOf` and `allOf` with one branch that is not null alone.
pub(super) fn resolve<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..MAX_STEPS {
        let Some(next) = referred(at, root).or_else(|| only_branch(at)) else { break };
        at = next;
    }
    at
}

fn referred<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    let path = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(path)
}

fn only_branch(schema: &Value) -> Option<&Value> {
    let branches =
        ["anyOf", "oneOf", "allOf"].iter().find_map(|name| schema.get(*name)?.as_array())?;
    let mut others = branches.iter().filter(|branch| branch["type"] != "null");
    let first = others.next()?;
    others.next().is_none().then_some(first)
}

/// The types that a value of this schema may have, null left out; empty where it does not say.
pub(super) fn types<'a>(schema: &'a Value, root: &'a Value) -> Vec<&'a str> {
    let schema = resolve(schema, root);
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ if schema["properties"].is_object() => vec!["object"],
        _ if schema["items"].is_object() => vec!["array"],
        _ => Vec::new(),
    };
    types.into_iter().filter(|name| *name != "null").collect()
}

/// Whether a value of this schema is always a list or an object, and never a text.
pub(super) fn is_container(schema: &Value, root: &Value) -> bool {
    let types = types(schema, root);
    !types.is_empty() && types.iter().all(|name| matches!(*name, "array" | "object"))
}

/// Whether a value says nothing: no text but blanks, nothing in it, or null.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_found_through_references_and_null() {
        let root = json!({"$defs": {"lines": {"type": "array"}, "self": {"$ref": "#/$defs/self"}}});
        for (schema, expected) in [
            (json!({"type": "string"}), vec!["string"]),
            (json!({"type": ["array", "null"]}), vec!["array"]),
            (json!({"$ref": "#/$defs/lines"}), vec!["array"]),
            (json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/lines"}]}), vec!["array"]),
            (json!({"properties": {}}), vec!["object"]),
            (json!({"items": {}}), vec!["array"]),
            (json!({"anyOf": [{"type": "string"}, {"type": "array"}]}), vec![]),
            (json!({"$ref": "#/$defs/self"}), vec![]),
            (json!({"$ref": "#/none"}), vec![]),
            (json!(true), vec![]),
        ] {
            assert_eq!(types(&schema, &root), expected, "{schema}");
        }
        assert!(is_container(&json!({"type": ["object", "null"]}), &root));
        assert!(!is_container(&json!({"type": ["array", "string"]}), &root));
        assert!(!is_container(&json!({}), &root));
    }
}
