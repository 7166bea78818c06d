//! Every fault that a process can be asked for: with it, the way back is seen in the log and the
//! operation ends well; without it, not a line of one. (Those that hold or end an operation at a point
//! are tried by killing and panicking processes, in tests of their own.)

use std::path::Path;

use serde_json::Value;
use uuid::Uuid;

use crate::support::pair::{CONVERSATION, MESSAGE};
use crate::support::process::{ProcessNode, run};
use crate::support::provider::{Action, Gate, Reply};
use crate::support::{Answer, Client, Pair, TestDatabase, eventually};

const ON: (&str, &str) = ("ONCEKEY_FAULTS", "on");
/// Short waits between calls, and quick beats. The sweep, which looks a dozen times within the silence
/// that it waits for, comes between nothing.
const SETTINGS: [(&str, &str); 3] = [
    ("ONCEKEY_RETRY__TOTAL_WAIT", "1s"),
    ("ONCEKEY_IDEMPOTENCY__HEARTBEAT", "200ms"),
    ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "2h"),
];
/// What a process says of a fault, or on a way back from one.
const WAYS_BACK: [&str; 11] = [
    "faults_on",
    "fault",
    "retrying",
    "run_failed",
    "failed",
    "panic",
    "commit_repeated",
    "commit_in_doubt",
    "taken_over",
    "fenced_off",
    "abandoned",
];

/// Two nodes, of which A has these faults.
async fn with_faults(faults: &[(&str, &str)]) -> Pair {
    let only_a = [&[ON], faults].concat();
    Pair::start(&SETTINGS, &only_a).await
}

/// The same, with the request sent to node A and answered well.
async fn answered_with(faults: &[(&str, &str)]) -> (Pair, Answer) {
    let pair = with_faults(faults).await;
    let answer = answer_of_a(&pair).await;
    (pair, answer)
}

/// The request is sent to node A and answered well, and all that the node had to say of it was read.
async fn answer_of_a(pair: &Pair) -> Answer {
    let answer = pair.ask_a().await.unwrap().unwrap();
    until_told(&pair.a, &answer).await;
    answer
}

/// Waits for the last line of an operation that ended well.
async fn until_told(node: &ProcessNode, answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    let id = answer.header("x-request-id").unwrap();
    node.until_event("committed", |line| line["request_id"] == id).await;
}

/// Lines of a way back. Whatever is looked for here, the control sees none of.
fn lines(node: &ProcessNode, event: &str) -> Vec<Value> {
    assert!(WAYS_BACK.contains(&event), "the control does not look for {event}");
    node.events(event)
}

/// The fault was taken so often, said at each time, and at the start that it would be.
fn assert_taken(node: &ProcessNode, name: &str, times: usize) {
    let taken = lines(node, "fault");
    let taken: Vec<_> = taken.iter().filter(|line| line["fault"] == name).collect();
    assert_eq!(taken.len(), times, "{taken:?}");
    for (place, line) in taken.iter().enumerate() {
        assert_eq!((&line["level"], &line["count"]), (&"WARN".into(), &(place + 1).into()));
        assert_eq!(line["request_id"].is_string(), name != "heartbeat_stall", "{line}");
    }
    let on = lines(node, "faults_on");
    assert_eq!((on.len(), &on[0]["level"]), (1, &"WARN".into()));
    let listed = on[0]["faults"].as_str().unwrap();
    assert!(listed.contains(&format!("{}=", name.to_uppercase())), "{listed}");
}

async fn assert_ended_well(pair: &Pair, answer: &Answer) {
    pair.assert_one_outcome(answer).await;
    assert_audit_is_clean(&pair.database).await;
}

async fn assert_audit_is_clean(database: &TestDatabase) {
    let variables = [("DATABASE_URL".to_owned(), database.url.clone())];
    let audit = run(Path::new("/"), &["audit"], &variables).await;
    assert_eq!(audit.code, Some(0), "{}", audit.stdout);
}

