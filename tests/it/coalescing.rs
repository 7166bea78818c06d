//! Claims, commits and look-ups that travel in one statement come to what each would have come to alone,
//! whatever becomes of those beside it.
//!
//! A group is made by keeping the connections of a small pool busy: what arrives meanwhile waits, and goes
//! together. That it did is seen by the transaction that wrote the rows.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use oncekey::domain::api_key::ApiKey;
use oncekey::domain::ids::{ApiKeyId, ConversationId, TenantId};
use oncekey::domain::record::State;
use oncekey::store::{Claim, ClaimOutcome, CommitOutcome, NewApiKey, StoreError};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{
    arrival, chat_commit, living_store, of_subject, record, register, taken_over, won,
};
use crate::support::groups::{
    busy, claim_all, claim_of, narrow, new_claims, outcomes, transactions,
};
use crate::support::node::assert_clean;

#[tokio::test]
async fn what_waits_for_a_statement_goes_together_in_the_next() {
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let busy = busy(&database, &store, 1).await;
    let claims = claim_all(&store, new_claims(10)).await;
    busy.over().await;
    let outcomes = outcomes(claims).await;
    let claims: Vec<&Claim> = outcomes.iter().map(claim_of).collect();
    // The first was sent at once, by itself.
    assert_eq!(transactions(&database, &claims).await, 2);
    assert_eq!(transactions(&database, &claims[1..]).await, 1);

    let busy_again = self::busy(&database, &store, 1).await;
    let mut commits = Vec::new();
    for claim in &claims {
        let (store, commit) = (store.clone(), chat_commit(claim, "hello", "good day"));
        commits.push(tokio::spawn(async move { store.commit_chat(commit).await.unwrap() }));
        tokio::task::yield_now().await;
    }
    busy_again.over().await;
    for commit in commits {
        assert_eq!(commit.await.unwrap(), CommitOutcome::Committed);
    }
    assert_eq!(transactions(&database, &claims).await, 2);
    assert_eq!(database.outcomes().await, (10, 10, 10));
    assert_clean(&store).await;
}

