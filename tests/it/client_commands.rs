//! `oncekey chat` and `oncekey parse` as a person types them: the answer alone on standard output, how
//! it came on standard error, and an exit status that a script can go by.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;

use serde_json::Value;

use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::parse::{echo, found_in, script};
use crate::support::process::{Ended, Typed, run, run_with};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, fixture};

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    folder: PathBuf,
    api_key: String,
}

impl Scene {
    async fn start(name: &str, options: NodeOptions) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, options).await;
        let api_key = node.client("t1").await.key;
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("client-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        Self { database, provider, node, folder, api_key }
    }

    fn variables(&self) -> Vec<(String, String)> {
        // A terminal says which one it is.
        [("ONCEKEY_API_KEY", self.api_key.as_str()), ("TERM", "xterm-256color")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec()
    }

    /// The arguments with the node's address among them.
    fn arguments<'a>(&self, arguments: &[&'a str], server: &'a str) -> Vec<&'a str> {
        [arguments, &["--server", server]].concat()
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with(arguments, Typed::default()).await
    }

    async fn run_with(&self, arguments: &[&str], typed: Typed<'_>) -> Ended {
        let server = format!("http://{}", self.node.address());
        let arguments = self.arguments(arguments, &server);
        run_with(&self.folder, &arguments, &self.variables(), typed).await
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).unwrap();
    }

    async fn end(self) {
        assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

impl Ended {
    /// It did what was asked; what it said on standard error, a line each.
    #[track_caller]
    fn done(&self, stdout: &str) -> Vec<&str> {
        assert_eq!((self.code, self.stdout.as_str()), (Some(0), stdout), "{self:?}");
        self.stderr.lines().collect()
    }

    /// It did not, and says so in one line that has these parts.
    #[track_caller]
    fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("oncekey: "), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part} is not in {:?}", self.stderr);
        }
    }
}

