//! What goes wrong with a statement that several share, or with one of those that share it, and whom it
//! touches.

use std::time::Duration;

use oncekey::faults::{Faults, Plan};
use oncekey::store::{ClaimOutcome, CommitOutcome, CommitTrace, SESSION_SETTINGS};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::support::direct::{arrival, chat_commit, living_store, register, store_at, won};
use crate::support::groups::{
    busy, claim_all, claim_of, narrow, new_claims, new_claims_apart, outcomes, wide,
};
use crate::support::node::assert_clean;
use crate::support::{TestDatabase, eventually};

/// A row that somebody holds keeps its own commit and its own claim waiting, and nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_held_up_holds_up_nobody_else() {
    let database = TestDatabase::new().await;
    let (store, _beats) = living_store(&database).await;
    let mut claims = Vec::new();
    for arrival in new_claims(6) {
        claims.push(won(&store, arrival).await);
    }
    let mut holder = PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql("begin; select from conversations where conversation_id = 'apart-0' for update")
        .execute(&mut holder)
        .await
        .unwrap();
    let mut under_way = Vec::new();
    for claim in &claims {
        let (store, commit) = (store.clone(), chat_commit(claim, "hello", "good day"));
        under_way.push(tokio::spawn(async move {
            loop {
                match store.commit_chat(commit.clone()).await {
                    Ok(outcome) => return outcome,
                    // Where the machine is so slow that the server tires of the lock first.
                    Err(error) => assert!(error.is_in_doubt(), "{error}"),
                }
            }
        }));
    }
    let held = under_way.remove(0);
    for commit in under_way {
        assert_eq!(commit.await.unwrap(), CommitOutcome::Committed);
    }
    // And so do claims of other conversations, round after round.
    for _ in 0..3 {
        for claim in outcomes(claim_all(&store, new_claims_apart(8)).await).await {
            claim_of(&claim);
        }
    }
    assert!(!held.is_finished());
    sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap();
    assert_eq!(held.await.unwrap(), CommitOutcome::Committed);
    assert_eq!(database.outcomes().await, (6, 6, 6));
}

/// A key that another transaction is just inserting: the group does not wait for it, its own claim does.
#[tokio::test]
async fn a_key_on_its_way_undoes_the_group_and_not_its_members() {
    let database = TestDatabase::new().await;
    let store = wide(&database, 4).await;
    register(&store).await;
    let key = Uuid::new_v4();
    let mut rival = PgConnection::connect(&database.url).await.unwrap();
    let busy = busy(&database, &store, 4).await;
    let first = claim_all(&store, new_claims(1)).await;
    let mut group = new_claims_apart(4);
    group.push(arrival(key, "theirs"));
    let mut claims = claim_all(&store, group).await;
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; insert into request_keys (tenant_id, idempotency_key, day) values ('t1', '{key}', current_date)"
    )))
    .execute(&mut rival)
    .await
    .unwrap();
    busy.over().await;
    outcomes(first).await;
    let theirs = claims.pop().unwrap();
    for outcome in outcomes(claims).await {
        claim_of(&outcome);
    }
    database.until_waits_for_lock("claim.new").await;
    sqlx::raw_sql("rollback").execute(&mut rival).await.unwrap();
    claim_of(&theirs.await.unwrap());
}

/// Whoever is inserting that key may want one of the group's conversations: held meanwhile, it would close
/// a circle.
#[tokio::test]
async fn a_group_that_waits_for_a_key_holds_no_conversation() {
    let database = TestDatabase::new().await;
    narrow(&database).await;
    let queries: Value = serde_json::from_str(include_str!("../../sqlx-data.json")).unwrap();
    let mut texts = queries.as_object().unwrap().values().map(|it| it["query"].as_str().unwrap());
    let group = texts.find(|text| text.starts_with("/* claim.group */")).unwrap();
    let keys = ["1", "2"].map(|digit| format!("{}{digit}", "00000000-0000-8000-8000-00000000000"));
    database
        .execute("insert into conversations (tenant_id, conversation_id) values ('t1', 'a'), ('t1', 'b')")
        .await;
    let mut rival = PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; insert into request_keys (tenant_id, idempotency_key, day)
        values ('t1', '{}', current_date)",
        keys[1]
    )))
    .execute(&mut rival)
    .await
    .unwrap();
    let mut session = PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("{SESSION_SETTINGS}; prepare claims as {group}")))
        .execute(&mut session)
        .await
        .unwrap();
    // With more patience than a group has, so that it can be looked at while it waits.
    let claims = format!(
        "/* claim.group */ execute claims ('{{0,1}}', '{{t1,t1}}', '{{{}}}', '{{a,b}}',
            '{{NULL,NULL}}', '{{{}}}', '{{client,client}}', '{{NULL,NULL}}', '{{chat,chat}}',
            array[sha256('a'), sha256('b')], '{{{}}}', '0', '60s', 1, 2)",
        keys.join(","),
        keys.join(","),
        keys.join(",")
    );
    let waiting = tokio::spawn(async move {
        sqlx::raw_sql(AssertSqlSafe(claims)).fetch_all(&mut session).await.unwrap().len()
    });
    database.until_waits_for_lock("claim.group").await;
    database.execute("select from conversations for update nowait").await;
    sqlx::raw_sql("rollback").execute(&mut rival).await.unwrap();
    assert_eq!(waiting.await.unwrap(), 2, "both are won");
}

