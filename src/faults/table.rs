//! The one list of all faults: their variables, what these take, and a line of help each.

use std::fmt::Write;

/// What every variable of a fault begins with.
pub(super) const PREFIX: &str = "ONCEKEY_FAULT_";

/// Everything that can be made to go wrong, in the order of [`TABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    BeforeClaim,
    AfterClaim,
    BeforeCall,
    AfterCall,
    BeforeCommit,
    AfterCommit,
    AfterDelivery,
    RunPanic,
    ProviderFailOnce,
    ProviderLimit,
    ProviderHang,
    ProviderCut,
    ProviderSlow,
    DatabaseCutBeforeCommit,
    DatabaseCutAfterCommit,
    HeartbeatStall,
    /// Read by whoever builds a store.
    ClockOffset,
}

/// What the variable of a fault is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// `hang` or `panic`, every time or the first N times.
    Act,
    /// How many times.
    Times,
    Duration,
}

impl Takes {
    /// As it stands in the help.
    fn shown(self) -> &'static str {
        match self {
            Takes::Act => "ACT",
            Takes::Times => "N",
            Takes::Duration => "TIME",
        }
    }

    /// What a wrong value should have been.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Takes::Act => "hang or panic, or for the first times only hang:2 or panic:2",
            Takes::Times => "a whole number from 1, of how many times",
            Takes::Duration => "a duration like 2s or 500ms",
        }
    }
}

/// A fault as people know it.
#[derive(Debug)]
pub struct Row {
    pub fault: Fault,
    /// Without the prefix that all share.
    pub name: &'static str,
    pub(super) takes: Takes,
    pub help: &'static str,
}

impl Row {
    /// The whole variable's name.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

pub(super) const COUNT: usize = Fault::ClockOffset as usize + 1;

#[rustfmt::skip] // a table
pub static TABLE: [Row; COUNT] = [
    row(Fault::BeforeClaim, "BEFORE_CLAIM", Takes::Act, "at every arrival, before it claims its key"),
    row(Fault::AfterClaim, "AFTER_CLAIM", Takes::Act, "in every run, with the claim alone"),
    row(Fault::BeforeCall, "BEFORE_CALL", Takes::Act, "before every provider call"),
    row(Fault::AfterCall, "AFTER_CALL", Takes::Act, "after every provider call, its answer in hand"),
    row(Fault::BeforeCommit, "BEFORE_COMMIT", Takes::Act, "before every commit"),
    row(Fault::AfterCommit, "AFTER_COMMIT", Takes::Act, "after every commit, before anybody is told"),
    row(Fault::AfterDelivery, "AFTER_DELIVERY", Takes::Act, "after every delivery of an event, before it is marked"),
    row(Fault::RunPanic, "RUN_PANIC", Takes::Times, "the first N runs panic"),
    row(Fault::ProviderFailOnce, "PROVIDER_FAIL_ONCE", Takes::Times, "the first N provider calls fail with a 500, unsent"),
    row(Fault::ProviderLimit, "PROVIDER_LIMIT", Takes::Times, "the first N are refused with a 429, unsent"),
    row(Fault::ProviderHang, "PROVIDER_HANG", Takes::Times, "the first N hang, unsent, until first_byte_timeout"),
    row(Fault::ProviderCut, "PROVIDER_CUT", Takes::Times, "the first N are cut after their first text"),
    row(Fault::ProviderSlow, "PROVIDER_SLOW", Takes::Duration, "every call is delayed by it, within its deadlines"),
    row(Fault::DatabaseCutBeforeCommit, "DATABASE_CUT_BEFORE_COMMIT", Takes::Times, "the first N commits lose their connection unwritten"),
    row(Fault::DatabaseCutAfterCommit, "DATABASE_CUT_AFTER_COMMIT", Takes::Times, "the first N lose it, and the answer, once written"),
    row(Fault::HeartbeatStall, "HEARTBEAT_STALL", Takes::Duration, "from the first run on no beat is sent for so long, unnoticed"),
    row(Fault::ClockOffset, "CLOCK_OFFSET", Takes::Duration, "added to the clock that days and retentions come from"),
];

const fn row(fault: Fault, name: &'static str, takes: Takes, help: &'static str) -> Row {
    Row { fault, name, takes, help }
}

impl Fault {
    pub(super) fn row(self) -> &'static Row {
        // As long as the enum, and in its order: a test holds it.
        &TABLE[self as usize]
    }

    /// The word in logs.
    pub fn log_name(self) -> String {
        self.row().name.to_ascii_lowercase()
    }
}

/// The list for people: a line each, as it stands under `oncekey serve --help`.
pub fn help() -> String {
    let variables: Vec<_> =
        TABLE.iter().map(|row| format!("{}={}", row.variable(), row.takes.shown())).collect();
    let width = variables.iter().map(String::len).max().unwrap_or_default();
    let mut text = String::from(
        "Faults, for trying the ways back: variables, and only with ONCEKEY_FAULTS=on.\n",
    );
    for (variable, row) in variables.iter().zip(&TABLE) {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {variable:width$}  {}", row.help);
    }
    text.push_str(
        "ACT is hang or panic, at every time, or with :N at the first N. TIME is like 2s or 500ms.\n\
         Each fault that is taken is logged as a warning with event=fault.",
    );
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_has_its_row_and_a_name_of_its_own() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.fault as usize, place, "{} stands in another's place", row.name);
        }
        let names: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), COUNT);
    }

    #[test]
    fn the_help_has_a_short_line_for_each() {
        let help = help();
        for row in &TABLE {
            let start = format!("{}=", row.variable());
            let lines: Vec<_> =
                help.lines().filter(|line| line.trim_start().starts_with(&start)).collect();
            assert_eq!(lines.len(), 1, "{start}");
            assert!(lines[0].ends_with(row.help));
        }
        assert!(help.lines().all(|line| line.len() <= 110), "{help}");
    }
}
