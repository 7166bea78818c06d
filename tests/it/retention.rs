//! What `[retention]` keeps for a time only goes when that is over, and what is younger, what still counts
//! and what the audit asks for stays.

use std::path::PathBuf;
use std::time::Duration;

use oncekey::background::{Retention, RetentionPass, RetentionRules, TakenAway};
use oncekey::captures::Captures;
use oncekey::clock::Clock;
use oncekey::store::{INVARIANTS, Kept, Store};
use uuid::Uuid;

use crate::support::direct::store_at;
use crate::support::node::{NodeOptions, TestNode, captures_folder};
use crate::support::old_days::DAY;
use crate::support::provider::{Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase, eventually};

const LONG: Duration = Duration::from_secs(600);

async fn take(store: &Store, rules: RetentionRules) -> TakenAway {
    let (taken, done) = take_within(store, rules, LONG, &mut RetentionPass::default()).await;
    assert!(done);
    taken
}

async fn take_within(
    store: &Store,
    rules: RetentionRules,
    time: Duration,
    pass: &mut RetentionPass,
) -> (TakenAway, bool) {
    let mut session = store.partition_session().await.unwrap();
    assert!(session.alone().await.unwrap());
    let clock = Clock::system();
    let captures = Captures::open(&captures_folder()).unwrap();
    let deadline = clock.now() + time;
    let retention = Retention { captures: &captures, rules, clock: &clock, deadline };
    let mut taken = TakenAway::default();
    let done = retention.round(&mut session, pass, &mut taken).await.unwrap();
    session.close().await.unwrap();
    (taken, done)
}

async fn assert_clean_of(store: &Store, kept: Kept) {
    for invariant in INVARIANTS {
        let findings = store.broken_of_kept(invariant, None, kept).await.unwrap();
        assert!(findings.is_empty(), "{} is broken: {findings:?}", invariant.name);
    }
}

async fn serving() -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

