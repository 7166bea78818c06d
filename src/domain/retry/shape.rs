//! What a repeated call changes against the first one of its run.
//!
//! A failure that is in the request itself comes back as often as the same request is sent. So a
//! repeat after one takes another shape: a softer tier, a higher temperature, or what was wrong told
//! in plain words. Two shapes that are equal make the same bytes.

use std::fmt;

use crate::domain::failure::{Cause, FailureFacts, FailureKind};

/// Where the model takes a temperature, a repeated call has at least this one: at 0 a model gives
/// the same wrong answer as often as it is asked.
pub const HOTTER: f64 = 0.5;

/// How a call's request differs from the run's first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The place on the ladder: 0 is the model that was asked for.
    pub tier: usize,
    /// At [`HOTTER`].
    pub hotter: bool,
    /// What was wrong with the answers so far, in plain words.
    pub feedback: Vec<String>,
}

/// How a repeated call differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Without the parameter that the model refused.
    LeaveOut(crate::domain::prompt::Parameter),
    /// With what was wrong, and at [`HOTTER`] where the model takes a temperature.
    Feedback { hotter: bool },
}

impl fmt::Display for Change {
    /// As it stands in `provider_calls.changed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::LeaveOut(parameter) => write!(f, "without {}", parameter.as_str()),
            Change::Feedback { hotter: false } => f.write_str("feedback"),
            Change::Feedback { hotter: true } => write!(f, "feedback, temperature {HOTTER}"),
        }
    }
}

impl Shape {
    /// The shape after this change. A parameter that is left out is the model's to remember.
    #[must_use]
    pub fn changed(mut self, change: Change, wrong: String) -> Shape {
        match change {
            Change::LeaveOut(_) => {}
            Change::Feedback { hotter } => {
                self.hotter |= hotter;
                self.feedback.push(wrong);
            }
        }
        self
    }

    /// The shape at another tier. What was wrong stays wrong there; the temperature is that of a
    /// first call again.
    #[must_use]
    pub fn at_tier(self, tier: usize) -> Shape {
        Shape { tier, hotter: false, ..self }
    }

    /// The temperature to ask for, of the one that the client asked for.
    pub fn temperature(&self, asked: Option<f64>) -> Option<f64> {
        if !self.hotter {
            return asked;
        }
        Some(asked.map_or(HOTTER, |asked| asked.max(HOTTER)))
    }

    /// The message with what was wrong with earlier answers below it; as it is where nothing was.
    pub fn message(&self, message: &str) -> String {
        let mut text = message.to_owned();
        match self.feedback.as_slice() {
            [] => {}
            [wrong] => {
                text.push_str("\n\n(An earlier answer to this was not accepted: ");
                text.push_str(wrong);
                text.push_str(". Answer again so that this does not happen.)");
            }
            several => {
                text.push_str("\n\n(Earlier answers to this were not accepted.");
                for (number, wrong) in several.iter().enumerate() {
                    text.push_str(&format!(" Answer {}: {wrong}.", number + 1));
                }
                text.push_str(" Answer again so that none of this happens.)");
            }
        }
        text
    }
}

/// What to tell the model about a failed call, in plain words.
pub fn feedback(kind: FailureKind, facts: &FailureFacts) -> String {
    match (&facts.cause, kind) {
        (Cause::RuleBroken(violation), _) => violation.sentence(),
        (Cause::AnswerTooLong { limit_bytes }, _) => {
            format!("it was longer than {limit_bytes} bytes")
        }
        (_, FailureKind::Moderation) => {
            "it was stopped by a content filter; say it without what such a filter objects to"
                .to_owned()
        }
        (_, FailureKind::Empty) => "nothing was found; look once more".to_owned(),
        _ => "it could not be read".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::prompt::Parameter;
    use crate::domain::rules::{Violation, ViolationCode};

    #[test]
    fn the_model_is_told_both_numbers() {
        let violation = Violation {
            code: ViolationCode::MaxChars,
            actual: "63".into(),
            limit: "58".into(),
            told: String::new(),
        };
        let facts = FailureFacts::new(Cause::RuleBroken(violation));
        let hotter = Change::Feedback { hotter: true };
        let shape = Shape::default().changed(hotter, feedback(FailureKind::Invalid, &facts));
        let told = shape.message("A title, please.");
        assert!(told.starts_with("A title, please.\n\n"));
        assert!(told.contains("63 characters, at most 58"), "{told}");
        assert_eq!(shape.temperature(None), Some(0.5));
        assert_eq!(shape.temperature(Some(0.0)), Some(0.5));
        assert_eq!(shape.temperature(Some(0.9)), Some(0.9), "never colder than asked");
        assert_eq!(hotter.to_string(), "feedback, temperature 0.5");
    }

    #[test]
    fn every_further_feedback_makes_another_message() {
        let change = Change::Feedback { hotter: false };
        let mut shape = Shape::default();
        let mut seen = vec![shape.message("hello")];
        assert_eq!(seen[0], "hello");
        for _ in 0..5 {
            shape = shape.changed(change, "it was wrong".into());
            let message = shape.message("hello");
            assert!(!seen.contains(&message));
            seen.push(message);
        }
        let softer = shape.clone().at_tier(1);
        assert_eq!((softer.tier, softer.hotter), (1, false));
        assert_eq!(softer.feedback, shape.feedback);
        let left_out = Change::LeaveOut(Parameter::Temperature);
        assert_eq!(shape.clone().changed(left_out, "unused".into()), shape);
        assert_eq!(left_out.to_string(), "without temperature");
    }
}
