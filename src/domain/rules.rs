//! What an operator asks of a model's answers, and what is told where one breaks it.
//!
//! A broken rule is a [`Violation`]: a word for machines and both measured values, so that the
//! model can be told in plain words what to mend (see [`Violation::sentence`]), and a log line can
//! carry the numbers without a piece of the answer.

use std::fmt;
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use regex::Regex;
use serde_json::Value;

/// Of a sentence that is told back to the model, in characters; a schema's own words may repeat a
/// whole answer.
const MAX_TOLD_CHARS: usize = 300;

/// The rules of a model, all of which an answer must keep.
#[derive(Debug, Clone, Default)]
pub struct AnswerRules {
    /// Characters (Unicode scalar values), not bytes.
    pub max_chars: Option<usize>,
    pub must_match: Option<Regex>,
    pub json_schema: Option<Schema>,
}

/// A JSON Schema, compiled; it refers to nothing outside itself.
#[derive(Clone)]
pub struct Schema {
    text: String,
    validator: Arc<Validator>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.text).finish()
    }
}

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn read(text: &str) -> Result<Schema, String> {
        let schema: Value =
            serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
        // Patterns in linear time: the answers that they are held against are not ours.
        let validator = jsonschema::options()
            .with_pattern_options(PatternOptions::regex())
            .build(&schema)
            .map_err(|error| bounded(&format!("no JSON Schema: {error}")))?;
        Ok(Schema { text: text.to_owned(), validator: Arc::new(validator) })
    }
}

/// Which rule was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ViolationCode {
    MaxChars,
    MustMatch,
    /// It is no JSON at all.
    JsonSyntax,
    JsonSchema,
    /// Longer than what is held of an answer.
    MaxBytes,
}

impl ViolationCode {
    /// The word in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            ViolationCode::MaxChars => "max_chars",
            ViolationCode::MustMatch => "must_match",
            ViolationCode::JsonSyntax => "json_syntax",
            ViolationCode::JsonSchema => "json_schema",
            ViolationCode::MaxBytes => "max_bytes",
        }
    }
}

/// A rule that an answer breaks, with what was measured and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Violation {
    pub code: ViolationCode,
    /// A number; the place in a JSON value; empty where nothing can be measured. Nothing of the
    /// answer's own text, so that it can be logged.
    pub actual: String,
    /// A number, a pattern, a place in a schema.
    pub limit: String,
    /// What a validator says about it in words, for the model alone: it may repeat the answer.
    pub told: String,
}

impl Violation {
    /// Plain words for the model.
    pub fn sentence(&self) -> String {
        let Violation { actual, limit, told, .. } = self;
        match self.code {
            ViolationCode::MaxChars => {
                format!("it has {actual} characters, at most {limit} are allowed")
            }
            ViolationCode::MustMatch => {
                format!("it does not match the regular expression {limit}")
            }
            ViolationCode::JsonSyntax => format!(
                "it is not valid JSON ({told}): answer with one JSON value and nothing around it"
            ),
            ViolationCode::JsonSchema => format!("its JSON breaks the schema {told}"),
            ViolationCode::MaxBytes => format!("it is longer than {limit} bytes"),
        }
    }
}

impl fmt::Display for Violation {
    /// For the log: the code and both values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} against {:?}", self.code.as_str(), self.actual, self.limit)
    }
}

impl PartialEq for AnswerRules {
    /// Equal where they were written alike.
    fn eq(&self, other: &Self) -> bool {
        let written = |rules: &AnswerRules| {
            let pattern = rules.must_match.as_ref().map(|it| it.as_str().to_owned());
            let schema = rules.json_schema.as_ref().map(|it| it.text.clone());
            (rules.max_chars, pattern, schema)
        };
        written(self) == written(other)
    }
}

impl Eq for AnswerRules {}

impl AnswerRules {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.max_chars.is_none() && self.must_match.is_none() && self.json_schema.is_none()
    }

    /// Whether an answer that the output limit cut short can keep them at all.
    pub fn need_the_whole(&self) -> bool {
        self.json_schema.is_some()
    }

    /// Holds an answer against the rules; the first that is broken is told.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn check(&self, answer: &str) -> Result<(), Violation> {
        if let Some(limit) = self.max_chars {
            let actual = answer.chars().count();
            if actual > limit {
                return Err(violation(ViolationCode::MaxChars, actual, limit, ""));
            }
        }
        if let Some(pattern) = &self.must_match
            && !pattern.is_match(answer)
        {
            return Err(violation(ViolationCode::MustMatch, "", pattern.as_str(), ""));
        }
        match &self.json_schema {
            Some(schema) => schema.check(answer),
            None => Ok(()),
        }
    }
}

