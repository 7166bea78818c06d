//! Small houses with one thing wrong, and the same without it: a rule that cannot fail holds
//! nothing.

use super::rules::{self, Home, LongFile, Room};
use super::source::House;

const PLAN: &[Room] = &[
    Room { name: "domain", rooms: "", crates: Some("std serde") },
    Room { name: "clock", rooms: "domain", crates: None },
    Room { name: "store", rooms: "domain clock", crates: None },
    Room { name: "http", rooms: "domain", crates: None },
    Room { name: "app", rooms: "* but http", crates: None },
];
const HOMES: &[Home] = &[Home { krate: "sqlx", rooms: "store" }];

fn house(files: &[(&str, &str)]) -> House {
    let files: Vec<_> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let crates = ["std", "serde", "tokio", "sqlx", "metrics"].map(str::to_owned);
    House::read(&files, &crates.into()).unwrap()
}

/// What the rule says about one file beside an empty store.
fn about(name: &str, text: &str, rule: impl Fn(&House) -> Vec<String>) -> Vec<String> {
    rule(&house(&[("src/store/mod.rs", "pub mod claim {}"), (name, text)]))
}

fn rooms(house: &House) -> Vec<String> {
    rules::imports_between_rooms(house, PLAN)
}

fn crates(house: &House) -> Vec<String> {
    rules::other_crates(house, PLAN, HOMES)
}

#[test]
fn a_forbidden_room_is_found_however_it_is_named() {
    for text in [
        "use crate::store::claim::Claim;",
        "use crate::{domain::X, store::{claim::Claim}};",
        "use super::store;",
        "pub use crate::store::*;",
        "use crate::store as elsewhere;",
        "fn f() -> crate::store::Store { todo!() }",
        "fn f() { g::<crate::store::Store>() }",
        "fn f(x: X) { match x { crate::store::A => {} } }",
        "fn f() { tokio::select! { _ = crate::store::f() => {} } }",
        "#[derive(crate::store::Derive)] struct X;",
        "mod inner { use super::super::store; }",
        "#[cfg(test)] mod tests { use crate::store::X; }",
    ] {
        let violations = about("src/http/mod.rs", text, rooms);
        assert_eq!(violations.len(), 1, "{text}: {violations:?}");
        assert!(
            violations[0].starts_with("src/http/mod.rs:1: http may not import store"),
            "{text}: {violations:?}"
        );
    }
}

#[test]
fn what_the_plan_allows_is_no_violation() {
    for text in [
        "use crate::domain::X; use crate::http::y; use self::z::Z; use super::domain;",
        "mod store { pub fn f() {} } use self::store::f; fn g() { store::f() }",
        "/// See [`crate::store`].\nfn f() { let store = 1; }",
        "const TEXT: &str = \"crate::store\";",
    ] {
        assert_eq!(about("src/http/mod.rs", text, rooms), [""; 0], "{text}");
    }
    assert_eq!(
        about("src/store/a.rs", "use super::claim; use crate::clock::Clock;", rooms),
        [""; 0]
    );
}

#[test]
fn a_room_that_nobody_planned_is_found() {
    let violations = about("src/cellar/mod.rs", "", rooms);
    assert_eq!(violations, ["src/cellar/mod.rs: the room cellar is not in the table"]);
}

#[test]
fn crates_are_held_to_their_homes_and_lists() {
    for (name, text, expected) in [
        ("src/http/mod.rs", "use sqlx::PgPool;", "src/http/mod.rs:1: http may not use sqlx"),
        ("src/http/mod.rs", "\nfn f(x: ::sqlx::X) {}", "src/http/mod.rs:2: http may not use sqlx"),
        ("src/http/mod.rs", "fn f() { vec![sqlx::X] }", "src/http/mod.rs:1: http may not use sqlx"),
        ("src/domain/mod.rs", "use tokio;", "src/domain/mod.rs:1: domain may not use tokio"),
    ] {
        assert_eq!(about(name, text, crates), [expected], "{text}");
    }
    for (name, text) in [
        ("src/store/a.rs", "use sqlx::PgPool;"),
        ("src/domain/mod.rs", "use serde::Serialize; use std::fmt;"),
        ("src/domain/mod.rs", "use self::metrics::X; mod metrics {} fn f() { metrics::g() }"),
        ("src/domain/mod.rs", "#[cfg(test)] mod tests { use tokio::time; }"),
    ] {
        assert_eq!(about(name, text, crates), [""; 0], "{text}");
    }
}

#[test]
fn a_file_is_test_code_where_its_parent_says_so() {
    let tests = "use tokio::time;";
    for parent in ["#[cfg(test)] mod tests;", "#[cfg(test)] #[path = \"a_tests.rs\"] mod tests;"] {
        let file =
            if parent.contains("path") { "src/domain/a_tests.rs" } else { "src/domain/a/tests.rs" };
        let house = house(&[("src/domain/a.rs", parent), (file, tests)]);
        assert_eq!(crates(&house), [""; 0], "{parent}");
    }
    let house = house(&[("src/domain/a.rs", "mod tests;"), ("src/domain/a/tests.rs", tests)]);
    assert_eq!(crates(&house).len(), 1);
}

