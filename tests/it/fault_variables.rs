//! The variables of faults, as whoever starts a process meets them: refused unless allowed and right,
//! and all of them in the help and in the manual.

use std::path::Path;

use oncekey::faults::{TABLE, help};

use crate::support::process::{Ended, run};

const ON: (&str, &str) = ("ONCEKEY_FAULTS", "on");

/// A command that is expected to end by itself, on an address where nothing is.
async fn ended(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let nowhere = ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nothing");
    let all = variables.iter().chain([&nowhere]);
    let all: Vec<_> = all.map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
    run(Path::new("/"), arguments, &all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_is_not_allowed_not_known_or_not_understood_is_refused_at_the_start() {
    let fail = ("ONCEKEY_FAULT_PROVIDER_FAIL_ONCE", "1");
    let clock = ("ONCEKEY_FAULT_CLOCK_OFFSET", "2 parsecs");
    let misspelt = ("ONCEKEY_FAULT_PROVIDER_FAIL_ONE", "1");
    for (variables, told) in [
        (&[fail][..], &[fail.0, "ONCEKEY_FAULTS=on"][..]),
        (&[fail, ("ONCEKEY_FAULTS", "off")], &[fail.0, "ONCEKEY_FAULTS=on"]),
        (&[misspelt, ON], &[misspelt.0, fail.0]),
        (&[misspelt], &[misspelt.0, fail.0]),
        (&[(fail.0, "often"), ON], &["PROVIDER_FAIL_ONCE=often", "a whole number from 1"]),
        (&[clock, ON], &["CLOCK_OFFSET=2 parsecs", "a duration like"]),
        (&[("ONCEKEY_FAULTS", "yes")], &["ONCEKEY_FAULTS=yes", "on or off"]),
    ] {
        for command in ["serve", "audit"] {
            let ended = ended(&[command], variables).await;
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
            for part in told {
                assert!(ended.stderr.contains(part), "{part} in {}", ended.stderr);
            }
            assert_eq!(ended.stdout, "");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_help_and_the_manual_list_every_fault() {
    let shown = ended(&["serve", "--help"], &[]).await;
    assert_eq!(shown.code, Some(0));
    assert!(shown.stdout.contains(&help()), "{}", shown.stdout);
    let manual = std::fs::read_to_string("docs/operations.md").unwrap();
    let names = |text: &str| -> Vec<String> {
        let word = |part: &str| -> String {
            part.chars()
                .take_while(|letter| letter.is_ascii_uppercase() || *letter == '_')
                .collect()
        };
        text.split("ONCEKEY_FAULT_").skip(1).map(word).collect()
    };
    for text in [&shown.stdout, &manual] {
        let names = names(text);
        for row in &TABLE {
            assert!(names.iter().any(|name| name == row.name), "{} is missing", row.name);
        }
        let known = |name: &String| name.is_empty() || TABLE.iter().any(|row| row.name == name);
        assert!(names.iter().all(known), "{names:?}");
    }
    let short = ended(&["serve", "-h"], &[]).await;
    assert!(!short.stdout.contains("ONCEKEY_FAULT_"), "the short help is for every day");
}
