//! One operation at a time in a conversation: the others are told when to ask again, change nothing
//! by asking, and read every earlier answer when it is their turn. Nothing holds a conversation for
//! ever, and nobody else's conversation can be seen.

use serde_json::json;
use uuid::Uuid;

use crate::claims::assert_says_when;
use crate::support::client::Answer;
use crate::support::direct::{
    arrival, chat_commit, failure, living_store, of_subject, reclaimed, record, store_at, won,
};
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, default_answer};
use crate::support::{Client, TestDatabase};
use oncekey::store::{ClaimOutcome, CommitOutcome, ReclaimOutcome};
use std::time::Duration;

/// A node whose provider holds the first answer of conversation `c1`, of an operation that runs.
async fn held(
    database: &TestDatabase,
    provider: &ScriptedProvider,
) -> (TestNode, Client, Gate, Uuid, tokio::task::JoinHandle<Answer>) {
    let gate = Gate::closed();
    provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let node = TestNode::start(database, provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    let key = Uuid::new_v4();
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.chat(key, "c1", "first").await }
    });
    provider.until_requests(1).await;
    (node, client, gate, key, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_operation_is_told_to_wait_and_then_reads_the_first_answer() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let (node, client, gate, _, run) = held(&database, &provider).await;
    let second = Uuid::new_v4();

    for _ in 0..3 {
        let busy = client.chat(second, "c1", "second").await;
        assert_eq!((busy.status, busy.error().as_str()), (409, "conversation_busy"));
        assert_says_when(&busy);
    }
    assert_eq!(provider.count(), 1);
    assert_eq!(database.count("select count(*) from request_records").await, 1);
    assert_eq!(client.get(&format!("/v1/requests/{second}")).await.status, 404);
    // Another conversation is not held up.
    assert_eq!(client.chat(Uuid::new_v4(), "c2", "hello").await.status, 200);

    gate.open();
    let first = run.await.unwrap();
    assert_eq!(first.status, 200);
    let answered = client.chat(second, "c1", "second").await;
    assert_eq!(answered.status, 200);
    let prompt = provider.requests()[2].messages();
    let turn = |role: &str, text: String| (role.to_owned(), text);
    assert_eq!(
        prompt,
        [
            turn("user", "first".into()),
            turn("assistant", default_answer(1, "first")),
            turn("user", "second".into()),
        ]
    );
    assert_eq!(database.standing(second).await, (1, 1, "committed".into(), None));
    assert_eq!(database.outcomes().await, (3, 3, 3));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_of_a_busy_conversation_write_nothing() {
    let (database, _server) = TestDatabase::quiet("wal-of-polls").await;
    let store = store_at(&database, Duration::ZERO);
    store.migrate().await.unwrap();
    let (store, _session) = living_store(&database).await;
    let holder = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    // One that has never run, and two that would run again: after a failure, and after a silence.
    let new = arrival(Uuid::new_v4(), "c1");
    let failed = won(&store, arrival(Uuid::new_v4(), "c2")).await;
    let silent = won(&store, arrival(Uuid::new_v4(), "c3")).await;
    assert_eq!(store.fail(failure(&failed, "transient")).await.unwrap(), CommitOutcome::Committed);
    database.silence(silent.at.key).await;
    database
        .execute("update request_records set conversation_id = 'c1'; delete from conversations where conversation_id <> 'c1'")
        .await;
    let poll = async || {
        let busy = store.claim(new.clone()).await.unwrap();
        assert!(matches!(busy, ClaimOutcome::ConversationBusy(_)), "{busy:?}");
        for claim in [&failed, &silent] {
            let busy = reclaimed(&store, record(&store, claim).await).await;
            assert!(matches!(busy, ReclaimOutcome::ConversationBusy(_)), "{busy:?}");
        }
    };
    // The first look leaves the key's row behind, which means nothing.
    poll().await;

    let written = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn";
    let written = async || database.count(&format!("select ({written})::bigint")).await;
    let before = written().await;
    for _ in 0..5 {
        poll().await;
    }
    assert_eq!(written().await, before, "bytes of WAL");

    let commit = chat_commit(&holder, "first", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    assert_eq!(won(&store, new).await.head_seq, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nobody_living_holds_is_taken_by_the_next_operation() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client("t1").await;
    database.age_epoch().await;

    // Of a finished operation, of a silent one, of one whose node is dead, of one whose node is not
    // known, and of no operation at all.
    let finished = Uuid::new_v4();
    assert_eq!(client.chat(finished, "done", "hello").await.status, 200);
    let [silent, dead, unknown] = [(); 3].map(|()| Uuid::new_v4());
    for (key, conversation) in [(silent, "silent"), (dead, "dead"), (unknown, "unknown")] {
        won(node.store(), arrival(key, conversation)).await;
    }
    database.silence(silent).await;
    database
        .execute(&format!(
            "insert into nodes (node_id, advertised, dead_at) values (700, '', clock_timestamp());
            update request_records set owner = 700 where idempotency_key = '{dead}';
            update request_records set owner = 701 where idempotency_key = '{unknown}';
            update conversations set active_key = '{finished}' where conversation_id = 'done';
            insert into conversations (tenant_id, conversation_id, active_key)
                values ('t1', 'nobody', '{}')",
            Uuid::new_v4()
        ))
        .await;

    let held = "select count(*) from conversations where active_key is not null";
    assert_eq!(database.count(held).await, 5);
    for conversation in ["done", "silent", "dead", "unknown", "nobody"] {
        let next = client.chat(Uuid::new_v4(), conversation, "next").await;
        assert_eq!(next.status, 200, "{conversation}: {}", String::from_utf8_lossy(&next.bytes));
    }
    assert_eq!(database.count(held).await, 0);
    // Whose lease was taken has not been ended by that: it is still there to be taken over.
    for key in [silent, dead, unknown] {
        assert_eq!(database.standing(key).await.2, "in_progress");
    }
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_loses_its_conversation_tells_its_client_to_come_back() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let (node, client, gate, key, run) = held(&database, &provider).await;
    database.age_epoch().await;
    database.execute("update request_records set owner = 700").await;
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "second").await.status, 200);
    gate.open();
    let lost = run.await.unwrap();
    assert_eq!((lost.status, lost.error().as_str()), (409, "conversation_busy"));
    assert_says_when(&lost);
    let standing = (1, 1, "failed".to_owned(), Some("lease_lost".to_owned()));
    assert_eq!(database.standing(key).await, standing);
    assert_eq!(database.outcomes().await, (1, 1, 1));

    assert_eq!(client.chat(key, "c1", "first").await.status, 200);
    assert_eq!(provider.requests()[2].messages().len(), 3, "it has read what it had missed");
    assert_eq!(database.outcomes().await, (2, 2, 2));
    let wasted = "select count(*) from provider_calls where not counted and status = 200";
    assert_eq!(database.count(wasted).await, 1);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_of_somebody_else_does_not_exist() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let server = node.client("t1").await;
    let as_user = |key: Uuid, user: Option<&str>, message: &str| {
        let body = json!({"conversation_id": "c1", "message": message});
        let request = server.chat_request(key, &body);
        match user {
            Some(user) => request.header("x-end-user", user),
            None => request,
        }
    };
    let key = Uuid::new_v4();
    assert_eq!(server.send(as_user(key, Some("ann"), "hello")).await.unwrap().status, 200);

    for user in [Some("bob"), Some("ANN"), None] {
        let fresh = Uuid::new_v4();
        for _ in 0..2 {
            let hidden = server.send(as_user(fresh, user, "let me in")).await.unwrap();
            assert_eq!((hidden.status, hidden.error().as_str()), (404, "not_found"), "{user:?}");
        }
        // The key's own question comes first.
        let reuse = server.send(as_user(key, user, "hello")).await.unwrap();
        assert_eq!((reuse.status, reuse.error().as_str()), (422, "idempotency_key_reuse"));
    }
    let bound = node.client_as("t1", "client", Some("bob")).await;
    assert_eq!(bound.chat(Uuid::new_v4(), "c1", "let me in").await.error(), "not_found");
    assert_eq!(bound.get("/v1/conversations/c1/turns").await.error(), "not_found");
    assert_eq!(bound.get(&format!("/v1/requests/{key}")).await.error(), "not_found");

    assert_eq!(provider.count(), 1);
    assert_eq!(database.count("select count(*) from request_records").await, 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    let next = server.send(as_user(Uuid::new_v4(), Some("ann"), "again")).await.unwrap();
    assert_eq!(next.status, 200);
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_taken_for_somebody_who_may_not_see_the_conversation() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let ann = won(&store, of_subject(arrival(Uuid::new_v4(), "c1"), "ann")).await;
    database.silence(ann.at.key).await;
    for other in [arrival(Uuid::new_v4(), "c1"), of_subject(arrival(Uuid::new_v4(), "c1"), "bob")] {
        let hidden = store.claim(other).await.unwrap();
        assert!(matches!(hidden, ClaimOutcome::ConversationHidden), "{hidden:?}");
    }
    let lease = format!("select count(*) from conversations where active_key = '{}'", ann.at.key);
    assert_eq!(database.count(&lease).await, 1);
    won(&store, of_subject(arrival(Uuid::new_v4(), "c1"), "ann")).await;
}
