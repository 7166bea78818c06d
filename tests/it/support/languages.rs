//! The clients in other languages, as programs that ask one thing and say what they were told, a line of
//! JSON each.
//!
//! Where a language is missing on this machine its part is left out, and that is said; with
//! `ONCEKEY_CLIENTS=required` in the environment, as in CI, it fails instead.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::OnceCell;

use super::provider::patiently;

/// A language that has a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Python,
    TypeScript,
}

/// Whether the languages can be used on this machine, found out once; the text says what is missing.
static USABLE: OnceCell<[Result<Language, String>; 2]> = OnceCell::const_new();

/// Those that this machine has.
pub async fn languages() -> Vec<Language> {
    let usable = USABLE.get_or_init(|| async { [python().await, typescript().await] }).await;
    let required = std::env::var("ONCEKEY_CLIENTS").is_ok_and(|value| value == "required");
    let mut found = Vec::new();
    for language in usable {
        match language {
            Ok(language) => found.push(*language),
            Err(missing) if required => panic!("{missing}"),
            // Past what the test harness takes in: it would not show it.
            Err(missing) => {
                drop(writeln!(std::io::stderr(), "left out: {missing}"));
            }
        }
    }
    found
}

async fn python() -> Result<Language, String> {
    at_least("python3", 3, 9).await?;
    Ok(Language::Python)
}

/// Builds the client, so that what is tested is what stands in its sources.
async fn typescript() -> Result<Language, String> {
    at_least("node", 18, 0).await?;
    let folder = Language::TypeScript.folder();
    let compiler = folder.join("node_modules/typescript/bin/tsc");
    if !compiler.exists() {
        let installed = output(Command::new("npm").arg("ci").current_dir(&folder)).await;
        if !installed.as_ref().is_ok_and(|output| output.status.success()) {
            return Err(format!("npm ci in {}: {installed:?}", folder.display()));
        }
    }
    let built = output(Command::new("node").arg(compiler).current_dir(&folder)).await.unwrap();
    assert!(built.status.success(), "{}", said(&built));
    Ok(Language::TypeScript)
}

/// Whether the program is there, in this version or a later one.
async fn at_least(program: &str, major: u32, minor: u32) -> Result<(), String> {
    let needed = format!("{program} {major}.{minor} or later");
    let told = output(Command::new(program).arg("--version")).await;
    let told = told.map_err(|error| format!("{needed} is missing: {error}"))?;
    let version = said(&told);
    let numbers = version.trim().trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let mut numbers = numbers.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < (major, minor) { Err(format!("{needed} is missing: {version}")) } else { Ok(()) }
}

async fn output(command: &mut Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).kill_on_drop(true).output().await
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

impl Language {
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::TypeScript => "typescript",
        }
    }

    fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(self.name())
    }

    fn command(self, arguments: &[&str]) -> Command {
        let mut command = Command::new(match self {
            Language::Python => "python3",
            Language::TypeScript => "node",
        });
        command
            .args(arguments)
            .current_dir(self.folder())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("PYTHONPATH", "src")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// The tests of its own, which need no server: the shared table among them.
    pub async fn own_tests(self) {
        let arguments: &[&str] = match self {
            Language::Python => &["-m", "unittest", "discover", "-s", "tests", "-t", "."],
            Language::TypeScript => &["--test", "tests/vectors.test.mjs", "tests/client.test.mjs"],
        };
        let what = format!("the tests of {}", self.name());
        let output = patiently(&what, self.command(arguments).output()).await.unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    /// Asks; `journal` is a folder that it keeps its operations in.
    pub fn ask(
        self,
        server: SocketAddr,
        api_key: &str,
        journal: Option<&Path>,
        ask: &Value,
    ) -> Asking {
        let program = match self {
            Language::Python => "tests/against_server.py",
            Language::TypeScript => "tests/against_server.mjs",
        };
        let mut command = self.command(&[program, &ask.to_string()]);
        command
            .env("ONCEKEY_TEST_SERVER", format!("http://{server}"))
            .env("ONCEKEY_API_KEY", api_key)
            .envs(journal.map(|folder| ("ONCEKEY_TEST_JOURNAL", folder)))
            .stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Asking { child, lines, all: Vec::new(), language: self }
    }
}

/// A program that asks.
pub struct Asking {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    all: Vec<Value>,
    language: Language,
}

impl Asking {
    /// Waits until it says something with this member, and gives that.
    pub async fn until(&mut self, member: &str) -> Value {
        self.until_such(member, |_| true).await
    }

    /// The same of which this holds.
    pub async fn until_such(&mut self, member: &str, such: impl Fn(&Value) -> bool) -> Value {
        let what = format!("{} to say {member}", self.language.name());
        loop {
            let Some(line) = patiently(&what, self.lines.next_line()).await.unwrap() else {
                panic!("{} ended and said {:?}", self.language.name(), self.all);
            };
            let line: Value = serde_json::from_str(&line).unwrap();
            self.all.push(line.clone());
            if let Some(told) = line.get(member).filter(|told| such(told)) {
                return told.clone();
            }
        }
    }

    /// Waits for its end; everything that it said with this member.
    pub async fn rest(&mut self, member: &str) -> Vec<Value> {
        let what = format!("{} to end", self.language.name());
        while let Some(line) = patiently(&what, self.lines.next_line()).await.unwrap() {
            self.all.push(serde_json::from_str(&line).unwrap());
        }
        let ended = patiently(&what, self.child.wait()).await.unwrap();
        assert!(ended.success(), "{}: {ended}, {:?}", self.language.name(), self.all);
        self.all.iter().filter_map(|line| line.get(member).cloned()).collect()
    }

    /// Kills it, as a system kills an app.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}
