//! What must not be, each rule as a function from the sources to its violations. A violation is a
//! line for a person: file, line, and what to do.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{House, ModulePath, Named, SourceFile, Target};

/// A folder or file directly under `src/`. Lists are words with blanks between them.
pub struct Room {
    pub name: &'static str,
    /// The rooms that it may import; `* but a b` for all except those.
    pub rooms: &'static str,
    /// The only crates that it may name; `None`: any that has no home elsewhere.
    pub crates: Option<&'static str>,
}

/// A crate that only some rooms may name.
pub struct Home {
    pub krate: &'static str,
    pub rooms: &'static str,
}

fn lists(list: &str, word: &str) -> bool {
    match list.strip_prefix("* but ") {
        Some(excepted) => !lists(excepted, word),
        None => list.split_whitespace().any(|listed| listed == word),
    }
}

/// A file that may be longer, and why.
pub struct LongFile {
    pub name: &'static str,
    pub reason: &'static str,
}

const SQL_MACROS: [&str; 9] = [
    "migrate",
    "query",
    "query_as",
    "query_as_unchecked",
    "query_file",
    "query_file_as",
    "query_file_scalar",
    "query_scalar",
    "query_unchecked",
];
const CLOCKS: [&str; 4] = ["Instant", "Local", "SystemTime", "Utc"];
/// Names that say where something lies and not what it is.
const EMPTY_NAMES: [&str; 6] = ["common", "helper", "helpers", "misc", "util", "utils"];

fn room_of(module: &[String]) -> &str {
    module.first().map_or("lib", String::as_str)
}

fn names(house: &House) -> impl Iterator<Item = (&SourceFile, &Named)> {
    house.files.iter().flat_map(|file| file.facts.names.iter().map(move |named| (file, named)))
}

/// Rooms import only what the table says, and every room is in it.
pub fn imports_between_rooms(house: &House, table: &[Room]) -> Vec<String> {
    let mut violations = BTreeSet::new();
    for file in &house.files {
        let room = room_of(&file.module);
        if room != "lib" && !table.iter().any(|known| known.name == room) {
            violations.insert(format!("{}: the room {room} is not in the table", file.name));
        }
    }
    for (file, named) in names(house) {
        let Target::Inner(path) = &named.target else { continue };
        let (from, to) = (room_of(&file.module), room_of(&house.module_named(path)).to_owned());
        let known = table.iter().find(|room| room.name == from);
        if to == from || to == "lib" || known.is_none_or(|room| lists(room.rooms, &to)) {
            continue;
        }
        violations.insert(format!(
            "{}:{}: {from} may not import {to} ({})",
            file.name,
            named.line,
            path.join("::")
        ));
    }
    violations.into_iter().collect()
}

/// Crates stay in their homes; a room with a list names nothing beside it. Test code is free.
pub fn other_crates(house: &House, table: &[Room], homes: &[Home]) -> Vec<String> {
    let mut violations = BTreeSet::new();
    for (file, named) in names(house).filter(|(_, named)| !named.test) {
        let Target::Outer(path) = &named.target else { continue };
        let (room, krate) = (room_of(&file.module), path[0].as_str());
        let listed = table.iter().find(|known| known.name == room).and_then(|known| known.crates);
        let home = homes.iter().find(|home| home.krate == krate);
        let allowed = match (listed, home) {
            (Some(listed), _) => lists(listed, krate),
            (None, Some(home)) => lists(home.rooms, room),
            (None, None) => true,
        };
        if !allowed {
            violations.insert(format!("{}:{}: {room} may not use {krate}", file.name, named.line));
        }
    }
    violations.into_iter().collect()
}

/// The macros of sqlx, under whatever name they are called, outside the rooms that hold SQL.
pub fn sql_outside(house: &House, homes: &[&str]) -> Vec<String> {
    let is_sql = |target: &Target| match target {
        Target::Macro(name) => SQL_MACROS.contains(&name.as_str()),
        Target::Outer(path) => path[0] == "sqlx",
        Target::Inner(_) | Target::Local(_) => false,
    };
    let mut violations = BTreeSet::new();
    for (file, named) in names(house) {
        if !homes.contains(&room_of(&file.module)) && is_sql(&named.target) {
            violations.insert(format!(
                "{}:{}: SQL lives in {}",
                file.name,
                named.line,
                homes.join(", ")
            ));
        }
    }
    violations.into_iter().collect()
}

/// Reading a clock outside the files that may, also in tests: a test that does is decided by the
/// speed of the machine.
pub fn clocks_outside(house: &House, homes: &[&str]) -> Vec<String> {
    let mut violations = BTreeSet::new();
    for (file, named) in names(house) {
        let (Target::Inner(path) | Target::Outer(path) | Target::Local(path)) = &named.target
        else {
            continue;
        };
        let [.., clock, now] = path.as_slice() else { continue };
        if now == "now" && CLOCKS.contains(&clock.as_str()) && !homes.contains(&&*file.name) {
            violations.insert(format!(
                "{}:{}: {clock}::now belongs to {}",
                file.name,
                named.line,
                homes.join(", ")
            ));
        }
    }
    violations.into_iter().collect()
}

