//! `oncekey parse`: a file at the terminal, with its progress. The result alone is on standard output.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use uuid::Uuid;

use super::Failure;
use super::asking::{Asking, how_it_came, put, repeated, unless_interrupted};
use super::database::blocking;
use super::progress::Bar;
use super::script::{indented, script};
use crate::client::{Client, ClientError, ParseAnswer, ParseRequest, Reply, StreamEvent};

/// The profile that the readable form is for.
const SCRIPT: &str = "script";

#[derive(Args)]
pub struct Parse {
    #[command(flatten)]
    asking: Asking,
    /// A PDF, PNG, JPEG, WebP or text file; - for standard input.
    #[arg(value_name = "FILE", required_unless_present = "recapture")]
    file: Option<PathBuf>,
    /// Parse an input once more that an earlier parse stored, as a new operation. Each parse says on
    /// standard error as which capture its input was stored.
    #[arg(long, value_name = "ID", conflicts_with = "file")]
    recapture: Option<Uuid>,
    /// What to produce.
    #[arg(long, value_name = "P", default_value = SCRIPT)]
    profile: String,
    /// Rather a result with gaps than none.
    #[arg(long)]
    allow_gaps: bool,
    #[arg(long, default_value = "json")]
    format: Format,
    /// One of the server's models.
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// The key of an earlier try: its answer is told again, or waited for.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The whole answer of the server.
    Json,
    /// To read: who says what.
    Script,
}

/// Parses, and prints what came of it.
pub async fn run(command: Parse) -> Result<ExitCode, Failure> {
    if command.format == Format::Script && command.profile != SCRIPT {
        let text = "--format script is for the profile script; use --format json";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut bar = Bar::new();
    let told = bar.teller();
    let builder = command.asking.client()?;
    let client = builder
        .on_repeat(move |repeat| told(repeated(repeat)))
        .build()
        .map_err(|error| command.asking.failure(&error))?;
    let request = request(&command).await?;
    let operation = match &command.key {
        Some(key) => {
            client.begin_with_key(key, request).map_err(|error| command.asking.failure(&error))?
        }
        None => client.begin(request),
    };
    let outcome = async {
        let mut stream = client.stream(&operation);
        loop {
            match stream.next().await {
                Ok(Some(StreamEvent::Progress { done, chunks })) => bar.advance(done, chunks),
                Ok(Some(StreamEvent::Completed(reply))) => {
                    bar.end();
                    return show(&command, &client, &reply).await;
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(error) => {
                    bar.end();
                    return Err(failure(&command, &client, operation.key(), &error).await);
                }
            }
        }
    };
    let outcome = unless_interrupted(operation.key(), outcome).await;
    bar.end();
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn request(command: &Parse) -> Result<ParseRequest, Failure> {
    let request = match (&command.recapture, &command.file) {
        (Some(id), _) => ParseRequest::capture(&id.to_string()),
        (None, Some(path)) => {
            let (path, name) = (path.clone(), path.display().to_string());
            let read = move || {
                if path.as_os_str() == "-" {
                    let mut bytes = Vec::new();
                    std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes)?;
                    return Ok(bytes);
                }
                std::fs::read(path)
            };
            let bytes = blocking(read).await?;
            let bytes = bytes.map_err(|error: std::io::Error| {
                Failure::Usage(format!("{name}: {error}; name a file that can be read"))
            })?;
            ParseRequest::file(bytes)
        }
        // Asked for by the arguments.
        (None, None) => return Err(Failure::Usage("name a file".to_owned())),
    };
    let request = request.profile(&command.profile).allow_gaps(command.allow_gaps);
    Ok(match &command.model {
        Some(model) => request.model(model),
        None => request,
    })
}

/// Prints the result, and on standard error how it came.
async fn show(command: &Parse, client: &Client, reply: &Reply<ParseAnswer>) -> Result<(), Failure> {
    let answer = &reply.answer;
    match command.format {
        Format::Json => put(&indented(&String::from_utf8_lossy(&reply.body)))?,
        Format::Script => match script(&answer.result) {
            Some(text) => put(&text)?,
            None => {
                let text = "the result is no script; use --format json, and the same --key";
                return Err(Failure::No(format!("{text} {}", reply.key)));
            }
        },
    }
    let came = how_it_came(&answer.request_id, &reply.key, reply.replayed);
    eprintln!("{came}{}", capture(client, &reply.key).await);
    for gap in &answer.gaps {
        let (from, to, reason) = (gap.from, gap.to, &gap.reason);
        eprintln!("a gap: characters {from} to {to} of the text are missing ({reason})");
    }
    Ok(())
}

async fn failure(command: &Parse, client: &Client, key: &str, error: &ClientError) -> Failure {
    let stored = match error {
        // The input was looked at, and so was stored; under a key that is another request's it was not.
        ClientError::YourInput(failed)
            if failed.problem.status == 422 && failed.problem.error != "idempotency_key_reuse" =>
        {
            capture(client, key).await
        }
        _ => String::new(),
    };
    match command.asking.failure(error) {
        Failure::No(text) => Failure::No(format!("{text}{stored}")),
        Failure::Usage(text) => Failure::Usage(text),
    }
}

/// As what the input was stored, for another parse of it. A capture bears its operation's name.
async fn capture(client: &Client, key: &str) -> String {
    match client.record(key).await {
        Ok(record) => format!(", capture {}", record.operation_id),
        // The answer is there without it.
        Err(_) => String::new(),
    }
}
