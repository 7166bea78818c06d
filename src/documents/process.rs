//! The server's side of a child that reads a file: started, fed, listened to, and gone afterwards.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::CHILD_COMMAND;
use super::limits::ReadLimits;
use super::unreadable::{Unreadable, UnreadableReason};
use super::wire::{Answer, Request};
use crate::clock::Clock;

/// What surrounds text or pictures in an answer.
const HEAD_BYTES: u64 = 1 << 20;
/// The exit status of a program of ours that panicked.
const PANICKED: i32 = 101;
/// Signals that a child gets for what it did itself: aborted, which is also how memory and stack run
/// out; used up its time; touched what is not there.
const OWN_DOING: [i32; 6] =
    [libc::SIGABRT, libc::SIGXCPU, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGXFSZ];

/// Has a child read the file.
///
/// # Errors
/// [`Unreadable::Refused`] where the child shows that the file is to blame, else
/// [`Unreadable::Ours`].
pub(super) async fn ask(
    program: &Path,
    clock: &Clock,
    request: &Request,
    file: &Bytes,
) -> Result<Answer, Unreadable> {
    let mut child = start(program).map_err(|error| ours(format!("no child: {error}")))?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(ours("a child without pipes"));
    };
    let deadline = clock.now() + request.limits.wall;
    let heard = clock.until(deadline, talk(stdin, stdout, request, file)).await;
    let at_most = most_bytes(&request.limits);
    let received = match heard {
        Ok(Ok(received)) if received.len() as u64 > at_most => {
            end(&mut child).await;
            return Err(Unreadable::Refused(UnreadableReason::TooComplex));
        }
        Ok(Ok(received)) => received,
        Ok(Err(error)) => {
            end(&mut child).await;
            return Err(ours(format!("the child cannot be heard: {error}")));
        }
        Err(_) => {
            end(&mut child).await;
            return Err(ours("the child got no time on this machine"));
        }
    };
    match clock.until(deadline, child.wait()).await {
        Ok(Ok(status)) => judge(status, received),
        Ok(Err(error)) => Err(ours(format!("no end of the child: {error}"))),
        Err(_) => {
            end(&mut child).await;
            Err(ours("the child did not end"))
        }
    }
}

/// With nothing of the server's but the program: no variables, for there are secrets among them; no
/// folder; no terminal, whose Ctrl-C is for the server alone; and nobody hears what it has to say on
/// standard error, where a panic might quote the file.
fn start(program: &Path) -> std::io::Result<Child> {
    Command::new(program)
        .arg0("oncekey")
        .arg(CHILD_COMMAND)
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// Sends the request and takes in what comes until the child has said all, or too much.
async fn talk(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    request: &Request,
    file: &Bytes,
) -> std::io::Result<Vec<u8>> {
    let at_most = most_bytes(&request.limits);
    let listen = async {
        let mut received = Vec::new();
        stdout.take(at_most + 1).read_to_end(&mut received).await?;
        Ok(received)
    };
    let speak = async move {
        // A child that does not listen says why by how it ends.
        let _ = stdin.write_all(&request.head()).await;
        let _ = stdin.write_all(file).await;
    };
    tokio::pin!(listen);
    tokio::select! {
        received = &mut listen => received,
        () = speak => listen.await,
    }
}

fn most_bytes(limits: &ReadLimits) -> u64 {
    limits.text_bytes.max(limits.pictures_bytes) + HEAD_BYTES
}

/// Kills the child and waits until nothing of it is left.
async fn end(child: &mut Child) {
    if let Err(error) = child.kill().await {
        tracing::warn!(event = "reader_left", %error, "a child that reads a file may be left behind");
    }
}

/// What the end of a child says about its file.
fn judge(status: ExitStatus, received: Vec<u8>) -> Result<Answer, Unreadable> {
    if status.success() {
        return Answer::decode(&received.into()).map_err(|error| ours(error.to_string()));
    }
    if status.code() == Some(PANICKED) {
        return Err(Unreadable::Refused(UnreadableReason::Broken));
    }
    match status.signal() {
        Some(signal) if OWN_DOING.contains(&signal) => {
            Err(Unreadable::Refused(UnreadableReason::TooComplex))
        }
        // Killed from outside: by an operator, at shutdown, or because the machine was out of memory,
        // which a child alone, bounded as it is, does not bring about.
        Some(signal) => Err(ours(format!("the child was killed by signal {signal}"))),
        None => Err(ours(format!("the child ended with {status}"))),
    }
}

fn ours(what: impl Into<String>) -> Unreadable {
    Unreadable::Ours(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(raw: i32) -> Result<Answer, Unreadable> {
        judge(ExitStatus::from_raw(raw), Vec::new())
    }

    #[test]
    fn the_end_of_a_child_says_whose_fault_it_was() {
        let broken = Err(Unreadable::Refused(UnreadableReason::Broken));
        assert_eq!(ended(PANICKED << 8), broken);
        for signal in OWN_DOING {
            assert_eq!(ended(signal), Err(Unreadable::Refused(UnreadableReason::TooComplex)));
        }
        for raw in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL, 1 << 8, 2 << 8, 0] {
            assert!(matches!(ended(raw), Err(Unreadable::Ours(_))), "{raw}");
        }
    }

    #[test]
    fn an_answer_counts_only_from_a_child_that_ended_well() {
        let answer = Answer::Refused(UnreadableReason::NoPages);
        let judged = |raw| judge(ExitStatus::from_raw(raw), answer.encode());
        assert_eq!(judged(0), Ok(answer.clone()));
        assert!(judged(1 << 8).is_err());
    }
}
