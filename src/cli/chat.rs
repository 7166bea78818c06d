//! `oncekey chat`: a client at the terminal. The answers alone are on standard output.

use std::io::{BufRead, IsTerminal, stderr, stdin};
use std::process::ExitCode;

use clap::Args;
use tokio::sync::mpsc;

use super::Failure;
use super::asking::{Asking, how_it_came, put, tell_repeat, unless_interrupted};
use crate::client::{Chat as ChatEndpoint, ChatRequest, Client, Operation, StreamEvent};

#[derive(Args)]
pub struct Chat {
    #[command(flatten)]
    asking: Asking,
    /// The conversation, under a name of your own; a new name begins a new one.
    #[arg(long, value_name = "C")]
    conversation: String,
    /// What to say. Without it every line of standard input is said in turn.
    #[arg(long, value_name = "M")]
    message: Option<String>,
    /// Show the answer as it grows. One that another run had to begin anew is then shown anew.
    #[arg(long)]
    stream: bool,
    /// One of the server's models.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The key of an earlier try: its answer is told again, or waited for.
    #[arg(long, value_name = "KEY", requires = "message")]
    key: Option<String>,
}

/// Says the message, or the lines as they come.
pub async fn run(command: Chat) -> Result<ExitCode, Failure> {
    let builder = command.asking.client()?.on_repeat(tell_repeat);
    let client = builder.build().map_err(|error| command.asking.failure(&error))?;
    if let Some(message) = &command.message {
        say(&command, &client, message).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let at_terminal = stdin().is_terminal() && stderr().is_terminal();
    let mut lines = lines();
    loop {
        if at_terminal {
            eprint!("> ");
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            // Nothing runs that would go on.
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(line) = line else { break };
        let line = line.map_err(|error| Failure::No(format!("standard input: {error}")))?;
        if line.trim().is_empty() {
            continue;
        }
        match say(&command, &client, &line).await {
            // Who sits there decides what to say next; what follows in a file was written for
            // the answer that is missing.
            Err(Failure::No(text)) if at_terminal => eprintln!("oncekey: {text}"),
            outcome => outcome?,
        }
    }
    if at_terminal {
        eprintln!();
    }
    Ok(ExitCode::SUCCESS)
}

/// One message under one key.
async fn say(command: &Chat, client: &Client, message: &str) -> Result<(), Failure> {
    let mut request = ChatRequest::new(&command.conversation, message);
    if let Some(model) = &command.model {
        request = request.model(model);
    }
    let operation = match &command.key {
        Some(key) => {
            client.begin_with_key(key, request).map_err(|error| command.asking.failure(&error))?
        }
        None => client.begin(request),
    };
    let outcome = async {
        if command.stream {
            streamed(command, client, &operation).await
        } else {
            let reply = client.send(&operation).await;
            let reply = reply.map_err(|error| command.asking.failure(&error))?;
            put(&with_line_end(&reply.answer.message.content))?;
            tell(
                &reply.answer.request_id,
                &reply.answer.stop_reason,
                operation.key(),
                reply.replayed,
            );
            Ok(())
        }
    };
    unless_interrupted(operation.key(), outcome).await
}

async fn streamed(
    command: &Chat,
    client: &Client,
    operation: &Operation<ChatEndpoint>,
) -> Result<(), Failure> {
    let mut stream = client.stream(operation);
    let mut shown = String::new();
    loop {
        let event = match stream.next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(()),
            Err(error) => {
                if !shown.is_empty() {
                    put("\n")?;
                }
                return Err(command.asking.failure(&error));
            }
        };
        match event {
            StreamEvent::Delta(text) => {
                put(&text)?;
                shown.push_str(&text);
            }
            StreamEvent::Restarted => {
                put("\n")?;
                eprintln!("the answer begins anew; what was shown of it is void");
                shown.clear();
            }
            StreamEvent::Completed(reply) => {
                // What was shown is the answer; one that came in one piece was not shown yet.
                let rest = reply.answer.message.content.strip_prefix(&shown).unwrap_or_default();
                put(rest)?;
                if !reply.answer.message.content.ends_with('\n') {
                    put("\n")?;
                }
                let answer = &reply.answer;
                tell(&answer.request_id, &answer.stop_reason, operation.key(), reply.replayed);
            }
            StreamEvent::Started { .. } | StreamEvent::Progress { .. } => {}
        }
    }
}

fn tell(request_id: &str, stop_reason: &str, key: &str, replayed: bool) {
    eprintln!("{}", how_it_came(request_id, key, replayed));
    if stop_reason == "max_tokens" {
        eprintln!("the answer was cut at the model's limit on output");
    }
}

fn with_line_end(text: &str) -> String {
    format!("{}\n", text.strip_suffix('\n').unwrap_or(text))
}

/// The lines of standard input, one ahead at most.
fn lines() -> mpsc::Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel(1);
    #[expect(
        clippy::disallowed_methods,
        reason = "a read of a terminal cannot be broken off: its thread ends with the process"
    )]
    std::thread::spawn(move || {
        for line in stdin().lock().lines() {
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    lines
}
