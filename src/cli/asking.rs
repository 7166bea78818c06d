//! What the commands share that are clients of a server: which one, with which key, and what is said
//! where there is no answer.
//!
//! They need nothing of the server's configuration, which may lie on another machine: `--config` is
//! taken, as everywhere, and not read.

use std::future::Future;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::client::{Client, ClientBuilder, ClientError, Problem, Repeat, Why};

/// Holds the API key, which thus stands in no list of processes.
const API_KEY: &str = "ONCEKEY_API_KEY";

#[derive(Args)]
pub struct Asking {
    /// The server to ask.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// On behalf of whom to ask, with the key of a tenant's server.
    #[arg(long, value_name = "ID")]
    end_user: Option<String>,
}

impl Asking {
    pub fn client(&self) -> Result<ClientBuilder, Failure> {
        let api_key = std::env::var(API_KEY).unwrap_or_default();
        if api_key.trim().is_empty() {
            let text = format!(
                "{API_KEY} is not set: it holds an API key of role client, which \
                 `oncekey key create --tenant T --role client` makes"
            );
            return Err(Failure::Usage(text));
        }
        let builder = Client::builder(&self.server, api_key.trim());
        Ok(match &self.end_user {
            Some(user) => builder.end_user(user),
            None => builder,
        })
    }

    /// The failure of a command whose operation got no answer.
    pub fn failure(&self, error: &ClientError) -> Failure {
        let again = |key: &str| format!("repeat the command with --key {key}");
        Failure::No(match error {
            ClientError::NotSent(reason) => return Failure::Usage(reason.clone()),
            ClientError::ConnectionLost(lost) => {
                let server = &self.server;
                format!("{lost}; see whether {server} is the server, then {}", again(&lost.key))
            }
            ClientError::TimedOut(timed_out) => {
                let last = timed_out.last.as_ref().map(|last| format!("; it said last: {last}"));
                let last = last.unwrap_or_default();
                format!("{timed_out}{last}; to go on waiting {}", again(&timed_out.key))
            }
            ClientError::OurSide(failed) if failed.problem.status < 500 => {
                let server = &self.server;
                format!("{}; see whether {server} is the server", failed.problem)
            }
            ClientError::OurSide(failed) => format!("{error}; later {}", again(&failed.key)),
            ClientError::YourInput(failed) => match advice(&failed.problem) {
                Some(advice) => format!("{}; {advice}", failed.problem),
                None if error.may_be_asked_again() => {
                    format!("{}; later {}", failed.problem, again(&failed.key))
                }
                None => failed.problem.to_string(),
            },
        })
    }
}

/// What a person can do about a refusal that does not say so itself.
fn advice(problem: &Problem) -> Option<&'static str> {
    match problem.error.as_str() {
        "unauthorized" => Some("set ONCEKEY_API_KEY to a key of this server"),
        "forbidden" => Some("use an API key of role client that may ask for this subject"),
        "idempotency_key_reuse" => Some("leave --key out to ask something new"),
        _ => None,
    }
}

/// Tells of a repeat, where somebody watches.
pub fn tell_repeat(repeat: &Repeat) {
    if stderr().is_terminal() {
        eprintln!("{}", repeated(repeat));
    }
}

/// A repeat in a sentence.
pub fn repeated(repeat: &Repeat) -> String {
    let why = match repeat.why {
        Why::Lost => "the connection was lost".to_owned(),
        Why::Status(409) => "still running".to_owned(),
        Why::Status(status) => format!("the server answered {status}"),
    };
    let seconds = repeat.after.max(Duration::from_millis(100)).as_secs_f32();
    format!("{why}; asking again in {seconds:.1} s")
}

/// The outcome, unless somebody presses Ctrl-C before it is there: the operation goes on then.
pub async fn unless_interrupted<T>(
    key: &str,
    outcome: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        outcome = outcome => outcome,
        interrupted = tokio::signal::ctrl_c() => Err(Failure::No(match interrupted {
            Ok(()) => format!(
                "interrupted; the operation goes on at the server: for its answer repeat the \
                 command with --key {key}"
            ),
            Err(error) => error.to_string(),
        })),
    }
}

/// How an answer came, for standard error.
pub fn how_it_came(request_id: &str, key: &str, replayed: bool) -> String {
    let replayed = if replayed { ", a replay" } else { "" };
    format!("request {request_id}, key {key}{replayed}")
}

/// Writes to standard output, at once.
pub fn put(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::no)
}
