//! The real binary as a process of its own, for tests that kill, stop and signal it.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::client::Client;
use super::database::{TestDatabase, coalesces};
use super::node::{captures_folder, provider_variables};
use super::provider::{ScriptedProvider, Wire, patiently};

/// A running `oncekey serve`; killed when dropped.
pub struct ProcessNode {
    child: Child,
    pub address: SocketAddr,
    stdout: Arc<watch::Sender<Vec<String>>>,
    stderr: Arc<watch::Sender<Vec<String>>>,
}

impl ProcessNode {
    /// Starts the binary with nothing of this process's environment but its search path.
    pub async fn start(variables: Vec<(String, String)>) -> Self {
        Self::begin(oncekey(None, &["serve"], &variables)).listening().await
    }

    /// The same on a database and a scripted provider; `also` wins over what these need.
    pub async fn on(
        database: &TestDatabase,
        provider: &ScriptedProvider,
        also: &[(&str, &str)],
    ) -> Self {
        Self::begin_on(database, provider, also).listening().await
    }

    /// The same, without waiting until it listens; it has no address yet.
    pub fn begin_on(
        database: &TestDatabase,
        provider: &ScriptedProvider,
        also: &[(&str, &str)],
    ) -> Self {
        Self::begin(oncekey(None, &["serve"], &variables_on(database, provider, also)))
    }

    /// The same with nobody at the other end of its standard output.
    pub async fn unread_on(database: &TestDatabase, provider: &ScriptedProvider) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = oncekey(None, &["serve"], &variables_on(database, provider, &[]));
        command.stdout(writer);
        let mut node = Self::begin(command);
        let line = node.until_event("listening", |_| true).await;
        node.address = line["address"].as_str().unwrap().parse().unwrap();
        node
    }

    /// The same with a folder to be at home in, where everything goes that is not named elsewhere.
    pub async fn in_folder(folder: &Path, variables: &[(String, String)]) -> Self {
        let command = oncekey(Some(folder), &["serve", "--listen", "127.0.0.1:0"], variables);
        Self::begin(command).listening().await
    }

    fn begin(mut command: Command) -> Self {
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let stdout = child.stdout.take().map(collect).unwrap_or_default();
        let stderr = collect(child.stderr.take().unwrap());
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        Self { child, address, stdout, stderr }
    }

    async fn listening(mut self) -> Self {
        let mut lines = self.stdout.subscribe();
        let seen = lines.wait_for(|lines| lines.iter().any(|line| line.contains("listens on")));
        let announced = match tokio::time::timeout(super::PATIENCE, seen).await {
            Ok(Ok(lines)) => lines.clone(),
            _ => panic!("oncekey did not start: {:?}", self.stderr.borrow()),
        };
        let line = announced.iter().find(|line| line.contains("listens on")).unwrap();
        self.address = line.rsplit('/').next().unwrap().parse().unwrap();
        self
    }

    pub fn pid(&self) -> i32 {
        self.child.id().unwrap().try_into().unwrap()
    }

    /// Sends a signal by its name (`KILL`, `STOP`, `CONT`, `TERM`).
    pub async fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .await
            .unwrap();
        assert!(status.success());
    }

    /// Kills it and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for its end; the exit code, where there is one.
    pub async fn ended(&mut self) -> Option<i32> {
        patiently("the process to end", self.child.wait()).await.unwrap().code()
    }

    /// The first series that begins so, as `/metrics` shows it: a name and labels, and a blank where that
    /// is all.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        self.metrics(series).await.first().map(|(_, value)| *value)
    }

    /// All series whose name and labels begin so.
    pub async fn metrics(&self, beginning: &str) -> Vec<(String, f64)> {
        let answer = Client::new(self.address, "").get("/metrics").await;
        let text = String::from_utf8(answer.bytes).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(beginning));
        let split = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        lines.map(split).collect()
    }

    /// All log lines so far.
    pub fn log(&self) -> Vec<Value> {
        self.stderr.borrow().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// All lines on standard error so far, as they were written.
    pub fn raw_log(&self) -> Vec<String> {
        self.stderr.borrow().clone()
    }

    /// The log lines with this `event` so far.
    pub fn events(&self, event: &str) -> Vec<Value> {
        self.log().into_iter().filter(|line| line["event"] == event).collect()
    }

    /// What was printed so far.
    pub fn printed(&self) -> Vec<String> {
        self.stdout.borrow().clone()
    }

    /// Waits for a printed line that has this part.
    pub async fn until_printed(&self, part: &str) -> String {
        let mut lines = self.stdout.subscribe();
        let find = |lines: &Vec<String>| lines.iter().find(|line| line.contains(part)).cloned();
        let seen = lines.wait_for(|lines| find(lines).is_some());
        let lines = patiently(&format!("{part} to be printed"), seen).await.unwrap();
        find(&lines).unwrap()
    }

    /// Waits for a log line with this `event` that satisfies `also`.
    pub async fn until_event(&self, event: &str, also: impl Fn(&Value) -> bool) -> Value {
        let find = |lines: &Vec<String>| {
            lines
                .iter()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .find(|line| line["event"] == event && also(line))
        };
        let mut lines = self.stderr.subscribe();
        let seen = lines.wait_for(|lines| find(lines).is_some());
        let what = format!("the log event {event}");
        let lines = patiently(&what, seen).await.unwrap();
        find(&lines).unwrap()
    }
}

