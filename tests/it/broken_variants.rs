//! Ways of building a claim, a commit and a takeover that look right and are not. Each test stands
//! for one of them: it would fail if the product were built so.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{
    arrival, beating, chat_commit, failure, living_store, reclaimed, record, register, store_at,
    taken_over, won,
};

use oncekey::store::{
    Beat, ClaimOutcome, CommitOutcome, CommitTrace, ReclaimOutcome, Store, StoreError,
};
use std::sync::Arc;
use std::time::Duration;

/// Head and holder of conversation `c1`.
async fn conversation(database: &TestDatabase) -> (i64, Option<Uuid>) {
    let sql = "select head_seq, active_key from conversations where conversation_id = 'c1'";
    sqlx::query_as(sql).fetch_one(&database.pool).await.unwrap()
}

// A commit that moves the head without looking at the lease: a run that lost its conversation
// commits beside the one that took it.

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_conversation_commits_nothing() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let old = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(old.at.key).await;
    let new = won(&store, arrival(Uuid::new_v4(), "c1")).await;

    let commit = chat_commit(&old, "first", "answer");
    let while_held = store.commit_chat(commit.clone()).await;
    assert!(matches!(while_held, Err(StoreError::LeaseLost)), "{while_held:?}");
    assert_eq!(conversation(&database).await, (0, Some(new.at.key)));
    let standing = (1, 1, "in_progress".to_owned(), None);
    assert_eq!(database.standing(old.at.key).await, standing, "undone as a whole");
    assert_eq!(database.outcomes().await, (0, 0, 0));
    assert_eq!(database.count("select count(*) from provider_calls").await, 0);

    let second = chat_commit(&new, "second", "answer");
    assert_eq!(store.commit_chat(second).await.unwrap(), CommitOutcome::Committed);
    let when_free = store.commit_chat(commit).await;
    assert!(matches!(when_free, Err(StoreError::LeaseLost)), "{when_free:?}");
    assert_eq!(conversation(&database).await, (2, None));
    assert_eq!(database.outcomes().await, (1, 1, 1));

    // Its next run reads what it had missed.
    assert_eq!(store.fail(failure(&old, "lease_lost")).await.unwrap(), CommitOutcome::Committed);
    let again = taken_over(&store, &old).await;
    assert_eq!((again.head_seq, again.guard.fence.0), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_conversation_went_on_commits_nothing_though_it_holds_the_lease() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.execute("update conversations set head_seq = 2").await;
    let ended = store.commit_chat(chat_commit(&claim, "hello", "answer")).await;
    assert!(matches!(ended, Err(StoreError::LeaseLost)), "{ended:?}");
    assert_eq!(conversation(&database).await, (2, Some(claim.at.key)));
    assert_eq!(database.outcomes().await, (0, 0, 0));
}

// The holder's liveness as a subquery of the statement that takes the conversation: it sees the
// newest row with an old snapshot, which does not know the newest holder.

