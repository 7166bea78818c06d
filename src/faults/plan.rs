//! What a process is asked to do wrong: read from variables, and refused as a whole where one of them
//! is not understood, since a fault that silently does not happen proves a recovery that never was.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::table::{Fault, PREFIX, Row, TABLE, Takes};

/// The variable that allows faults.
const SWITCH: &str = "ONCEKEY_FAULTS";

/// What happens to an operation at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Hang,
    Panic,
}

/// What a variable asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// `times` of nothing is every time.
    Act {
        act: Act,
        times: Option<NonZeroU32>,
    },
    Times(NonZeroU32),
    Duration(Duration),
}

impl fmt::Display for Asked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asked::Act { act, times } => {
                out.write_str(match act {
                    Act::Hang => "hang",
                    Act::Panic => "panic",
                })?;
                times.map_or(Ok(()), |times| write!(out, ":{times}"))
            }
            Asked::Times(times) => write!(out, "{times}"),
            Asked::Duration(duration) => humantime::format_duration(*duration).fmt(out),
        }
    }
}

impl Asked {
    fn read(takes: Takes, text: &str) -> Option<Self> {
        match takes {
            Takes::Act => {
                let (word, times) = match text.split_once(':') {
                    Some((word, times)) => (word, Some(times.parse().ok()?)),
                    None => (text, None),
                };
                let act = match word {
                    "hang" => Act::Hang,
                    "panic" => Act::Panic,
                    _ => return None,
                };
                Some(Asked::Act { act, times })
            }
            Takes::Times => text.parse().ok().map(Asked::Times),
            Takes::Duration => humantime::parse_duration(text).ok().map(Asked::Duration),
        }
    }

    /// How many times the fault is taken; `None`: as often as it is met.
    pub(super) fn limit(self) -> Option<u32> {
        match self {
            Asked::Act { times, .. } => times.map(NonZeroU32::get),
            Asked::Times(times) => Some(times.get()),
            Asked::Duration(_) => None,
        }
    }
}

/// The faults that were asked for; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    asked: BTreeMap<Fault, Asked>,
}

impl Plan {
    /// Reads the variables; others than those of faults are passed over. The error, for whoever
    /// starts the process, is one line that says which variable is wrong and how it is written
    /// right, or that faults are not switched on.
    pub fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let mut on = false;
        let mut asked = BTreeMap::new();
        for (name, text) in variables {
            if name == SWITCH {
                on = match text.as_str() {
                    "on" => true,
                    "off" | "" => false,
                    _ => return Err(format!("{SWITCH}={text}: expected on or off")),
                };
            } else if let Some(word) = name.strip_prefix(PREFIX) {
                let row = known(&name, word)?;
                let value = Asked::read(row.takes, &text)
                    .ok_or_else(|| format!("{name}={text}: expected {}", row.takes.expected()))?;
                asked.insert(row.fault, value);
            }
        }
        if !on && let Some(first) = asked.keys().next() {
            return Err(format!(
                "{} asks for a fault, which is not allowed here: set {SWITCH}=on as well, or unset it",
                first.row().variable()
            ));
        }
        Ok(Self { asked })
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// The time that a fault was given, where it is asked for and takes one.
    pub fn duration(&self, fault: Fault) -> Option<Duration> {
        match self.get(fault)? {
            Asked::Duration(duration) => Some(duration),
            Asked::Act { .. } | Asked::Times(_) => None,
        }
    }

    pub(super) fn get(&self, fault: Fault) -> Option<Asked> {
        self.asked.get(&fault).copied()
    }
}

/// As the variables were written, for the log.
impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (fault, asked)) in self.asked.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(out, "{comma}{}={asked}", fault.row().name)?;
        }
        Ok(())
    }
}

fn known(name: &str, word: &str) -> Result<&'static Row, String> {
    if let Some(row) = TABLE.iter().find(|row| row.name == word) {
        return Ok(row);
    }
    let upper = word.to_ascii_uppercase();
    let nearest = TABLE.iter().min_by_key(|row| strsim::osa_distance(row.name, &upper));
    let nearest = nearest.map_or(String::new(), Row::variable);
    Err(format!("{name}: no such fault; the nearest is {nearest}; oncekey serve --help lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: (&str, &str) = (SWITCH, "on");

    fn read(variables: &[(&str, &str)]) -> Result<Plan, String> {
        Plan::read(variables.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())))
    }

    fn example(takes: Takes) -> [&'static str; 2] {
        match takes {
            Takes::Act => ["hang", "panic:2"],
            Takes::Times => ["1", "3"],
            Takes::Duration => ["2s", "500ms"],
        }
    }

    #[test]
    fn every_fault_is_read_and_shown_as_it_was_written() {
        for row in &TABLE {
            for text in example(row.takes) {
                let plan = read(&[(&row.variable(), text), ON]).unwrap();
                assert_eq!(plan.to_string(), format!("{}={text}", row.name));
                assert!(plan.get(row.fault).is_some() && !plan.is_empty());
            }
        }
        let two = [("ONCEKEY_FAULT_RUN_PANIC", "1"), ("ONCEKEY_FAULT_BEFORE_CALL", "hang"), ON];
        assert_eq!(read(&two).unwrap().to_string(), "BEFORE_CALL=hang, RUN_PANIC=1");
    }

    #[test]
    fn nothing_is_asked_for_by_default() {
        for variables in [&[][..], &[ON], &[("ONCEKEY_LISTEN", "x")], &[("FAULT_RUN_PANIC", "x")]] {
            assert_eq!(read(variables), Ok(Plan::default()));
        }
    }

    #[test]
    fn each_is_refused_unless_switched_on() {
        for row in &TABLE {
            let variable = row.variable();
            let text = example(row.takes)[0];
            for switch in [None, Some("off"), Some("")] {
                let mut variables = vec![(variable.as_str(), text)];
                variables.extend(switch.map(|switch| (SWITCH, switch)));
                let error = read(&variables).unwrap_err();
                assert!(
                    error.contains(&variable) && error.contains("ONCEKEY_FAULTS=on"),
                    "{error}"
                );
            }
        }
        let error = read(&[(SWITCH, "yes")]).unwrap_err();
        assert_eq!(error, "ONCEKEY_FAULTS=yes: expected on or off");
    }

    #[test]
    fn a_wrong_value_is_told_what_is_expected() {
        for row in &TABLE {
            let variable = row.variable();
            for text in ["", "0", "-1", "explode", "hang:", "hang:0", "panic:x", "2 parsecs"] {
                if row.takes == Takes::Duration && text == "0" {
                    continue;
                }
                let error = read(&[(&variable, text), ON]).unwrap_err();
                let expected = format!("{variable}={text}: expected {}", row.takes.expected());
                assert_eq!(error, expected);
            }
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest() {
        for (written, nearest) in [
            ("PROVIDER_FAILS_ONCE", "PROVIDER_FAIL_ONCE"),
            ("before_commit", "BEFORE_COMMIT"),
            ("DATABASE_CUT_AFTER_COMIT", "DATABASE_CUT_AFTER_COMMIT"),
            ("CLOCKOFFSET", "CLOCK_OFFSET"),
        ] {
            let variable = format!("{PREFIX}{written}");
            let error = read(&[(&variable, "1"), ON]).unwrap_err();
            assert!(error.starts_with(&variable), "{error}");
            assert!(error.contains(&format!("{PREFIX}{nearest};")), "{error}");
        }
        assert!(read(&[(PREFIX, "1"), ON]).is_err());
    }
}