/// Decisions wait for nothing.
pub fn asynchronous(house: &House, room: &str) -> Vec<String> {
    let files = house.files.iter().filter(|file| room_of(&file.module) == room);
    files
        .flat_map(|file| {
            let found = file.facts.asynchronous.iter();
            found.map(|(line, what)| format!("{}:{line}: {what} in {room}", file.name))
        })
        .collect()
}

/// Modules with one parent that import each other in a circle, over however many.
///
/// A parent and its children may name each other: the parent is the face of what lies in it. Test
/// code is left out, since it looks at everything.
pub fn circles(house: &House) -> Vec<String> {
    let mut edges: BTreeMap<ModulePath, BTreeMap<ModulePath, String>> = BTreeMap::new();
    for (file, named) in names(house).filter(|(_, named)| !named.test) {
        let Target::Inner(path) = &named.target else { continue };
        let to = house.module_named(path);
        let shared = named.from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        if shared == named.from.len() || shared == to.len() {
            continue;
        }
        edges
            .entry(named.from[..=shared].to_vec())
            .or_default()
            .entry(to[..=shared].to_vec())
            .or_insert_with(|| format!("{}:{}", file.name, named.line));
    }
    let mut violations = Vec::new();
    let mut told: BTreeSet<&ModulePath> = BTreeSet::new();
    for start in edges.keys() {
        if told.contains(start) {
            continue;
        }
        let circle: Vec<_> = edges
            .keys()
            .filter(|other| reaches(&edges, start, other) && reaches(&edges, other, start))
            .collect();
        told.extend(&circle);
        let inside = circle.iter().flat_map(|from| {
            let to = edges[*from].iter().filter(|(to, _)| circle.contains(to));
            to.map(|(to, place)| format!("{} → {} ({place})", from.join("::"), to.join("::")))
        });
        let inside: Vec<String> = inside.collect();
        if !inside.is_empty() {
            violations.push(format!("modules import each other: {}", inside.join(", ")));
        }
    }
    violations
}

fn reaches<P>(
    edges: &BTreeMap<ModulePath, BTreeMap<ModulePath, P>>,
    from: &ModulePath,
    to: &ModulePath,
) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for target in edges.get(module).into_iter().flat_map(BTreeMap::keys) {
            if target == to {
                return true;
            }
            if seen.insert(target) {
                next.push(target);
            }
        }
    }
    false
}

/// The table itself must not allow a circle.
pub fn circles_of_table(table: &[Room]) -> Vec<String> {
    let edges: BTreeMap<ModulePath, BTreeMap<ModulePath, ()>> = table
        .iter()
        .map(|room| {
            let others =
                table.iter().filter(|to| to.name != room.name && lists(room.rooms, to.name));
            let rooms = others.map(|to| (vec![to.name.to_owned()], ()));
            (vec![room.name.to_owned()], rooms.collect())
        })
        .collect();
    let circular = edges.keys().filter(|room| reaches(&edges, room, room));
    circular.map(|room| format!("{} imports itself over others", room.join("::"))).collect()
}

/// Every file says first why it exists, and bears a name that says what it is.
pub fn introductions(house: &House) -> Vec<String> {
    let mut violations = Vec::new();
    for file in &house.files {
        if !file.text.starts_with("//! ") {
            violations.push(format!("{}: begins without a //! about why it exists", file.name));
        }
        let own = std::iter::once(&file.module);
        for module in own.chain(file.facts.declared.iter().map(|declared| &declared.module)) {
            if let Some(name) = module.last().filter(|name| EMPTY_NAMES.contains(&name.as_str())) {
                violations.push(format!("{}: {name} says nothing about what it holds", file.name));
            }
        }
    }
    violations.sort();
    violations.dedup();
    violations
}

/// Files longer than `most` lines without a reason, and reasons that are no longer needed.
pub fn lengths(files: &[(String, String)], most: usize, longer: &[LongFile]) -> Vec<String> {
    let long: Vec<_> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.lines().count()))
        .filter(|(_, lines)| *lines > most)
        .collect();
    let mut violations = Vec::new();
    for (name, lines) in &long {
        if !longer.iter().any(|file| file.name == *name) {
            violations.push(format!("{name}: {lines} lines, at most {most}: divide it"));
        }
    }
    for LongFile { name, reason } in longer {
        if !long.iter().any(|(known, _)| known == name) || reason.is_empty() {
            violations.push(format!("{name}: take it off the list of long files"));
        }
    }
    violations
}