/// A transaction that has given `c1` to a living operation, and has not ended yet.
async fn uncommitted_claim(database: &TestDatabase, store: &Store, key: Uuid) -> PgConnection {
    let mut other = PgConnection::connect(&database.url).await.unwrap();
    let sql = format!(
        "begin;
        insert into request_keys select 't1', '{key}', (clock_timestamp() at time zone 'UTC')::date;
        insert into request_records (tenant_id, idempotency_key, day, operation_id, key_source,
            endpoint, conversation_id, request_hash, owner, request_id)
        select tenant_id, idempotency_key, day, gen_random_uuid(), 'client', 'chat', 'c1',
            decode(repeat('07', 32), 'hex'), {}, gen_random_uuid() from request_keys
            where idempotency_key = '{key}';
        update conversations set active_key = '{key}' where conversation_id = 'c1'",
        store.node()
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut other).await.unwrap();
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_comes_while_a_claim_waits_for_the_conversation_is_seen() {
    for known_key in [false, true] {
        let database = TestDatabase::new().await;
        let (store, _session) = living_store(&database).await;
        // The conversation is there, held by an operation that has ended.
        let ended = won(&store, arrival(Uuid::new_v4(), "c1")).await;
        let commit = chat_commit(&ended, "hello", "answer");
        assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
        let leftover = format!("update conversations set active_key = '{}'", ended.at.key);
        database.execute(&leftover).await;
        let key = Uuid::new_v4();
        if known_key {
            // A key that was told before that the conversation is busy takes the longer way.
            let row = format!("insert into request_keys values ('t1', '{key}', current_date - 5)");
            database.execute(&row).await;
        }
        let holder = Uuid::new_v4();
        let mut other = uncommitted_claim(&database, &store, holder).await;

        let claim = tokio::spawn({
            let store = store.clone();
            async move { store.claim(arrival(key, "c1")).await }
        });
        database.until_waiting(1).await;
        sqlx::raw_sql("commit").execute(&mut other).await.unwrap();

        let busy = claim.await.unwrap().unwrap();
        assert!(matches!(busy, ClaimOutcome::ConversationBusy(_)), "{known_key}: {busy:?}");
        assert_eq!(conversation(&database).await, (2, Some(holder)));
        assert_eq!(database.count("select count(*) from request_records").await, 2);
    }
}

// A commit that writes the conversation before the record: after a takeover the old run moves the
// head and clears the lease, which is its own key's, before it finds that the record is not its own.

#[tokio::test(flavor = "multi_thread")]
async fn the_old_run_of_a_key_that_was_taken_over_touches_nothing() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let old = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(old.at.key).await;
    let new = taken_over(&store, &old).await;
    assert_eq!((new.guard.fence.0, new.attempts), (2, 2));
    assert_eq!(new.operation_id, old.operation_id);
    assert_eq!(new.head_seq, old.head_seq);

    let commit = chat_commit(&old, "hello", "the old answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Fenced);
    assert_eq!(conversation(&database).await, (0, Some(new.at.key)));
    assert_eq!(store.fail(failure(&old, "transient")).await.unwrap(), CommitOutcome::Fenced);
    assert_eq!(conversation(&database).await, (0, Some(new.at.key)));
    let heard = "select heartbeat_at::text from request_records";
    let before = database.text(heard).await;
    assert_eq!(session.beat(&[beating(&old)]).await.unwrap(), [Beat::Lost]);
    assert_eq!(database.text(heard).await, before);
    let traced = store.trace_commit(old.at.clone(), old.guard).await.unwrap();
    assert_eq!(traced, CommitTrace::Fenced);
    assert_eq!(database.standing(old.at.key).await, (2, 2, "in_progress".into(), None));
    assert_eq!(database.outcomes().await, (0, 0, 0));

    let commit = chat_commit(&new, "hello", "the new answer");
    assert_eq!(store.commit_chat(commit.clone()).await.unwrap(), CommitOutcome::Committed);
    // Neither run commits a second time.
    for claim in [&old, &new] {
        let late = chat_commit(claim, "hello", "late");
        assert_eq!(store.commit_chat(late).await.unwrap(), CommitOutcome::Fenced);
        assert_eq!(store.fail(failure(claim, "transient")).await.unwrap(), CommitOutcome::Fenced);
    }
    let answer = "select content from turns where role = 'assistant'";
    assert_eq!(database.text(answer).await, "the new answer");
    assert_eq!(conversation(&database).await, (2, None));
    assert_eq!(database.outcomes().await, (1, 1, 1));
}

// A fence number as the only guard: a claim that a crash of the database forgot is made again with
// the same number.

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_claim_writes_nothing_under_the_one_that_has_its_number() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let key = Uuid::new_v4();
    let forgotten = won(&store, arrival(key, "c1")).await;
    database
        .execute("delete from request_records; delete from request_keys; delete from conversations")
        .await;
    let claim = won(&store, arrival(key, "c1")).await;
    assert_eq!((&claim.at, claim.guard.fence), (&forgotten.at, forgotten.guard.fence));

    let commit = chat_commit(&forgotten, "hello", "forgotten");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Fenced);
    let failed = store.fail(failure(&forgotten, "transient")).await.unwrap();
    assert_eq!(failed, CommitOutcome::Fenced);
    let heard = "select heartbeat_at::text from request_records";
    let before = database.text(heard).await;
    assert_eq!(session.beat(&[beating(&forgotten)]).await.unwrap(), [Beat::Lost]);
    assert_eq!(database.text(heard).await, before);
    let beats = session.beat(&[beating(&forgotten), beating(&claim)]).await.unwrap();
    assert_eq!(beats, [Beat::Lost, Beat::Landed]);
    assert_ne!(database.text(heard).await, before);
    assert_eq!(conversation(&database).await, (0, Some(key)));
    assert_eq!(database.outcomes().await, (0, 0, 0));

    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    let late = chat_commit(&forgotten, "hello", "forgotten");
    assert_eq!(store.commit_chat(late).await.unwrap(), CommitOutcome::Fenced);
    assert_eq!(database.outcomes().await, (1, 1, 1));
}