/// Starts a command that the test ends; killed when dropped.
pub fn begin(arguments: &[&str], variables: &[(String, String)]) -> Child {
    let mut command = oncekey(Some(Path::new("/")), arguments, variables);
    command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// What somebody does at the terminal of a command.
#[derive(Default)]
pub struct Typed<'a> {
    pub stdin: &'a str,
    /// Another end for its standard error than this test's; nothing of it is collected then.
    pub stderr: Option<OwnedFd>,
    /// Ctrl-C, once this is ready.
    pub interrupt: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
}

/// Runs a command of the binary to its end.
pub async fn run(folder: &Path, arguments: &[&str], variables: &[(String, String)]) -> Ended {
    run_with(folder, arguments, variables, Typed::default()).await
}

/// The same with somebody at the terminal.
pub async fn run_with(
    folder: &Path,
    arguments: &[&str],
    variables: &[(String, String)],
    typed: Typed<'_>,
) -> Ended {
    let mut command = oncekey(Some(folder), arguments, variables);
    command.stdin(Stdio::piped()).kill_on_drop(true);
    if let Some(stderr) = typed.stderr {
        command.stderr(stderr);
    }
    let mut child = command.spawn().unwrap();
    // Or the command holds the other end of a terminal open.
    drop(command);
    let mut stdin = child.stdin.take().unwrap();
    // A command that reads none may be gone already.
    drop(stdin.write_all(typed.stdin.as_bytes()).await);
    drop(stdin);
    let pid = child.id().unwrap();
    let output = child.wait_with_output();
    tokio::pin!(output);
    if let Some(interrupt) = typed.interrupt {
        tokio::select! {
            _ = &mut output => panic!("it ended before it was interrupted"),
            () = interrupt => {}
        }
        let killed = Command::new("kill").args(["-INT", &pid.to_string()]).status().await;
        assert!(killed.unwrap().success());
    }
    let output = patiently("a command to end", output).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn variables_on(
    database: &TestDatabase,
    provider: &ScriptedProvider,
    also: &[(&str, &str)],
) -> Vec<(String, String)> {
    let mut variables = provider_variables(provider, Wire::Anthropic);
    variables.push(("DATABASE_URL".to_owned(), database.url.clone()));
    variables.push(("ONCEKEY_CAPTURES__LOCATION".to_owned(), captures_folder()));
    if !coalesces() {
        variables.push(("ONCEKEY_DATABASE__COALESCE".to_owned(), "false".to_owned()));
    }
    variables.extend(also.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    variables
}

/// The binary with nothing of this process's environment but its search path.
fn oncekey(folder: Option<&Path>, arguments: &[&str], variables: &[(String, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("ONCEKEY_LOG", "json")
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(folder) = folder {
        command.current_dir(folder).env("HOME", folder);
    }
    command
}

fn collect(pipe: impl AsyncRead + Send + Unpin + 'static) -> Arc<watch::Sender<Vec<String>>> {
    let lines = Arc::new(watch::Sender::new(Vec::new()));
    let sender = lines.clone();
    tokio::spawn(async move {
        let mut reader = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = reader.next_line().await {
            sender.send_modify(|lines: &mut Vec<String>| lines.push(line));
        }
    });
    lines
}