/// What stands behind this word on a line about how an answer came.
fn told<'a>(line: &'a str, word: &str) -> &'a str {
    let (_, rest) = line.split_once(word).unwrap_or_else(|| panic!("no {word} in {line:?}"));
    rest.trim_start().split(',').next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_has_one_answer_however_often_the_key_is_repeated() {
    let scene = Scene::start("once", NodeOptions::default()).await;
    let first = scene.run(&["chat", "--conversation", "c1", "--message", "hello"]).await;
    let lines = first.done("Answer to message 1: hello\n");
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    let (request, key) = (told(line, "request"), told(line, "key"));
    assert!(!line.contains("replay"), "{line}");

    let again = ["chat", "--conversation", "c1", "--message", "hello", "--key", key];
    let streamed = [&again[..], &["--stream"]].concat();
    for arguments in [&again[..], &streamed] {
        let replay = scene.run(arguments).await;
        let lines = replay.done("Answer to message 1: hello\n");
        assert!(lines[0].contains("a replay"), "{lines:?}");
        assert_eq!(told(lines[0], "request"), request);
    }
    let other = ["chat", "--conversation", "c1", "--message", "else", "--key", key];
    scene.run(&other).await.refused(1, &["422 idempotency_key_reuse", "--key"]);
    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.database.outcomes().await, (1, 1, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_said_in_turn_until_one_has_no_answer() {
    let scene = Scene::start("lines", NodeOptions::default()).await;
    let chat = ["chat", "--conversation", "c1", "--stream", "--config", "none.toml"];
    let typed = Typed { stdin: "one\n\n  \ntwo", ..Typed::default() };
    let ended = scene.run_with(&chat, typed).await;
    let lines = ended.done("Answer to message 1: one\nAnswer to message 3: two\n");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_ne!(told(lines[0], "key"), told(lines[1], "key"), "a key for each message");
    assert_eq!(scene.database.outcomes().await, (2, 2, 2));

    let body = br#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#;
    scene.provider.reply(Reply::status(400, &[("content-type", "application/json")], &body[..]));
    let typed = Typed { stdin: "three\nfour\n", ..Typed::default() };
    scene.run_with(&chat, typed).await.refused(1, &["422 input_rejected"]);
    assert_eq!(scene.provider.count(), 3, "what follows waits for the answer that is missing");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_command_says_how_to_get_the_answer() {
    let scene = Scene::start("interrupted", NodeOptions::default()).await;
    let gate = Gate::closed();
    scene.provider.reply(Reply::normal().after(1, Action::Hold(gate.clone())));
    let chat = ["chat", "--conversation", "c1", "--message", "hello"];
    let interrupt = async {
        gate.until_reached(1).await;
    };
    let typed = Typed { interrupt: Some(Box::pin(interrupt)), ..Typed::default() };
    let ended = scene.run_with(&chat, typed).await;
    ended.refused(1, &["the operation goes on", "--key "]);
    let (_, key) = ended.stderr.trim_end().rsplit_once(' ').unwrap();
    gate.open();
    let again = scene.run(&[&chat[..], &["--key", key]].concat()).await;
    let lines = again.done("Answer to message 1: hello\n");
    assert_eq!(told(lines[0], "key"), key);
    assert_eq!(scene.provider.count(), 1);
    assert_eq!(scene.database.outcomes().await, (1, 1, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_becomes_json_or_a_script_and_can_be_parsed_once_more() {
    let scene = Scene::start("parse", NodeOptions::default()).await;
    scene.provider.reply_by(echo);
    let text = "MARA: Is it boiling?\nOTTO: Not yet.\n";
    scene.write("scene.txt", text);
    let json = scene.run(&["parse", "scene.txt"]).await;
    assert_eq!(json.code, Some(0), "{json:?}");
    let answer: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(answer["result"], found_in(text));
    assert_eq!(answer["gaps"], serde_json::json!([]));
    assert!(json.stdout.lines().count() > 10, "for people: {}", json.stdout);
    // Standard error is no terminal, so there is no bar.
    assert_eq!(json.stderr.lines().count(), 1, "{}", json.stderr);
    let line = json.stderr.trim_end();
    let (key, capture) = (told(line, "key"), told(line, "capture"));

    let again = ["parse", "scene.txt", "--format", "script", "--key", key];
    let lines = scene.run(&again).await;
    assert!(lines.done(text)[0].contains("a replay"));
    assert_eq!(scene.provider.count(), 1);

    let recapture = ["parse", "--recapture", capture, "--format", "script"];
    let once_more = scene.run(&recapture).await;
    let lines = once_more.done(text);
    assert_ne!(told(lines[0], "capture"), capture, "a new operation");
    assert!(!lines[0].contains("replay"));
    assert_eq!(scene.provider.count(), 2);

    let piped = Typed { stdin: text, ..Typed::default() };
    let piped = scene.run_with(&["parse", "-", "--format", "script"], piped).await;
    piped.done(text);

    scene.provider.reply(Reply::tool_file("empty_dialogue.txt"));
    scene.provider.reply(Reply::tool_file("empty_dialogue.txt"));
    let poster = String::from_utf8(fixture("texts/no_dialogue_poster.txt")).unwrap();
    scene.write("poster.txt", &poster);
    let nothing = scene.run(&["parse", "poster.txt"]).await;
    nothing.refused(1, &["422 nothing_found", "capture "]);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_was_allowed_is_told() {
    let options = NodeOptions::default()
        .set("ONCEKEY_PARSE__CHUNK_CHARS", "200")
        .set("ONCEKEY_PARSE__PARALLEL", "1");
    let scene = Scene::start("gaps", options).await;
    scene.provider.reply_by(|request| {
        if crate::support::parse::piece_of(request).contains("speech 3;") {
            Reply::tool("{\"title\": 7")
        } else {
            echo(request)
        }
    });
    scene.write("play.txt", &script(6));
    let ended = scene.run(&["parse", "play.txt", "--allow-gaps", "--format", "script"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("MARA: This is speech 0;"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("speech 3;"));
    let gap = ended.stderr.lines().find(|line| line.starts_with("a gap: characters "));
    assert!(gap.is_some(), "{}", ended.stderr);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_a_bar_with_the_time_left() {
    let options = NodeOptions::default()
        .set("ONCEKEY_PARSE__CHUNK_CHARS", "400")
        .set("ONCEKEY_PARSE__PARALLEL", "1");
    let scene = Scene::start("bar", options).await;
    let (gate, mut calls) = (Gate::closed(), 0);
    let held = gate.clone();
    scene.provider.reply_by(move |request| {
        calls += 1;
        let reply = echo(request);
        if calls == 3 { reply.before_head(Action::Hold(held.clone())) } else { reply }
    });
    scene.write("play.txt", &script(16));
    let (mut ours, theirs) = terminal();
    let watched = tokio::task::spawn_blocking(move || {
        let (mut shown, mut buffer) = (Vec::new(), [0; 4096]);
        // A terminal whose other end is gone is an error to read from.
        while let Ok(count @ 1..) = ours.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&shown);
            // Two of the pieces are done, and the third waits to be seen.
            if text.contains("] 2 of ") && text.contains(" left") {
                gate.open();
            }
        }
        String::from_utf8_lossy(&shown).into_owned()
    });
    let typed = Typed { stderr: Some(theirs), ..Typed::default() };
    let ended = scene.run_with(&["parse", "play.txt", "--format", "script"], typed).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 16);
    let shown = watched.await.unwrap();
    assert!(shown.contains("request ") && shown.contains("capture "), "{shown}");
    scene.end().await;
}

/// A terminal of 120 columns: our end and theirs.
fn terminal() -> (std::fs::File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: two places for descriptors, no name, no settings, a size that lives until the return.
    let made = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size)
    };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were just made, and nobody else has them.
    unsafe { (std::fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_one_line_that_says_what_to_do() {
    let scene = Scene::start("wrong", NodeOptions::default()).await;
    scene.write("scene.txt", "MARA: Yes.\n");
    let wrong_usage: &[(&[&str], &[&str])] = &[
        (&["parse"], &["FILE"]),
        (&["parse", "none.txt"], &["none.txt", "can be read"]),
        (&["parse", "--recapture", "x"], &["--recapture"]),
        (
            &["parse", "scene.txt", "--recapture", "0198f3a2-6d1c-7e30-9c55-2f4b8f0f6a11"],
            &["cannot be used with"],
        ),
        (
            &["parse", "scene.txt", "--format", "script", "--profile", "receipts"],
            &["--format json"],
        ),
        (&["chat", "--message", "hello"], &["--conversation"]),
        (&["chat", "--conversation", "c1", "--key", "k"], &["--message"]),
        (&["chat", "--conversation", "c1", "--message", "m", "--key", "a b"], &["Idempotency-Key"]),
    ];
    for (arguments, parts) in wrong_usage {
        scene.run(arguments).await.refused(2, parts);
    }
    let chat = ["chat", "--conversation", "c1", "--message", "hello"];
    let no_key = run(&scene.folder, &chat, &[]).await;
    no_key.refused(2, &["ONCEKEY_API_KEY", "oncekey key create"]);
    let server = [&chat[..], &["--server", "example.org"]].concat();
    run(&scene.folder, &server, &scene.variables()).await.refused(2, &["http://"]);

    let wrong_key = [("ONCEKEY_API_KEY".to_owned(), "ok_wrong".to_owned())];
    let address = format!("http://{}", scene.node.address());
    let there = scene.arguments(&chat, &address);
    let refused = run(&scene.folder, &there, &wrong_key).await;
    refused.refused(1, &["401 unauthorized", "ONCEKEY_API_KEY"]);
    scene.run(&["parse", "scene.txt", "--profile", "novel"]).await.refused(1, &["400", "novel"]);
    let unknown = ["parse", "--recapture", "0198f3a2-6d1c-7e30-9c55-2f4b8f0f6a11"];
    scene.run(&unknown).await.refused(1, &["404 not_found"]);
    assert_eq!(scene.provider.count(), 0);

    // A port that nobody listens on.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let lost = run(&scene.folder, &scene.arguments(&chat, &address), &scene.variables()).await;
    lost.refused(1, &["connection was lost", "sent 3 times", &address, "--key "]);
    scene.end().await;
}