/// Each outcome that a claim can have, all in one group, twice: in this order and in the other.
#[tokio::test]
async fn claims_of_any_fate_share_a_statement() {
    for backwards in [false, true] {
        let database = TestDatabase::new().await;
        let (beside, _beats) = living_store(&database).await;
        let store = narrow(&database).await;
        let (_, _session) = register(&store).await;
        // What stands before: a run, an answer, a conversation of somebody else's, a run to take over.
        let running = won(&beside, arrival(Uuid::new_v4(), "running")).await;
        let ended = won(&beside, arrival(Uuid::new_v4(), "ended")).await;
        let commit = chat_commit(&ended, "hello", "good day");
        assert_eq!(beside.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
        won(&beside, of_subject(arrival(Uuid::new_v4(), "theirs"), "mara")).await;
        let key = Uuid::new_v4();

        let mut group = vec![
            arrival(Uuid::new_v4(), "new"),
            arrival(running.at.key, "running"),
            arrival(Uuid::new_v4(), "running"),
            arrival(ended.at.key, "ended"),
            arrival(Uuid::new_v4(), "ended"),
            arrival(Uuid::new_v4(), "theirs"),
            arrival(key, "twice"),
            arrival(key, "twice"),
            arrival(Uuid::new_v4(), "twice"),
            of_subject(arrival(Uuid::new_v4(), "mine"), "otto"),
        ];
        if backwards {
            group.reverse();
        }
        let busy = busy(&database, &store, 1).await;
        // The lane is taken by these.
        let first = claim_all(&store, new_claims(1)).await;
        let claims = claim_all(&store, group).await;
        busy.over().await;
        assert!(outcomes(first).await.iter().all(|it| matches!(it, ClaimOutcome::Won(_))));
        let mut found = outcomes(claims).await;
        if backwards {
            found.reverse();
        }
        let name = |outcome: &ClaimOutcome| match outcome {
            ClaimOutcome::Won(claim) => format!("won on {}", claim.head_seq),
            ClaimOutcome::Exists(record) => format!("exists {}", record.at.key),
            ClaimOutcome::ConversationBusy(holder) => format!("busy {}", holder.key),
            ClaimOutcome::ConversationHidden => "hidden".to_owned(),
        };
        let names: Vec<String> = found.iter().map(name).collect();
        let of = |key: Uuid| (format!("exists {key}"), format!("busy {key}"));
        assert_eq!(names[0], "won on 0");
        assert_eq!((names[1].clone(), names[2].clone()), of(running.at.key));
        assert_eq!(names[3], of(ended.at.key).0);
        assert_eq!(names[4], "won on 2");
        assert_eq!(names[5], "hidden");
        // Whoever came first has the conversation that three want; the others are told of it.
        let mut twice = [names[6].clone(), names[7].clone(), names[8].clone()];
        twice.sort();
        assert_eq!(twice.iter().filter(|name| *name == "won on 0").count(), 1, "{twice:?}");
        assert_eq!(twice.iter().filter(|name| !name.starts_with("won")).count(), 2, "{twice:?}");
        assert_eq!(names[9], "won on 0");
        // Those that met nobody were had together.
        let together = [claim_of(&found[0]), claim_of(&found[9])];
        assert_eq!(transactions(&database, &together).await, 1);
    }
}

/// Commits whose run was taken over, whose conversation was taken from them, and whose data the database
/// refuses, beside good ones.
#[tokio::test]
async fn commits_of_any_fate_share_a_statement() {
    let database = TestDatabase::new().await;
    let (beside, _beats) = living_store(&database).await;
    let store = narrow(&database).await;
    register(&store).await;
    let mut claims = Vec::new();
    for arrival in new_claims(8) {
        claims.push(won(&store, arrival).await);
    }
    database
        .execute("update request_records set heartbeat_at = now() - interval '1 day', owner = 0")
        .await;
    let newer = taken_over(&beside, &claims[3]).await;
    database
        .execute("update conversations set active_key = gen_random_uuid() where conversation_id = 'apart-4'")
        .await;
    let mut commits: Vec<_> =
        claims.iter().map(|claim| chat_commit(claim, "hello", "good day")).collect();
    // No text of PostgreSQL's: nothing lets it through to here, and if it did, it would be its own ruin.
    Arc::get_mut(&mut commits[5]).unwrap().answer = "a\0b".to_owned();

    let busy = busy(&database, &store, 1).await;
    let mut under_way = Vec::new();
    for commit in commits {
        let store = store.clone();
        under_way.push(tokio::spawn(async move { store.commit_chat(commit).await }));
        tokio::task::yield_now().await;
    }
    busy.over().await;
    let mut ends = Vec::new();
    for commit in under_way {
        ends.push(commit.await.unwrap());
    }
    for good in [0, 1, 2, 6, 7] {
        assert!(matches!(ends[good], Ok(CommitOutcome::Committed)), "{good}: {:?}", ends[good]);
    }
    assert!(matches!(ends[3], Ok(CommitOutcome::Fenced)), "{:?}", ends[3]);
    assert!(matches!(ends[4], Err(StoreError::LeaseLost)), "{:?}", ends[4]);
    assert!(matches!(ends[5], Err(StoreError::Bug(_))), "{:?}", ends[5]);
    assert_eq!(database.outcomes().await, (5, 5, 5));
    assert_eq!(record(&store, &newer).await.guard, newer.guard, "the newer run was left alone");

    // Without the bad one the good ones are one transaction, beside those that cannot be.
    let again: Vec<_> = [&claims[5], &claims[3], &claims[4]]
        .into_iter()
        .map(|claim| chat_commit(claim, "hello", "good day"))
        .collect();
    for (commit, good) in again.into_iter().zip([true, false, false]) {
        assert_eq!(matches!(store.commit_chat(commit).await, Ok(CommitOutcome::Committed)), good);
    }
}

/// A hot key: what is asked a hundred times at once is read a few times.
#[tokio::test]
async fn a_hundred_that_ask_the_same_are_a_few_looks() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let bearer = ApiKey::from_secret([7; 32]);
    let new = NewApiKey {
        tenant: TenantId::new("t1"),
        id: ApiKeyId(Uuid::new_v4()),
        hash: bearer.hash(),
        role: "client".to_owned(),
        subject: None,
    };
    store.insert_api_key(new).await.unwrap();
    let claim = won(&store, arrival(Uuid::new_v4(), "hot")).await;
    store.commit_chat(chat_commit(&claim, "hello", "good day")).await.unwrap();

    // Of this thread, on which everything here runs.
    let _counted = metrics::set_default_local_recorder(&recorder);
    let busy = busy(&database, &store, 1).await;
    let mut looks = Vec::new();
    for _ in 0..100 {
        let (store, hash, key) = (store.clone(), bearer.hash(), claim.at.key);
        looks.push(tokio::spawn(async move { store.api_key_and_record(hash, key).await.unwrap() }));
        tokio::task::yield_now().await;
    }
    busy.over().await;
    for look in looks {
        let (known, record) = look.await.unwrap().unwrap();
        assert_eq!(known.tenant, claim.at.tenant);
        let state = record.unwrap().state;
        assert!(matches!(&state, State::Committed(Some(answer)) if answer.body == b"good day"));
    }
    let text = recorder.handle().render();
    let statements = "oncekey_statements_total{kind=\"arrival\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(statements)).unwrap();
    // The first by itself, the others in groups of 32.
    assert_eq!(line, "5", "{text}");
}

