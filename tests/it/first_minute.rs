//! The newcomer's first minute: an empty folder, no database, no configuration, no account. And what
//! comes after it: another start, a kill, the commands beside a server and without one.

use std::fs;

use oncekey::postgres::start_or_attach;
use tokio::process::Command;
use uuid::Uuid;

use crate::postgres_private::support::{Ground, Watch, settings};
use crate::support::client::Answer;
use crate::support::node::{new_key, provider_variables};
use crate::support::process::{Ended, ProcessNode, run};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, Wire, patiently};
use crate::support::{Client, TestDatabase, eventually};

/// An empty folder to be at home in.
struct Home(Ground);

impl Home {
    fn new(test: &str) -> Self {
        Self(Ground::new(&format!("minute-{test}")))
    }

    /// The same after a first start that was stopped before it did anything, made without the
    /// patience that a disk asks for.
    async fn prepared(test: &str) -> Self {
        let home = Self::new(test);
        let settings = settings(&home.0.0.join(".oncekey"));
        let made = tokio::task::spawn_blocking(move || start_or_attach(&settings).unwrap().stop());
        made.await.unwrap().unwrap();
        home
    }

    async fn serve(&self) -> ProcessNode {
        ProcessNode::in_folder(&self.0.0, &[]).await
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        run(&self.0.0, arguments, &[]).await
    }

    /// Runs a command that must do what it says, and gives what it printed.
    async fn done(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        ended.stdout
    }

    /// The private server that runs now.
    fn postgres(&self) -> Watch {
        Watch::of(self.postmaster())
    }

    fn postmaster(&self) -> i32 {
        let file = self.0.0.join(".oncekey/postgres/data/postmaster.pid");
        let text = fs::read_to_string(file).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }
}

/// The command line that a first start prints.
async fn curl_line(node: &ProcessNode) -> String {
    node.until_printed("  curl ").await.trim().to_owned()
}

/// Waits until a start has said that there are API keys already, and shows none.
async fn printed_without_a_key(node: &ProcessNode) {
    node.until_printed("oncekey key create").await;
    let printed = node.printed().join("\n");
    assert!(!printed.contains("ok_") && !printed.contains("curl"), "{printed}");
}

/// What stands between these two in a command line.
fn between<'a>(line: &'a str, before: &str, after: &str) -> &'a str {
    line.split_once(before).unwrap().1.split_once(after).unwrap().0
}

/// Runs a printed line as a newcomer would; where there is no curl, sends what it says.
async fn follow(line: &str) -> (u16, String, String) {
    let found = Command::new("sh").args(["-c", "command -v curl"]).output().await.unwrap();
    if found.status.success() {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        let output = patiently("curl", shell.output()).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        return (status, head.to_lowercase(), body.to_owned());
    }
    let client = client_of(line);
    let request = client
        .request("POST", "/v1/chat")
        .header("content-type", "application/json")
        .header("idempotency-key", between(line, "Idempotency-Key: ", "'"))
        .body(between(line, "-d '", "'").to_owned());
    let Answer { status, headers, bytes } = client.send(request).await.unwrap();
    let head: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()))
        .collect();
    (status, head.to_lowercase(), String::from_utf8(bytes).unwrap())
}