// A takeover on facts that were read before: a late beat may have landed meanwhile.

#[tokio::test(flavor = "multi_thread")]
async fn a_late_beat_saves_a_run_from_whoever_had_found_it_silent() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(claim.at.key).await;
    let found = record(&store, &claim).await;
    let swept = store.ownerless_runs(10).await.unwrap();
    assert_eq!(swept.len(), 1);
    assert_eq!(session.beat(&[beating(&claim)]).await.unwrap(), [Beat::Landed]);

    let late = reclaimed(&store, found.clone()).await;
    assert!(matches!(late, ReclaimOutcome::Changed), "{late:?}");
    let answer = oncekey::domain::record::StoredAnswer { status: 422, body: b"{}".to_vec() };
    assert!(!store.give_up(Arc::new(found), "gave_up", answer).await.unwrap());
    for record in swept {
        assert!(!store.abandon(Arc::new(record), "abandoned").await.unwrap());
    }
    assert_eq!(database.standing(claim.at.key).await, (1, 1, "in_progress".into(), None));
    let commit = chat_commit(&claim, "hello", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_would_take_over_only_one_does() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(claim.at.key).await;
    let found = record(&store, &claim).await;
    let (one, other) = tokio::join!(reclaimed(&store, found.clone()), reclaimed(&store, found));
    let wins = [&one, &other].map(|outcome| matches!(outcome, ReclaimOutcome::Won(_)));
    assert_eq!(wins.iter().filter(|won| **won).count(), 1, "{one:?} {other:?}");
    assert_eq!(database.standing(claim.at.key).await, (2, 2, "in_progress".into(), None));
}

// A sweep that frees whatever holds the conversation.

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_frees_no_lease_but_its_own() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let old = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(old.at.key).await;
    let new = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    for found in store.ownerless_runs(10).await.unwrap() {
        assert_eq!(found.at.key, old.at.key);
        assert!(store.abandon(Arc::new(found), "abandoned").await.unwrap());
    }
    assert_eq!(conversation(&database).await, (0, Some(new.at.key)));
    assert_eq!(database.standing(old.at.key).await.2, "failed");

    let silent = won(&store, arrival(Uuid::new_v4(), "c2")).await;
    database.silence(silent.at.key).await;
    for found in store.ownerless_runs(10).await.unwrap() {
        assert!(store.abandon(Arc::new(found), "abandoned").await.unwrap());
    }
    let held = "select count(*) from conversations where active_key is not null";
    assert_eq!(database.count(held).await, 1, "the one of the run that lives");
}

// The server's start as the guard after a downtime: it does not tell that all locks and beats are
// gone. What tells is that two unlogged tables are empty.

#[tokio::test(flavor = "multi_thread")]
async fn nothing_counts_as_dead_until_this_life_of_the_database_is_old_enough() {
    let database = TestDatabase::new().await;
    let store = store_at(&database, Duration::ZERO);
    store.ensure_partitions().await.unwrap();
    register(&store).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(claim.at.key).await;
    let young = "insert into server_epoch values (true, clock_timestamp() - interval '11 s')
        on conflict (one) do update set first_seen = excluded.first_seen";

    // As right after a crash recovery or a promotion, and as when the first nodes are back.
    for after in ["truncate nodes, server_epoch", young] {
        database.execute(after).await;
        let late = reclaimed(&store, record(&store, &claim).await).await;
        assert!(matches!(late, ReclaimOutcome::Changed), "{after}: {late:?}");
        assert!(store.ownerless_runs(10).await.unwrap().is_empty(), "{after}");
        let busy = store.claim(arrival(Uuid::new_v4(), "c1")).await.unwrap();
        assert!(matches!(busy, ClaimOutcome::ConversationBusy(_)), "{after}: {busy:?}");
    }
    // A node that another one found dead is dead for ever; that was written with open eyes.
    let dead = "insert into nodes (node_id, advertised, dead_at)
        select owner, '', clock_timestamp() from request_records";
    database.execute(dead).await;
    won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.execute("truncate nodes").await;

    database.age_epoch().await;
    assert_eq!(store.ownerless_runs(10).await.unwrap().len(), 1);
    assert_eq!(taken_over(&store, &claim).await.guard.fence.0, 2);
}