/// Another question at node A goes through as if nothing had been.
async fn assert_used_up(pair: &Pair) {
    let before: Vec<_> = WAYS_BACK.iter().map(|event| pair.a.events(event).len()).collect();
    until_told(&pair.a, &pair.at_a.chat(Uuid::new_v4(), "another", MESSAGE).await).await;
    let after: Vec<_> = WAYS_BACK.iter().map(|event| pair.a.events(event).len()).collect();
    assert_eq!(before, after);
}

/// The kinds of failure of the provider calls, in their order; `ok` for the one that answered.
async fn kinds_of_calls(pair: &Pair) -> String {
    let kinds = "select string_agg(coalesce(failure_kind, 'ok'), ' ' order by call_no)
        from provider_calls";
    pair.database.text(kinds).await
}

fn kinds_of_retries(node: &ProcessNode) -> Vec<Value> {
    lines(node, "retrying").iter().map(|line| line["kind"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_fail_are_made_again() {
    let (pair, answer) = answered_with(&[("ONCEKEY_FAULT_PROVIDER_FAIL_ONCE", "2")]).await;
    assert_taken(&pair.a, "provider_fail_once", 2);
    assert_eq!(kinds_of_retries(&pair.a), ["transient", "transient"]);
    assert_eq!(pair.provider.count(), 1, "the two that failed never left");
    assert_eq!(kinds_of_calls(&pair).await, "transient transient ok");
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_fault_there_is_not_one_retry_nor_any_other_way_back() {
    let pair = Pair::start(&SETTINGS, &[]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    // A silence that only a beat of node A can end.
    pair.database.age_heartbeats().await;
    until_it_beats(&pair).await;
    let alive = pair.ask_b().await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    gate.open();
    let answer = asked.await.unwrap().unwrap();
    until_told(&pair.a, &answer).await;
    assert_eq!(pair.provider.count(), 1);
    assert_ended_well(&pair, &answer).await;
    pair.b.until_event("replayed", |_| true).await;
    for node in [&pair.a, &pair.b] {
        assert!(node.log().len() > 1, "it does speak");
        for event in WAYS_BACK {
            assert_eq!(lines(node, event), Vec::<Value>::new());
        }
    }
}

async fn until_it_beats(pair: &Pair) {
    let fresh = "select count(*) from request_records
        where heartbeat_at > clock_timestamp() - interval '5 minutes'";
    let landed = || async { pair.database.count(fresh).await == 1 };
    eventually("a beat lands", landed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_refused_as_too_many_are_made_again() {
    let (pair, answer) = answered_with(&[("ONCEKEY_FAULT_PROVIDER_LIMIT", "1")]).await;
    assert_taken(&pair.a, "provider_limit", 1);
    assert_eq!(kinds_of_retries(&pair.a), ["rate_limited"]);
    assert_eq!(pair.provider.count(), 1);
    assert_eq!(kinds_of_calls(&pair).await, "rate_limited ok");
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_hang_are_ended_and_made_again() {
    let deadline = ("ONCEKEY_PROVIDERS__MAIN__FIRST_BYTE_TIMEOUT", "2s");
    let (pair, answer) = answered_with(&[("ONCEKEY_FAULT_PROVIDER_HANG", "1"), deadline]).await;
    assert_taken(&pair.a, "provider_hang", 1);
    assert_eq!(kinds_of_retries(&pair.a), ["timeout"]);
    let ended = pair.a.events("provider_call_ended");
    assert!(ended[0]["took_ms"].as_u64().unwrap() >= 2_000, "{}", ended[0]);
    assert_eq!(kinds_of_calls(&pair).await, "timeout ok");
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_cut_in_their_stream_are_made_again() {
    let pair = with_faults(&[("ONCEKEY_FAULT_PROVIDER_CUT", "1")]).await;
    // The first text is out and nothing follows, so that only the cut can end this.
    pair.provider.reply(Reply::normal().after(1, Action::Hold(Gate::closed())));
    let answer = answer_of_a(&pair).await;
    pair.provider.until_client_gone(1).await;
    assert_taken(&pair.a, "provider_cut", 1);
    assert_eq!(kinds_of_retries(&pair.a), ["transient"]);
    assert_eq!(pair.provider.count(), 2);
    assert_eq!(kinds_of_calls(&pair).await, "transient ok");
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_slow_are_waited_for() {
    let (pair, answer) = answered_with(&[("ONCEKEY_FAULT_PROVIDER_SLOW", "300ms")]).await;
    until_told(&pair.a, &pair.at_a.chat(Uuid::new_v4(), "another", MESSAGE).await).await;
    assert_taken(&pair.a, "provider_slow", 2);
    for ended in pair.a.events("provider_call_ended") {
        assert!(ended["took_ms"].as_u64().unwrap() >= 300, "{ended}");
    }
    assert_eq!(lines(&pair.a, "retrying").len(), 0);
    assert_eq!(pair.provider.count(), 2);
    let replay = pair.ask_b().await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, answer.bytes);
    assert_eq!(pair.database.outcomes().await, (2, 2, 2));
    assert_audit_is_clean(&pair.database).await;
}

/// Node A loses the connection of its first commit; how often a commit came to write a receipt, whether
/// it stayed or not, stands in a sequence.
async fn commits_cut(fault: &str) -> (Pair, Answer) {
    let pair = with_faults(&[(&format!("ONCEKEY_FAULT_{fault}"), "1")]).await;
    let counted = "create sequence written;
        create function count_it() returns trigger language plpgsql as
            'begin perform nextval(''written''); return new; end';
        create trigger count_it before insert on usage_receipts for each row
            execute function count_it()";
    pair.database.execute(counted).await;
    let answer = answer_of_a(&pair).await;
    assert_taken(&pair.a, &fault.to_lowercase(), 1);
    let repeated = lines(&pair.a, "commit_repeated");
    assert_eq!(repeated.len(), 1);
    // The server's farewell came in place of an answer to the commit, or before it was sent.
    let farewell = repeated[0]["error"].as_str().unwrap().contains("terminating connection");
    assert_eq!(farewell, fault == "DATABASE_CUT_AFTER_COMMIT", "{}", repeated[0]);
    assert_eq!(pair.a.events("committed").len(), 1);
    assert_eq!(pair.provider.count(), 1, "what was answered is not asked again");
    assert_eq!(pair.fence_and_attempts().await, (1, 1));
    (pair, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_connection_breaks_before_it_is_written_from_memory() {
    let (pair, answer) = commits_cut("DATABASE_CUT_BEFORE_COMMIT").await;
    // The one that was cut never came so far.
    assert_eq!(pair.database.count("select last_value from written").await, 1);
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_looked_up_and_not_written_again() {
    let (pair, answer) = commits_cut("DATABASE_CUT_AFTER_COMMIT").await;
    assert_eq!(pair.database.count("select last_value from written").await, 1);
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_beats_stop_is_replaced_and_fenced_off() {
    let pair = with_faults(&[("ONCEKEY_FAULT_HEARTBEAT_STALL", "1h")]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    pair.a.until_event("fault", |line| line["fault"] == "heartbeat_stall").await;
    pair.database.age_heartbeats().await;
    // Beats later it is as silent as before.
    pair.a.until_event("fault", |line| line["count"] == 6).await;
    let answer = pair.answer_of_b().await;
    assert!(!answer.replayed());
    until_told(&pair.b, &answer).await;
    let takeovers = lines(&pair.b, "taken_over");
    assert_eq!((takeovers.len(), &takeovers[0]["why"]), (1, &"Silent".into()));

    gate.open();
    let of_the_sleeper = asked.await.unwrap().unwrap();
    assert!(of_the_sleeper.replayed());
    assert_eq!(of_the_sleeper.bytes, answer.bytes);
    pair.a.until_event("fenced_off", |_| true).await;
    assert_eq!(lines(&pair.a, "fenced_off").len(), 1);
    assert_eq!(pair.a.events("committed").len(), 0);
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    assert_ended_well(&pair, &answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beats_that_stopped_go_on_after_the_time() {
    let pair = with_faults(&[("ONCEKEY_FAULT_HEARTBEAT_STALL", "700ms")]).await;
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    pair.a.until_event("fault", |line| line["fault"] == "heartbeat_stall").await;
    pair.database.age_heartbeats().await;
    until_it_beats(&pair).await;
    gate.open();
    let answer = asked.await.unwrap().unwrap();
    until_told(&pair.a, &answer).await;
    assert_eq!(lines(&pair.a, "fenced_off").len(), 0);
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

/// The first arrival meets a panic of its run and is told so; asked again, the operation ends well.
async fn panics_once(fault: (&str, &str), name: &str) {
    let pair = with_faults(&[fault]).await;
    let panicked = pair.ask_a().await.unwrap().unwrap();
    assert_eq!((panicked.status, panicked.error().as_str()), (500, "internal"));
    pair.a.until_event("failed", |_| true).await;
    assert_taken(&pair.a, name, 1);
    assert_eq!(lines(&pair.a, "panic").len(), 1);
    assert_eq!(lines(&pair.a, "failed")[0]["kind"], "internal");
    let answer = answer_of_a(&pair).await;
    assert!(!answer.replayed());
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    assert_ended_well(&pair, &answer).await;
    assert_used_up(&pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_panic_end_as_passing_failures() {
    panics_once(("ONCEKEY_FAULT_RUN_PANIC", "1"), "run_panic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn points_act_at_the_first_times_only_where_that_is_asked_for() {
    panics_once(("ONCEKEY_FAULT_BEFORE_COMMIT", "panic:1"), "before_commit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_at_once_still_make_one_outcome() {
    let (pair, answer) = answered_with(&[
        ("ONCEKEY_FAULT_PROVIDER_FAIL_ONCE", "1"),
        ("ONCEKEY_FAULT_PROVIDER_CUT", "1"),
        ("ONCEKEY_FAULT_PROVIDER_SLOW", "10ms"),
        ("ONCEKEY_FAULT_DATABASE_CUT_BEFORE_COMMIT", "1"),
        ("ONCEKEY_FAULT_DATABASE_CUT_AFTER_COMMIT", "1"),
    ])
    .await;
    assert_taken(&pair.a, "provider_fail_once", 1);
    assert_taken(&pair.a, "provider_cut", 1);
    assert_taken(&pair.a, "provider_slow", 3);
    assert_taken(&pair.a, "database_cut_before_commit", 1);
    assert_taken(&pair.a, "database_cut_after_commit", 1);
    assert_eq!(kinds_of_retries(&pair.a).len(), 2);
    assert_eq!(lines(&pair.a, "commit_repeated").len(), 2);
    assert_ended_well(&pair, &answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_account_the_ways_back_can_be_tried_too() {
    let database = TestDatabase::new().await;
    let variables = [
        ("DATABASE_URL", database.url.as_str()),
        ("ONCEKEY_LISTEN", "127.0.0.1:0"),
        ("ONCEKEY_RETRY__TOTAL_WAIT", "1s"),
        ON,
        ("ONCEKEY_FAULT_PROVIDER_FAIL_ONCE", "1"),
        ("ONCEKEY_FAULT_PROVIDER_CUT", "1"),
    ];
    let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let node = ProcessNode::start(variables.to_vec()).await;
    let api_key = crate::support::node::new_key(&database.store(), "t1", "client", None).await;
    let client = Client::new(node.address, &api_key);
    let answer = client.chat(Uuid::new_v4(), CONVERSATION, MESSAGE).await;
    until_told(&node, &answer).await;
    assert!(answer.content().contains(MESSAGE));
    assert_taken(&node, "provider_fail_once", 1);
    assert_taken(&node, "provider_cut", 1);
    assert_eq!(lines(&node, "retrying").len(), 2);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert_audit_is_clean(&database).await;
}
