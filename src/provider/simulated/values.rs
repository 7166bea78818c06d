//! The smallest honest input of a tool: what the text says in lines of `field: value`, and nothing where it
//! says nothing.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// A schema that is deeper, or refers to itself, ends there.
const MAX_DEPTH: usize = 8;

/// The tool's input for a text: members that a line of the text names, in any case, and those that the
/// schema requires, empty.
pub(super) fn fill(schema: &str, text: &str) -> String {
    let root: Value = serde_json::from_str(schema).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    // The first of equal names counts, as the last to be put in.
    let lines: Vec<_> =
        lines.map(|(name, value)| (name.trim().to_lowercase(), value.trim())).collect();
    let told: HashMap<String, &str> = lines.into_iter().rev().collect();
    Filler { root: &root, told: &told }.value(&root, 0).to_string()
}

struct Filler<'a> {
    root: &'a Value,
    told: &'a HashMap<String, &'a str>,
}

impl Filler<'_> {
    fn value(&self, schema: &Value, depth: usize) -> Value {
        let schema = self.referred(schema);
        let fixed = schema.get("const").or_else(|| schema["enum"].get(0));
        if let Some(fixed) = fixed {
            return fixed.clone();
        }
        match type_of(schema) {
            "object" => self.object(schema, depth),
            "array" => Value::Array(Vec::new()),
            "string" => Value::String(String::new()),
            "number" | "integer" => schema.get("minimum").cloned().unwrap_or(Value::from(0)),
            "boolean" => Value::Bool(false),
            _ => Value::Null,
        }
    }

    fn object(&self, schema: &Value, depth: usize) -> Value {
        let mut members = Map::new();
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (name, its) in schema["properties"].as_object().into_iter().flatten() {
            let told = self.told.get(&name.to_lowercase());
            if let Some(value) = told.and_then(|text| as_told(text, type_of(self.referred(its)))) {
                members.insert(name.clone(), value);
            } else if required.iter().any(|required| required == name) && depth < MAX_DEPTH {
                members.insert(name.clone(), self.value(its, depth + 1));
            }
        }
        Value::Object(members)
    }

    fn referred<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let path = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
        path.and_then(|path| self.root.pointer(path)).unwrap_or(schema)
    }
}

/// The first type that is not null.
fn type_of(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(types) => {
            types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default()
        }
        one => one.as_str().unwrap_or_default(),
    }
}

fn as_told(text: &str, wanted: &str) -> Option<Value> {
    match wanted {
        "string" => Some(Value::String(text.to_owned())),
        "number" => {
            text.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number)
        }
        "integer" => text.parse::<i64>().ok().map(Value::from),
        "boolean" => text.parse::<bool>().ok().map(Value::Bool),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_line_says_and_what_is_required() {
        let schema = json!({
            "type": "object",
            "required": ["merchant", "items", "total", "paid", "kind", "place"],
            "properties": {
                "merchant": {"type": ["string", "null"]},
                "note": {"type": "string"},
                "items": {"type": "array"},
                "total": {"type": "number"},
                "count": {"type": "integer"},
                "paid": {"type": "boolean"},
                "kind": {"enum": ["receipt", "invoice"]},
                "place": {"$ref": "#/$defs/place"},
            },
            "$defs": {"place": {"type": "object", "required": ["city"], "properties": {
                "city": {"type": "string"}, "street": {"type": "string"},
            }}},
        });
        let filled = |text: &str| -> Value {
            serde_json::from_str(&fill(&schema.to_string(), text)).unwrap()
        };
        let nothing = json!({
            "merchant": "", "items": [], "total": 0, "paid": false, "kind": "receipt",
            "place": {"city": ""},
        });
        assert_eq!(filled(""), nothing);
        let text = "Merchant: Tea & Co: the shop\r\nmerchant: another\nTOTAL: 12.50\ncount: many\nCity: Jena";
        let told = filled(text);
        assert_eq!(
            (&told["merchant"], &told["total"]),
            (&json!("Tea & Co: the shop"), &json!(12.5))
        );
        assert_eq!((told.get("count"), &told["place"]), (None, &json!({"city": "Jena"})));
    }
}