/// A herd at one new key: one claim is sent, and what it left is read once for all others, each of whom is
/// told what it would have been told alone.
#[tokio::test]
async fn a_hundred_that_claim_one_key_are_one_claim_and_one_look() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let key = Uuid::new_v4();
    let mut herd: Vec<_> = (0..100).map(|_| arrival(key, "hot")).collect();
    // Neither what it asks nor whose it is makes it another key.
    herd[7].conversation_id = Some(ConversationId::new("elsewhere"));
    herd[8] = of_subject(herd[8].clone(), "mara");

    let _counted = metrics::set_default_local_recorder(&recorder);
    let busy = busy(&database, &store, 1).await;
    let first = claim_all(&store, new_claims(1)).await;
    let claims = claim_all(&store, herd.clone()).await;
    busy.over().await;
    claim_of(&outcomes(first).await[0]);
    let outcomes = outcomes(claims).await;
    let winner = claim_of(&outcomes[0]).clone();
    assert_eq!(winner.guard.request_id, herd[0].request_id);
    for outcome in &outcomes[1..] {
        let ClaimOutcome::Exists(record) = outcome else { panic!("{outcome:?}") };
        assert_eq!((&record.at, record.guard), (&winner.at, winner.guard));
        assert_eq!(record.state, State::InProgress);
    }
    let text = recorder.handle().render();
    let counted = |name: &str| {
        let start = format!("{name}{{kind=\"claim\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    assert_eq!(counted("oncekey_statements_total").as_deref(), Some("2"));
    assert_eq!(counted("oncekey_statement_members_total").as_deref(), Some("2"));
    assert_eq!(counted("oncekey_statement_followers_total").as_deref(), Some("99"));
    // The next of them is nobody's follower.
    let late = store.claim(arrival(key, "hot")).await.unwrap();
    assert!(matches!(late, ClaimOutcome::Exists(_)), "{late:?}");
    assert_eq!(database.count("select count(*) from request_records").await, 2);
}

/// What the first of a herd is refused says nothing of the others: each hears why it has to wait.
#[tokio::test]
async fn those_behind_a_claim_that_was_not_won_look_for_themselves() {
    let database = TestDatabase::new().await;
    let (beside, _beats) = living_store(&database).await;
    let store = narrow(&database).await;
    let (_, _session) = register(&store).await;
    let running = won(&beside, arrival(Uuid::new_v4(), "running")).await;
    let key = Uuid::new_v4();
    let mut herd: Vec<_> = (0..4).map(|_| arrival(key, "running")).collect();
    herd.push(arrival(key, "free"));

    let busy = busy(&database, &store, 1).await;
    let first = claim_all(&store, new_claims(1)).await;
    let claims = claim_all(&store, herd).await;
    busy.over().await;
    outcomes(first).await;
    let outcomes = outcomes(claims).await;
    for outcome in &outcomes[..4] {
        let ClaimOutcome::ConversationBusy(holder) = outcome else { panic!("{outcome:?}") };
        assert_eq!(holder.key, running.at.key);
    }
    claim_of(&outcomes[4]);
}

/// What a client says about its request counts as well: a group of it would be as large as 32 bodies.
#[tokio::test]
async fn what_is_large_travels_alone_whatever_makes_it_large() {
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let mut claims = Vec::new();
    for arrival in new_claims(3) {
        claims.push(won(&store, arrival).await);
    }
    let busy = busy(&database, &store, 1).await;
    let mut commits = Vec::new();
    for claim in &claims {
        let (store, mut commit) = (store.clone(), chat_commit(claim, "hello", "good day"));
        let metadata = format!(r#"{{"trace": "{}"}}"#, "x".repeat(600 << 10));
        Arc::get_mut(&mut commit).unwrap().metadata = Some(metadata);
        commits.push(tokio::spawn(async move { store.commit_chat(commit).await.unwrap() }));
        tokio::task::yield_now().await;
    }
    busy.over().await;
    for commit in commits {
        assert_eq!(commit.await.unwrap(), CommitOutcome::Committed);
    }
    let claims: Vec<&Claim> = claims.iter().collect();
    assert_eq!(transactions(&database, &claims).await, 3);
}

/// A row that is not written although it was locked, here by a trigger of somebody's: alone, such a commit
/// counts as fenced off, and so it does in a group, beside good ones.
#[tokio::test]
async fn no_effect_stands_without_its_record() {
    let database = TestDatabase::new().await;
    let store = narrow(&database).await;
    register(&store).await;
    let mut claims = Vec::new();
    for arrival in new_claims(5) {
        claims.push(won(&store, arrival).await);
    }
    database
        .execute(
            "create function unwritten() returns trigger language plpgsql as 'begin return null; end';
            create trigger unwritten before update on request_records for each row
                when (new.conversation_id = 'apart-2') execute function unwritten()",
        )
        .await;
    let busy = busy(&database, &store, 1).await;
    let mut commits = Vec::new();
    for claim in &claims {
        let (store, commit) = (store.clone(), chat_commit(claim, "hello", "good day"));
        commits.push(tokio::spawn(async move { store.commit_chat(commit).await.unwrap() }));
        tokio::task::yield_now().await;
    }
    busy.over().await;
    for (place, commit) in commits.into_iter().enumerate() {
        let expected = if place == 2 { CommitOutcome::Fenced } else { CommitOutcome::Committed };
        assert_eq!(commit.await.unwrap(), expected, "{place}");
    }
    assert_eq!(database.outcomes().await, (4, 4, 4));
}