async fn parse(provider: &ScriptedProvider, client: &Client) {
    provider.reply(Reply::tool_file("ok.txt"));
    assert_eq!(
        client.parse(Uuid::new_v4(), "MARA: Is it boiling?\nOTTO: Not yet.\n").await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_go_from_the_front_two_by_two_and_the_conversation_goes_on() {
    let (database, _provider, node, client) = serving().await;
    for _ in 0..3 {
        assert_eq!(client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    }
    assert_eq!(client.chat(Uuid::new_v4(), "c2", "hello").await.status, 200);
    // The first two operations are old; of the third it is the question alone.
    database
        .execute(
            "update turns set created_at = created_at - interval '3 days'
                where conversation_id = 'c1' and seq <= 5;
            update usage_receipts u set created_at = u.created_at - interval '3 days' from turns t
                where t.operation_id = u.operation_id and t.conversation_id = 'c1' and t.seq = any ('{2,4}');
            update request_records r set completed_at = r.completed_at - interval '3 days' from turns t
                where t.operation_id = r.operation_id and t.conversation_id = 'c1' and t.seq = any ('{2,4}')",
        )
        .await;
    let rules = RetentionRules { turns: Some(2 * DAY), ..RetentionRules::default() };
    let kept = Kept { turns: rules.turns, ..Kept::default() };
    let taken = take(&database.store(), rules).await;
    assert_eq!(taken, TakenAway { turns: 4, ..TakenAway::default() });
    let left =
        "select string_agg(conversation_id || seq, ',' order by conversation_id, seq) from turns";
    assert_eq!(database.text(left).await, "c15,c16,c21,c22");
    assert_clean_of(node.store(), kept).await;

    assert_eq!(client.chat(Uuid::new_v4(), "c1", "and now?").await.status, 200);
    assert_eq!(database.text(left).await, "c15,c16,c17,c18,c21,c22");
    assert_clean_of(node.store(), kept).await;
    // All of a conversation's: its head stays, and what comes next has its number.
    database
        .execute(
            "update turns set created_at = created_at - interval '3 days' where conversation_id = 'c2';
            update request_records set completed_at = completed_at - interval '3 days'
                where conversation_id = 'c2'",
        )
        .await;
    assert_eq!(take(&database.store(), rules).await.turns, 2);
    assert_clean_of(node.store(), kept).await;
    assert_eq!(client.chat(Uuid::new_v4(), "c2", "and now?").await.status, 200);
    assert_eq!(database.text(left).await, "c15,c16,c17,c18,c23,c24");
    assert_clean_of(node.store(), kept).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_conversations_and_many_of_them_go_in_steps_and_a_stopped_pass_goes_on() {
    let database = TestDatabase::new().await;
    database
        .execute(
            "insert into conversations (tenant_id, conversation_id, head_seq)
                select 't' || n % 3, 'c' || n, 90 from generate_series(1, 250) n;
            insert into turns (tenant_id, conversation_id, seq, turn_id, role, content, based_on_seq,
                operation_id, request_id, created_at)
            select tenant_id, conversation_id, n, gen_random_uuid(),
                case when n % 2 = 1 then 'user' else 'assistant' end, 'x', 0, gen_random_uuid(),
                gen_random_uuid(), now() - interval '5 days' + n * interval '1 hour'
            from conversations, generate_series(1, 90) n where conversation_id in ('c7', 'c8', 'c249')
                or n <= 2",
        )
        .await;
    let rules = RetentionRules { turns: Some(2 * DAY), ..RetentionRules::default() };
    let mut pass = RetentionPass::default();
    let none = take_within(&database.store(), rules, Duration::ZERO, &mut pass).await;
    assert_eq!(none, (TakenAway::default(), false));
    let (taken, done) = take_within(&database.store(), rules, LONG, &mut pass).await;
    // 72 of the 90 hours are over.
    assert_eq!((taken.turns, done), (247 * 2 + 3 * 72, true));
    assert_eq!(database.count("select count(*) from turns").await, 3 * 18);
    assert_eq!(database.count("select count(*) from turns where seq % 2 = 1").await, 3 * 9);
    assert_eq!(database.count("select count(*) from conversations where head_seq = 90").await, 250);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_results_go_unless_a_young_receipt_counts_them() {
    let (database, provider, node, client) = serving().await;
    let keys = [Uuid::new_v4(), Uuid::new_v4()];
    for key in keys {
        assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    }
    parse(&provider, &client).await;
    let other = node.client("t2").await;
    assert_eq!(other.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    // Three days on, all is old but one receipt.
    database
        .execute(&format!(
            "update usage_receipts set created_at = created_at + interval '2 days'
                where idempotency_key = '{}'",
            keys[1]
        ))
        .await;
    let later = store_at(&database, 3 * DAY);
    let rules = RetentionRules { provider_calls: Some(2 * DAY), ..RetentionRules::default() };
    assert_eq!(take(&database.store(), rules).await, TakenAway::default(), "now nothing is old");
    let taken = take(&later, rules).await;
    assert_eq!(taken, TakenAway { provider_calls: 3, ..TakenAway::default() });
    let left = "select count(*) from provider_calls c join usage_receipts u using (tenant_id, operation_id)
        where u.created_at > now() + interval '1 day'";
    assert_eq!(database.count(left).await, 1);
    let rules = RetentionRules { turns: Some(2 * DAY), ..RetentionRules::default() };
    let taken = take(&later, rules).await;
    assert_eq!((taken.parse_results, taken.turns), (1, 6));
    assert_eq!(database.count("select count(*) from usage_receipts").await, 4, "receipts stay");
    database
        .execute(
            "update request_records set completed_at = completed_at - interval '3 days';
            update usage_receipts set created_at = created_at - interval '5 days'",
        )
        .await;
    let kept = Kept { turns: Some(2 * DAY), provider_calls: Some(2 * DAY), ..Kept::default() };
    assert_clean_of(node.store(), kept).await;
    assert!(node.shut_down().await);
}

/// The one stored upload.
async fn upload(database: &TestDatabase) -> PathBuf {
    let location = database.text("select location from captures").await;
    PathBuf::from(captures_folder()).join(location)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_lets_old_uploads_go_with_their_bytes() {
    let (database, provider, node, client) = serving().await;
    parse(&provider, &client).await;
    let file = upload(&database).await;
    assert!(file.exists());
    assert!(node.shut_down().await);
    // The default is 30 days.
    let options = NodeOptions { clock_offset: 31 * DAY, ..NodeOptions::default() };
    let node = TestNode::start(&database, &provider, options).await;
    eventually("the upload is gone", || async {
        database.count("select count(*) from captures").await == 0
    })
    .await;
    assert!(!file.exists());
    assert_eq!(database.count("select count(*) from usage_receipts").await, 1);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_gone_already_are_no_hindrance() {
    let (database, provider, node, client) = serving().await;
    parse(&provider, &client).await;
    std::fs::remove_file(upload(&database).await).unwrap();
    let rules = RetentionRules { captures: Some(30 * DAY), ..RetentionRules::default() };
    assert_eq!(take(&store_at(&database, 29 * DAY), rules).await.captures, 0);
    assert_eq!(take(&store_at(&database, 31 * DAY), rules).await.captures, 1);
    assert_eq!(database.count("select count(*) from captures").await, 0);
    assert!(node.shut_down().await);
}