/// Two nodes that claim and commit in the same few conversations, as fast as they can.
#[tokio::test(flavor = "multi_thread")]
async fn groups_of_two_nodes_never_wait_in_a_circle() {
    let database = TestDatabase::new().await;
    let (here, beats) = living_store(&database).await;
    let there = store_at(&database, Duration::ZERO);
    let others = register(&there).await;
    let mut workers = Vec::new();
    for worker in 0..24 {
        let store = if worker % 2 == 0 { here.clone() } else { there.clone() };
        workers.push(tokio::spawn(async move {
            let mut committed = 0;
            for round in 0..25 {
                let talk = format!("shared-{}", (worker * 7 + round * 5) % 12);
                let ClaimOutcome::Won(claim) =
                    store.claim(arrival(Uuid::new_v4(), &talk)).await.unwrap()
                else {
                    continue;
                };
                let commit = chat_commit(&claim, "hello", "good day");
                assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
                committed += 1;
            }
            committed
        }));
    }
    let mut committed = 0;
    for worker in workers {
        committed += worker.await.unwrap();
    }
    assert!(committed >= 24, "{committed}");
    assert_eq!(database.outcomes().await, (committed, committed, committed));
    assert_clean(&here).await;
    drop((beats, others));
    assert_eq!(database.deadlocks_once_closed([here, there]).await, 0);
}

/// What a caller asked for is done though it went away, and so is what came with it.
#[tokio::test]
async fn a_caller_that_gives_up_takes_nobody_with_it() {
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let busy = busy(&database, &store, 1).await;
    let first = claim_all(&store, new_claims(1)).await;
    let group = new_claims_apart(5);
    let given_up = group[1].key.id;
    let mut claims = claim_all(&store, group).await;
    claims.remove(1).abort();
    busy.over().await;
    outcomes(first).await;
    for outcome in outcomes(claims).await {
        claim_of(&outcome);
    }
    let sql = format!("select count(*) from request_records where idempotency_key = '{given_up}'");
    eventually("its claim is there", || async { database.count(&sql).await == 1 }).await;
}

/// A group whose connection breaks behind its commit: each member learns that nothing is known of it, and
/// finds out.
#[tokio::test]
async fn a_group_that_lost_its_answer_leaves_each_member_to_look() {
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let mut claims = Vec::new();
    for arrival in new_claims(7) {
        claims.push(won(&store, arrival).await);
    }
    let variables = [
        ("ONCEKEY_FAULTS".to_owned(), "on".to_owned()),
        ("ONCEKEY_FAULT_DATABASE_CUT_AFTER_COMMIT".to_owned(), "3".to_owned()),
    ];
    let store = store.with_faults(Faults::asked(Plan::read(variables).unwrap()));
    let busy = busy(&database, &store, 1).await;
    let mut under_way = Vec::new();
    for claim in &claims {
        let (store, commit) = (store.clone(), chat_commit(claim, "hello", "good day"));
        under_way.push(tokio::spawn(async move { store.commit_chat(commit).await }));
        tokio::task::yield_now().await;
    }
    busy.over().await;
    for (commit, claim) in under_way.into_iter().zip(&claims) {
        let end = commit.await.unwrap();
        assert!(matches!(&end, Err(error) if error.is_in_doubt()), "{end:?}");
        let trace = store.trace_commit(claim.at.clone(), claim.guard).await.unwrap();
        assert_eq!(trace, CommitTrace::Committed);
    }
    assert_eq!(database.outcomes().await, (7, 7, 7));
    assert_clean(&store).await;
}

/// A refusal that may pass (here a disk that is full for one of them) is known to have undone the whole, so
/// that nobody need share it.
#[tokio::test]
async fn what_the_server_lacks_for_one_is_not_refused_to_the_others() {
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    database
        .execute(
            "create function full_disk() returns trigger language plpgsql
                as 'begin raise exception ''full'' using errcode = ''53100''; end';
            create trigger full_disk before insert on request_records for each row
                when (new.conversation_id = 'unlucky') execute function full_disk()",
        )
        .await;
    let busy = busy(&database, &store, 1).await;
    let first = claim_all(&store, new_claims(1)).await;
    let claiming = store.clone();
    let unlucky =
        tokio::spawn(async move { claiming.claim(arrival(Uuid::new_v4(), "unlucky")).await });
    tokio::task::yield_now().await;
    let others = claim_all(&store, new_claims_apart(5)).await;
    busy.over().await;
    outcomes(first).await;
    for outcome in outcomes(others).await {
        claim_of(&outcome);
    }
    assert!(unlucky.await.unwrap().is_err_and(|error| error.is_in_doubt()));
    assert_eq!(database.count("select count(*) from request_records").await, 6);
}
