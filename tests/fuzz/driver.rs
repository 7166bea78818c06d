//! Where inputs come from, for how long, and what is told of one that fails.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Judged;
use super::rng::Rng;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/kept");
/// Of a run without a time: a second or two without optimisation.
const SMALL: u64 = 30_000;
/// No input is let grow further than this, in bytes.
const MAX_INPUT: usize = 4_096;
/// Tries at making a failing input shorter.
const SHORTENINGS: u32 = 20_000;

/// What inputs grow from, and words that are put into them.
pub struct Corpus {
    pub seeds: Vec<Vec<u8>>,
    pub words: &'static [&'static str],
}

/// How much is tried.
#[derive(Clone, Copy)]
pub struct Budget {
    seed: u64,
    inputs: u64,
    time: Option<Duration>,
}

impl Budget {
    /// The same inputs in every run, and no clock.
    pub fn small() -> Self {
        Self { seed: 1, inputs: SMALL, time: None }
    }

    /// As the variables of the process ask.
    fn of_process() -> Self {
        let seed = number("ONCEKEY_FUZZ_SEED");
        let Some(seconds) = number("ONCEKEY_FUZZ_SECONDS") else {
            return Self { seed: seed.unwrap_or(1), ..Self::small() };
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = seed.unwrap_or(now.as_nanos() as u64);
        Self { seed, inputs: u64::MAX, time: Some(Duration::from_secs(seconds)) }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")))
}

/// An input that failed, and what is wrong with what the product says of it.
#[derive(Debug)]
pub struct Found {
    pub input: Vec<u8>,
    pub wrong: String,
}

/// Tries the kept inputs of a target, then new ones; ends the test at the first that fails.
pub fn check(name: &str, corpus: &Corpus, target: impl Fn(&[u8]) -> Judged) {
    if let Some(file) = std::env::var_os("ONCEKEY_FUZZ_INPUT") {
        let input = fs::read(&file).unwrap();
        let judged = judged(&target, &input);
        eprintln!("{}: {judged:?}", Path::new(&file).display());
        assert!(judged.is_ok(), "{judged:?}");
        return;
    }
    for file in files(&Path::new(KEPT).join(name)) {
        let judged = judged(&target, &fs::read(&file).unwrap());
        assert!(judged.is_ok(), "{}: {judged:?}", file.display());
    }
    let budget = Budget::of_process();
    if let Some(found) = fuzz(name, corpus, budget, &target) {
        panic!("{}", report(name, budget.seed, &found));
    }
}

/// The files of a folder, which need not be there, in the order of their names.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Tries inputs until one fails or the budget is used up.
pub fn fuzz(
    name: &str,
    corpus: &Corpus,
    budget: Budget,
    target: &dyn Fn(&[u8]) -> Judged,
) -> Option<Found> {
    let begun = Instant::now();
    let mut rng = Rng::new(budget.seed);
    let mut pool = corpus.seeds.clone();
    let mut shapes = HashSet::new();
    let seeds = corpus.seeds.iter().cloned().map(Some);
    for (tried, next) in (0..).zip(seeds.chain(std::iter::repeat(None))) {
        let in_time = budget.time.is_none_or(|time| begun.elapsed() < time);
        if tried == budget.inputs || !in_time {
            eprintln!("{name}: {tried} inputs of {} shapes, seed {}", shapes.len(), budget.seed);
            return None;
        }
        let input = next.unwrap_or_else(|| mutated(&mut rng, &pool, corpus.words));
        match judged(target, &input) {
            Ok(shape) => {
                if shapes.insert(shape) {
                    pool.push(input);
                }
            }
            Err(wrong) => return Some(shortened(target, Found { input, wrong })),
        }
    }
    None
}

/// What a target says; that it panics is as wrong as anything.
pub fn judged(target: &dyn Fn(&[u8]) -> Judged, input: &[u8]) -> Judged {
    catch_unwind(AssertUnwindSafe(|| target(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&'static str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(format!("it panicked: {text}"))
    })
}

/// One of the pool, changed in a few places.
fn mutated(rng: &mut Rng, pool: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut input = rng.pick(pool).clone();
    for _ in 0..1 << rng.below(4) {
        // The ends are places of their own.
        let at = [0, input.len(), rng.below(input.len() + 1)][rng.below(20).min(2)];
        // Mostly short.
        let length = 1 << rng.below(7);
        let end = input.len().min(at + rng.below(length) + 1);
        match rng.below(10) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.next() as u8,
            2 => input.insert(at, rng.next() as u8),
            3 => drop(input.drain(at..end)),
            4 => {
                let part = input[at..end].to_vec();
                let to = rng.below(input.len() + 1);
                input.splice(to..to, part);
            }
            5 => {
                let other = rng.pick(pool);
                let from = rng.below(other.len() + 1);
                let to = other.len().min(from + rng.below(length) + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
            6 => {
                let other = rng.pick(pool);
                let from = rng.below(other.len() + 1);
                input.splice(at.., other[from..].iter().copied());
            }
            7 if !words.is_empty() => drop(input.splice(at..at, rng.pick(words).bytes())),
            8 if !words.is_empty() => drop(input.splice(at..end, rng.pick(words).bytes())),
            _ if !words.is_empty() => {
                let word = word_around(&input, at);
                input.splice(word, rng.pick(words).bytes());
            }
            _ => {}
        }
        input.truncate(MAX_INPUT);
    }
    input
}

/// The number or name that a place is in.
fn word_around(input: &[u8], at: usize) -> Range<usize> {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(byte);
    let before = input[..at].iter().rev().take_while(|byte| part(byte)).count();
    let after = input[at..].iter().take_while(|byte| part(byte)).count();
    at - before..at + after
}

/// Takes parts away, as long as it still fails.
fn shortened(target: &dyn Fn(&[u8]) -> Judged, mut found: Found) -> Found {
    let mut tries = 0;
    let mut part = found.input.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < found.input.len() && tries < SHORTENINGS {
            tries += 1;
            let mut input = found.input.clone();
            input.drain(at..input.len().min(at + part));
            match judged(target, &input) {
                Err(wrong) => found = Found { input, wrong },
                Ok(_) => at += part,
            }
        }
        part /= 2;
    }
    found
}

/// Says what failed and how to see it again.
fn report(name: &str, seed: u64, found: &Found) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{name}-{seed}"));
    fs::write(&file, &found.input).unwrap();
    let mut text = format!("{name}, seed {seed}: {}\n", found.wrong);
    let _ = writeln!(text, "  input: \"{}\"", found.input.escape_ascii());
    let _ = write!(
        text,
        "  again: ONCEKEY_FUZZ_INPUT={} cargo test --test fuzz {name}",
        file.display()
    );
    text
}
