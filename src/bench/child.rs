//! The contestants as processes of their own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{BenchError, Settings};
use crate::clock::Clock;

/// From start to the line that says where it listens.
const START_LIMIT: Duration = Duration::from_secs(60);
/// What a contestant prints before its address.
pub const LISTENS: &str = "listens on http://";

/// A running process, killed when this is dropped.
pub struct Contestant {
    child: Child,
    pub pid: i32,
    pub address: SocketAddr,
    /// Open as long as the process runs: it may print more than its address.
    _output: Lines<BufReader<ChildStdout>>,
}

/// How a process is started: its arguments, and its variables beside the way to programs.
pub struct Start<'a> {
    pub name: &'static str,
    pub arguments: &'a [&'a str],
    pub variables: Vec<(String, String)>,
}

impl Contestant {
    /// Starts the program and waits until it listens. Its log goes into a file of the folder: not to
    /// a pipe, which this process would have to read while it measures.
    pub async fn start(
        settings: &Settings,
        clock: &Clock,
        start: Start<'_>,
    ) -> Result<Self, BenchError> {
        let log: PathBuf = settings.folder.join(format!("{}.log", start.name));
        let mut child = Command::new(&settings.program)
            .args(start.arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(start.variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        let failed = || BenchError::failed(format!("{} did not start: {}", start.name, tail(&log)));
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or_else(failed)?;
        let output = child.stdout.take().ok_or_else(failed)?;
        let mut lines = BufReader::new(output).lines();
        let announced = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((_, address)) = line.split_once(LISTENS) {
                    return address.trim().parse().ok();
                }
            }
            None
        };
        let address = clock.timeout(START_LIMIT, announced).await.ok().flatten();
        Ok(Self { child, pid, address: address.ok_or_else(failed)?, _output: lines })
    }

    /// Ends it and waits for its end.
    pub async fn stop(mut self) -> Result<(), BenchError> {
        Ok(self.child.kill().await?)
    }
}

/// The last line of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