#[test]
fn sql_is_found_outside_the_store() {
    let rule = |house: &House| rules::sql_outside(house, &["store"]);
    for text in [
        "fn f() { sqlx::query!(\"select 1\"); }",
        "fn f() { query_as!(X, \"select 1\"); }",
        "fn f() { tokio::join!(query_scalar!(\"select 1\").fetch_one(x)); }",
        "fn f() { sqlx::query(\"select 1\"); }",
        "use sqlx::query as q;",
    ] {
        assert_eq!(about("src/http/mod.rs", text, rule), ["src/http/mod.rs:1: SQL lives in store"]);
        assert_eq!(about("src/store/a.rs", text, rule), [""; 0]);
    }
    let other = "fn query() {} fn f(query: X) { query(); assert!(query != (1)); }";
    assert_eq!(about("src/http/mod.rs", other, rule), [""; 0]);
}

#[test]
fn a_clock_is_found_outside_its_home() {
    let rule = |house: &House| rules::clocks_outside(house, &["src/clock.rs"]);
    for (text, clock) in [
        ("fn f() { chrono::Utc::now(); }", "Utc"),
        ("use std::time::Instant; fn f() { Instant::now(); }", "Instant"),
        ("fn f() { g(tokio::time::Instant::now) }", "Instant"),
        ("fn f() { println!(\"{:?}\", SystemTime::now()) }", "SystemTime"),
        ("#[test] fn f() { Local::now(); }", "Local"),
    ] {
        let expected = format!("src/http/mod.rs:1: {clock}::now belongs to src/clock.rs");
        assert_eq!(about("src/http/mod.rs", text, rule), [expected], "{text}");
        assert_eq!(about("src/clock.rs", text, rule), [""; 0]);
    }
    assert_eq!(about("src/http/mod.rs", "fn f() { clock.now(); }", rule), [""; 0]);
}

#[test]
fn waiting_is_found_where_decisions_are_made() {
    let rule = |house: &House| rules::asynchronous(house, "domain");
    for (text, what) in [
        ("async fn f() {}", "an async fn"),
        ("impl X { async fn f() {} }", "an async fn"),
        ("fn f() { async {}; }", "an async block"),
        ("fn f() { async_block(); g.await; }", "an await"),
    ] {
        let expected = format!("src/domain/a.rs:1: {what} in domain");
        assert_eq!(about("src/domain/a.rs", text, rule), [expected]);
        assert_eq!(about("src/http/a.rs", text, rule), [""; 0]);
    }
}

#[test]
fn a_circle_is_found_over_several_modules() {
    let circle = house(&[
        ("src/store/mod.rs", "mod a; mod b; mod c; mod d; use a::X;"),
        ("src/store/a.rs", "use super::b::Y; use super::d;"),
        ("src/store/b/mod.rs", "mod inner; use inner::Z;"),
        ("src/store/b/inner.rs", "use crate::store::c;"),
        ("src/store/c.rs", "fn f() { super::a::g() }"),
        ("src/store/d.rs", "use super::Store;"),
    ]);
    assert_eq!(
        rules::circles(&circle),
        ["modules import each other: \
          store::a → store::b (src/store/a.rs:1), \
          store::b → store::c (src/store/b/inner.rs:1), \
          store::c → store::a (src/store/c.rs:1)"]
    );
}

#[test]
fn parents_tests_and_one_way_imports_are_no_circle() {
    let straight = house(&[
        ("src/store/mod.rs", "mod a; mod b; use a::X; pub struct Store;"),
        ("src/store/a.rs", "use super::{Store, b::Y}; mod inner { use super::g; }"),
        ("src/store/b.rs", "use super::Store; #[cfg(test)] mod tests { use super::super::a::X; }"),
    ]);
    assert_eq!(rules::circles(&straight), [""; 0]);
}

#[test]
fn a_plan_with_a_circle_is_refused() {
    let plan = [
        Room { name: "a", rooms: "b", crates: None },
        Room { name: "b", rooms: "c", crates: None },
        Room { name: "c", rooms: "b", crates: None },
    ];
    let circular = ["b imports itself over others", "c imports itself over others"];
    assert_eq!(rules::circles_of_table(&plan), circular);
    assert_eq!(rules::circles_of_table(PLAN), [""; 0]);
}

#[test]
fn files_without_an_introduction_or_a_name_are_found() {
    let house = house(&[
        ("src/http/a.rs", "//! Why."),
        ("src/http/b.rs", "// What.\n//! Why."),
        ("src/http/utils.rs", "//! Why."),
        ("src/http/c.rs", "//! Why.\nmod helpers {}"),
    ]);
    assert_eq!(
        rules::introductions(&house),
        [
            "src/http/b.rs: begins without a //! about why it exists",
            "src/http/c.rs: helpers says nothing about what it holds",
            "src/http/utils.rs: utils says nothing about what it holds",
        ]
    );
}

#[test]
fn long_files_need_a_reason_and_reasons_a_long_file() {
    let files = [("a.rs", 11), ("b.rs", 10), ("c.rs", 11)]
        .map(|(name, lines)| (name.to_owned(), "x\n".repeat(lines)));
    let listed = [
        LongFile { name: "a.rs", reason: "a table" },
        LongFile { name: "b.rs", reason: "a table" },
    ];
    assert_eq!(
        rules::lengths(&files, 10, &listed),
        ["c.rs: 11 lines, at most 10: divide it", "b.rs: take it off the list of long files"]
    );
    let silent = [LongFile { name: "a.rs", reason: "" }];
    assert_eq!(rules::lengths(&files[..1], 10, &silent).len(), 1);
}
