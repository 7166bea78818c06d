//! The result of a parse as a person reads it.

use serde_json::Value;

/// Valid JSON with a line for each member, in the order in which it came.
pub fn indented(json: &str) -> String {
    let (mut out, mut depth) = (String::with_capacity(json.len() * 2), 0_usize);
    let (mut in_text, mut escaped, mut before) = (false, false, ' ');
    for character in json.chars() {
        if in_text {
            out.push(character);
            in_text = escaped || character != '"';
            escaped = !escaped && character == '\\';
            continue;
        }
        if matches!(character, ' ' | '\t' | '\n' | '\r') {
            continue;
        }
        let closes = matches!(character, '}' | ']');
        if closes {
            depth = depth.saturating_sub(1);
        }
        let opened = matches!(before, '{' | '[');
        if (opened || before == ',' || closes) && !(opened && closes) {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        }
        out.push(character);
        match character {
            '{' | '[' => depth += 1,
            ':' => out.push(' '),
            '"' => in_text = true,
            _ => {}
        }
        before = character;
    }
    out.push('\n');
    out
}

/// Who says what, in the form in which a parse takes it again; `None` where the result is no script.
pub fn script(result: &Value) -> Option<String> {
    let mut out = String::new();
    let title = result.get("title").and_then(Value::as_str).unwrap_or_default().trim();
    if !title.is_empty() {
        out.push_str(title);
        out.push_str("\n\n");
    }
    for speech in result.get("dialogue")?.as_array()? {
        let character = speech.get("character")?.as_str()?;
        let line = speech.get("line")?.as_str()?;
        // A speech of several lines is one speech.
        let line = line.lines().collect::<Vec<_>>().join("\n    ");
        out.push_str(&format!("{character}: {line}\n"));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_keeps_its_order_and_its_texts() {
        let json = r#"{"z":[{"b":"a, \\\"{[: ]}"},2.50],"a":{}, "e":[],"n":null}"#;
        let text = indented(json);
        let expected = "{\n  \"z\": [\n    {\n      \"b\": \"a, \\\\\\\"{[: ]}\"\n    },\n    2.50\n  ],\n  \
                        \"a\": {},\n  \"e\": [],\n  \"n\": null\n}\n";
        assert_eq!(text, expected);
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(&text), read(json));
    }

    #[test]
    fn a_script_reads_as_one() {
        let result = json!({"title": " Tea ", "characters": ["MARA"], "dialogue": [
            {"character": "MARA", "line": "Is it boiling?"},
            {"character": "OTTO", "line": "Not\nyet."},
        ]});
        let expected = "Tea\n\nMARA: Is it boiling?\nOTTO: Not\n    yet.\n";
        assert_eq!(script(&result).as_deref(), Some(expected));
        assert_eq!(script(&json!({"title": "", "dialogue": []})).as_deref(), Some(""));
        assert_eq!(script(&json!({"total": 3})), None);
        assert_eq!(script(&json!({"dialogue": [{"line": "x"}]})), None);
    }
}