/// A client with the address and the API key of a printed line.
fn client_of(line: &str) -> Client {
    let address = between(line, "http://", "/v1/chat");
    Client::new(address.parse().unwrap(), between(line, "Bearer ", "'"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_line_works_twice_and_after_a_restart() {
    let home = Home::new("line");
    let mut node = home.serve().await;
    let line = curl_line(&node).await;
    assert!(node.printed().iter().any(|line| line.contains("tenant \"dev\"")));
    let (status, head, body) = follow(&line).await;
    assert_eq!(status, 200, "{body}");
    assert!(!head.contains("idempotency-replayed"));
    let (status, head, again) = follow(&line).await;
    assert_eq!((status, &again), (200, &body));
    assert!(head.contains("idempotency-replayed: true"), "{head}");

    let postgres = home.postgres();
    node.signal("TERM").await;
    assert_eq!(node.ended().await, Some(0));
    assert!(postgres.ends(), "the private server ends with its owner");

    let node = home.serve().await;
    printed_without_a_key(&node).await;
    let before = client_of(&line).base.split_off("http://".len());
    let moved = line.replace(&before, &node.address.to_string());
    let (status, head, again) = follow(&moved).await;
    assert_eq!((status, &again), (200, &body));
    assert!(head.contains("idempotency-replayed: true"), "{head}");
    assert!(home.done(&["audit"]).await.lines().all(|line| line.starts_with("ok ")));
    let left: Vec<_> = fs::read_dir(&home.0.0).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(left.len(), 1, "one folder holds it all: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_takes_its_postgres_along_and_its_run_is_taken_over_at_once() {
    let home = Home::prepared("killed").await;
    let provider = ScriptedProvider::start().await;
    let variables = provider_variables(&provider, Wire::Anthropic);
    let mut node = ProcessNode::in_folder(&home.0.0, &variables).await;
    let client = client_of(&curl_line(&node).await);
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let key = Uuid::new_v4();
    let asked = {
        let client = client.clone();
        tokio::spawn(async move { client.try_chat(key, "c1", "hello").await })
    };
    gate.until_reached(1).await;
    let postgres = home.postgres();
    node.kill().await;
    assert!(asked.await.unwrap().is_err());
    assert!(postgres.ends(), "nothing is left running");

    let node = ProcessNode::in_folder(&home.0.0, &variables).await;
    // Whoever has just started the only database there is need not ask whether others live.
    let client = client.at(node.address);
    let answer = client.chat(key, "c1", "hello").await;
    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!(node.events("taken_over")[0]["why"], "OwnerGone");
    assert!(client.chat(key, "c1", "hello").await.replayed());
    assert_eq!(provider.count(), 2);
    assert!(home.done(&["audit"]).await.lines().all(|line| line.starts_with("ok ")));
}

/// Asks this node until it answers; while the server is away, it says that there is no database.
async fn answer_at(node: &ProcessNode, client: &Client, key: Uuid) -> Answer {
    let client = client.at(node.address);
    client.chat_until_answered(key, "c1", "hello").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_of_the_folder_goes_on_when_the_first_is_killed() {
    let home = Home::prepared("second").await;
    let provider = ScriptedProvider::start().await;
    let variables = provider_variables(&provider, Wire::Anthropic);
    let mut first = ProcessNode::in_folder(&home.0.0, &variables).await;
    let client = client_of(&curl_line(&first).await);
    let mut second = ProcessNode::in_folder(&home.0.0, &variables).await;
    let earlier = Uuid::new_v4();
    let before = answer_at(&second, &client, earlier).await;
    assert_eq!((before.status, before.replayed()), (200, false));

    let postgres = home.postgres();
    first.kill().await;
    assert!(postgres.ends());
    let again = answer_at(&second, &client, earlier).await;
    assert!(again.replayed());
    assert_eq!(again.bytes, before.bytes);
    assert_eq!(answer_at(&second, &client, Uuid::new_v4()).await.status, 200);
    let owner = second.until_event("private_postgres", |line| line["owned"] == true).await;
    assert_eq!(owner["level"], "WARN");

    // The server is the second one's now, and ends with it.
    let postgres = home.postgres();
    second.signal("TERM").await;
    assert_eq!(second.ended().await, Some(0));
    assert!(postgres.ends());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_is_killed_under_its_server_is_started_again() {
    let home = Home::prepared("crashed").await;
    let provider = ScriptedProvider::start().await;
    let variables = provider_variables(&provider, Wire::Anthropic);
    let node = ProcessNode::in_folder(&home.0.0, &variables).await;
    let client = client_of(&curl_line(&node).await);
    let key = Uuid::new_v4();
    let before = answer_at(&node, &client, key).await;
    let pid = home.postmaster();
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    node.until_event("private_postgres", |line| line["owned"] == true).await;
    let again = answer_at(&node, &client, key).await;
    assert!(again.replayed());
    assert_eq!(again.bytes, before.bytes);
    assert_eq!(answer_at(&node, &client, Uuid::new_v4()).await.status, 200);
    assert_eq!(client.get("/readyz").await.status, 200);
    assert!(home.done(&["audit"]).await.lines().all(|line| line.starts_with("ok ")));
}

/// Every command once, whether or not there is a server.
async fn every_command(home: &Home) -> (String, String) {
    assert!(home.done(&["migrate"]).await.contains("up to date"));
    assert!(home.done(&["partitions", "ensure"]).await.contains("days ahead"));
    assert!(home.done(&["audit"]).await.lines().count() > 3);
    let key = home.done(&["key", "create", "--tenant", "acme", "--role", "client"]).await;
    let key = key.strip_suffix('\n').unwrap().to_owned();
    assert!(key.starts_with("ok_") && !key.contains(char::is_whitespace), "the key alone: {key}");
    let list = home.done(&["key", "list"]).await;
    assert!(!list.contains(&key));
    let mut mine = list.lines().filter(|line| line.contains("acme") && !line.contains("revoked"));
    let id = mine.next_back().unwrap().split_whitespace().next().unwrap().to_owned();
    (key, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_work_beside_a_server_and_without_one() {
    let home = Home::prepared("commands").await;
    let (early, _) = every_command(&home).await;
    // A key was there before the first start, so none is made up.
    let mut node = home.serve().await;
    printed_without_a_key(&node).await;
    let early = Client::new(node.address, &early);
    assert_eq!(early.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);

    let (key, id) = every_command(&home).await;
    let client = Client::new(node.address, &key);
    let asked = Uuid::new_v4();
    assert_eq!(client.chat(asked, "c2", "hello").await.status, 200);
    assert!(home.done(&["key", "revoke", &id]).await.contains(&id));
    let refused = client.chat(asked, "c2", "hello").await;
    assert_eq!((refused.status, refused.error().as_str()), (401, "unauthorized"));
    let unknown = client.get(&format!("/v1/requests/{asked}")).await;
    assert_eq!((unknown.status, unknown.error().as_str()), (401, "unauthorized"));
    let twice = home.run(&["key", "revoke", &id]).await;
    assert_eq!(twice.code, Some(1));
    assert_one_line(&twice.stderr, &id);
    // None of them has taken the server's database away.
    assert_eq!(early.chat(Uuid::new_v4(), "c1", "and again").await.status, 200);
    assert_eq!(early.get("/readyz").await.status, 200);

    node.signal("TERM").await;
    assert_eq!(node.ended().await, Some(0));
    let list = home.done(&["key", "list"]).await;
    assert!(list.lines().any(|line| line.contains(&id) && line.contains("revoked")), "{list}");
    every_command(&home).await;
}

/// An error is one line that names this.
fn assert_one_line(stderr: &str, part: &str) {
    assert!(stderr.starts_with("oncekey: ") && stderr.contains(part), "{part}: {stderr}");
    assert!(stderr.ends_with('\n') && stderr.lines().count() == 1, "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_is_status_2_and_one_line() {
    let home = Home::new("usage");
    for (arguments, part) in [
        (&[][..], "oncekey [OPTIONS] <COMMAND>"),
        (&["key"], "oncekey key [OPTIONS] <COMMAND>"),
        (&["nosuch"], "nosuch"),
        (&["serve", "--nosuch"], "--nosuch"),
        (&["serve", "--listen", "nowhere"], "--listen"),
        (&["serve", "--database-url", "mysql://u:pw@h/d"], "postgres://"),
        (&["--config", "nosuch.toml", "audit"], "nosuch.toml"),
        (&["key", "create"], "--tenant"),
        (&["key", "create", "--tenant", "t", "--role", "boss"], "client, finance, operator"),
        (&["key", "create", "--tenant", "", "--role", "client"], "--tenant"),
        (&["key", "revoke", "not-an-id"], "not-an-id"),
        (&["audit", "everything"], "everything"),
    ] {
        let ended = home.run(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert_one_line(&ended.stderr, part);
        assert!(!ended.stderr.contains("u:pw"));
    }
    fs::write(home.0.0.join("bad.toml"), "[idempotency]\nheartbeet = \"10s\"\n").unwrap();
    let ended = home.run(&["--config", "bad.toml", "serve"]).await;
    assert_eq!(ended.code, Some(2));
    assert_one_line(&ended.stderr, "heartbeet");
    assert!(!home.0.0.join(".oncekey").exists(), "nothing was begun");
    for asked in [&["--version"][..], &["--help"], &["key", "create", "--help"]] {
        assert!(home.done(asked).await.contains("oncekey"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_reached_is_named_without_its_password() {
    let home = Home::new("unreachable");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("postgres://me:hush@{closed}/somewhere");
    for command in [&["serve"][..], &["migrate"], &["audit"], &["key", "list"]] {
        let arguments = [command, &["--database-url", &url]].concat();
        let ended = home.run(&arguments).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}");
        for part in ["cannot be reached", &closed.to_string(), "DATABASE_URL", "--database-url"] {
            assert_one_line(&ended.stderr, part);
        }
        assert!(!ended.stderr.contains("hush"), "{}", ended.stderr);
    }
    let variables = [("DATABASE_URL".to_owned(), url.clone())];
    let ended = run(&home.0.0, &["serve"], &variables).await;
    assert_eq!(ended.code, Some(1));
    assert_one_line(&ended.stderr, "cannot be reached");
    assert!(!home.0.0.join(".oncekey").exists(), "no other database stands in for a named one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_not_waited_for() {
    let home = Home::new("mute");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://me@{}/somewhere", listener.local_addr().unwrap());
    let ended = home.run(&["serve", "--database-url", &url]).await;
    assert_eq!(ended.code, Some(1));
    assert_one_line(&ended.stderr, "cannot be reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_one_line_and_leaves_no_server_behind() {
    let home = Home::prepared("port").await;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = home.run(&["serve", "--listen", &address]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let said: Vec<_> = ended.stderr.lines().filter(|line| line.starts_with("oncekey: ")).collect();
    let [said] = said[..] else { panic!("{}", ended.stderr) };
    assert!(said.contains(&address) && said.contains("--listen"), "{said}");
    assert!(!home.0.0.join(".oncekey/postgres/data/postmaster.pid").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_output_nobody_reads_serves() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let mut node = ProcessNode::unread_on(&database, &provider).await;
    // The last line is said once there is a key; a server that cannot say it goes on.
    eventually("it has made an API key", || async {
        database.count("select count(*) from api_keys").await == 1
    })
    .await;
    let api_key = new_key(&database.store(), "t1", "client", None).await;
    let client = Client::new(node.address, &api_key);
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    node.signal("TERM").await;
    assert_eq!(node.ended().await, Some(0));
}