impl Schema {
    /// The schema as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn check(&self, answer: &str) -> Result<(), Violation> {
        let value: Value = serde_json::from_str(answer).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            violation(ViolationCode::JsonSyntax, place, "one JSON value", error)
        })?;
        self.check_value(&value)
    }

    /// Holds a value against the schema.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check_value(&self, value: &Value) -> Result<(), Violation> {
        let Err(error) = self.validator.validate(value) else { return Ok(()) };
        // A member's name is the answer's own text: the log gets the depth, the model the path.
        let place = error.instance_path().to_string();
        let depth = place.matches('/').count();
        let told = format!("at {:?}: {error}", place);
        let rule = error.schema_path().to_string();
        Err(violation(ViolationCode::JsonSchema, format!("depth {depth}"), rule, told))
    }
}

/// A violation with every text within its bound.
pub(super) fn violation(
    code: ViolationCode,
    actual: impl ToString,
    limit: impl ToString,
    told: impl ToString,
) -> Violation {
    let (actual, limit) = (actual.to_string(), bounded(&limit.to_string()));
    Violation { code, actual, limit, told: bounded(&told.to_string()) }
}

fn bounded(text: &str) -> String {
    match text.char_indices().nth(MAX_TOLD_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(rules: &AnswerRules, answer: &str) -> (ViolationCode, String, String) {
        let violation = rules.check(answer).unwrap_err();
        (violation.code, violation.actual, violation.limit)
    }

    #[test]
    fn sixty_three_characters_against_fifty_eight() {
        let rules = AnswerRules { max_chars: Some(58), ..AnswerRules::default() };
        let title = "ü".repeat(63);
        let violation = rules.check(&title).unwrap_err();
        assert_eq!((&*violation.actual, &*violation.limit), ("63", "58"));
        assert_eq!(violation.sentence(), "it has 63 characters, at most 58 are allowed");
        assert_eq!(rules.check(&"ü".repeat(58)), Ok(()));
        assert_eq!(rules.check(""), Ok(()));
    }

    #[test]
    fn a_pattern_is_searched_for_and_anchors_are_the_operators() {
        let must_match = Some(Regex::new("^[A-Z]").unwrap());
        let rules = AnswerRules { must_match, ..AnswerRules::default() };
        assert_eq!(rules.check("Title"), Ok(()));
        let told = broken(&rules, "title");
        assert_eq!(told, (ViolationCode::MustMatch, String::new(), "^[A-Z]".to_owned()));
    }

    #[test]
    fn json_is_held_against_its_schema_and_the_log_holds_nothing_of_it() {
        let schema = r#"{"type": "object", "required": ["title"],
            "properties": {"title": {"type": "string", "maxLength": 5}}}"#;
        let schema = Some(Schema::read(schema).unwrap());
        let rules = AnswerRules { json_schema: schema, ..AnswerRules::default() };
        assert!(rules.need_the_whole());
        assert_eq!(rules.check(r#" {"title": "short"} "#), Ok(()));
        assert_eq!(broken(&rules, "Here it is: {}").0, ViolationCode::JsonSyntax);
        assert_eq!(broken(&rules, "").0, ViolationCode::JsonSyntax);
        assert_eq!(broken(&rules, r#"{"title": "short"} and more"#).0, ViolationCode::JsonSyntax);
        assert_eq!(broken(&rules, "{}").0, ViolationCode::JsonSchema);

        let long = rules.check(r#"{"title": "my secret life"}"#).unwrap_err();
        assert_eq!(long.code, ViolationCode::JsonSchema);
        assert!(long.sentence().contains("/title"), "{}", long.sentence());
        assert!(!long.to_string().contains("secret"), "{long}");
        let huge = format!(r#"{{"title": "{}"}}"#, "x".repeat(100_000));
        let told = rules.check(&huge).unwrap_err();
        assert!(told.sentence().chars().count() < 3 * MAX_TOLD_CHARS);
    }

    #[test]
    fn a_schema_that_is_none_or_points_elsewhere_is_refused() {
        for text in ["{", r#"{"type": "strnig"}"#, r#"{"pattern": "("}"#, r##"{"$ref": "#/no"}"##] {
            assert!(Schema::read(text).is_err(), "{text}");
        }
        assert!(Schema::read(r#"{"$ref": "http://127.0.0.1:1/schema.json"}"#).is_err());
        assert!(Schema::read("true").is_ok());
    }
}
