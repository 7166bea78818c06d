//! Claims, commits and look-ups that travel in one statement come to what each would have come to alone,
//! whatever becomes of those beside it.
//!
//! A group is made by keeping the connections of a small pool busy: what arrives meanwhile waits, and goes
//! together. That it did is seen by the transaction that wrote the rows.

use std::sync::Arc;
use std::time::Duration;

use oncekey::clock::{Clock, ManualClock};
use oncekey::domain::ids::TenantId;
use oncekey::faults::{Faults, Plan};
use oncekey::store::{
    Claim, ClaimOutcome, CommitOutcome, CommitTrace, NewClaim, Store, StoreError, StoreSettings,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::direct::{
    LIVENESS, arrival, chat_commit, living_store, of_subject, record, register, store_at,
    taken_over, won,
};
use crate::support::node::assert_clean;
use crate::support::{TestDatabase, eventually};

/// A store that groups, on one connection: all that waits for it is one group. Its time stands, so that no
/// lane loses its patience.
async fn narrow(database: &TestDatabase) -> Store {
    wide(database, 1).await
}

/// The same on so many connections.
async fn wide(database: &TestDatabase, pool_size: u32) -> Store {
    let settings = StoreSettings {
        url: database.url.clone(),
        direct_url: None,
        pool_size,
        coalesce: true,
        liveness: LIVENESS,
        clock_offset: Duration::ZERO,
    };
    let clock = ManualClock::new(Clock::system().utc_now()).clock();
    let store = Store::new(settings, clock).unwrap();
    store.ensure_partitions().await.unwrap();
    store
}

/// What a store's connections wait for.
struct Busy {
    session: PgConnection,
    waiting: Vec<JoinHandle<()>>,
}

/// Keeps all `connections` of a store in statements until told otherwise.
async fn busy(database: &TestDatabase, store: &Store, connections: usize) -> Busy {
    let mut session = PgConnection::connect(&database.url).await.unwrap();
    let lock = "begin; lock table nodes in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut session).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..connections {
        // Reading a record looks at its owner.
        let store = store.clone();
        waiting.push(tokio::spawn(async move {
            store.record(TenantId::new("t1"), Uuid::new_v4()).await.unwrap();
        }));
    }
    database.until_waiting(i64::try_from(connections).unwrap()).await;
    Busy { session, waiting }
}

impl Busy {
    async fn over(mut self) {
        sqlx::raw_sql("rollback").execute(&mut self.session).await.unwrap();
        for waiting in self.waiting {
            waiting.await.unwrap();
        }
    }
}

/// Hands claims to the store in this order.
async fn claim_all(store: &Store, arrivals: Vec<NewClaim>) -> Vec<JoinHandle<ClaimOutcome>> {
    let mut claims = Vec::new();
    for arrival in arrivals {
        let claiming = store.clone();
        claims.push(tokio::spawn(async move { claiming.claim(arrival).await.unwrap() }));
        // On this runtime of one thread it has handed itself in by then.
        tokio::task::yield_now().await;
    }
    claims
}

async fn outcomes(claims: Vec<JoinHandle<ClaimOutcome>>) -> Vec<ClaimOutcome> {
    let mut outcomes = Vec::new();
    for claim in claims {
        outcomes.push(claim.await.unwrap());
    }
    outcomes
}

/// How many transactions wrote these records.
async fn transactions(database: &TestDatabase, claims: &[&Claim]) -> i64 {
    let keys: Vec<String> = claims.iter().map(|claim| format!("'{}'", claim.at.key)).collect();
    database
        .count(&format!(
            "select count(distinct xmin::text) from request_records where idempotency_key in ({})",
            keys.join(", ")
        ))
        .await
}

fn claim_of(outcome: &ClaimOutcome) -> &Claim {
    match outcome {
        ClaimOutcome::Won(claim) => claim,
        other => panic!("not won: {other:?}"),
    }
}

fn new_claims(count: usize) -> Vec<NewClaim> {
    (0..count).map(|n| arrival(Uuid::new_v4(), &format!("apart-{n}"))).collect()
}

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
    // Two were sent at once, each by itself.
    assert_eq!(transactions(&database, &claims).await, 3);
    assert_eq!(transactions(&database, &claims[2..]).await, 1);

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
    assert_eq!(transactions(&database, &claims).await, 3);
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
        // Both lanes are taken by these.
        let first = claim_all(&store, new_claims(2)).await;
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
        under_way.push(tokio::spawn(async move { store.commit_chat(commit).await.unwrap() }));
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

fn new_claims_apart(count: usize) -> Vec<NewClaim> {
    (0..count).map(|_| arrival(Uuid::new_v4(), &Uuid::new_v4().to_string())).collect()
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
    let first = claim_all(&store, new_claims(2)).await;
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
    let first = claim_all(&store, new_claims(2)).await;
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
