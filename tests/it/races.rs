//! Many claims, commits, takeovers, steals, beats and sweeps at once. Whatever meets whatever: no two
//! living operations in one conversation, no prompt without an earlier answer, nothing half written,
//! and no deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::direct::{
    arrival, beating, chat_commit, failure, living_store, record, register, store_at, taken_over,
    won,
};
use crate::support::node::assert_clean;
use oncekey::clock::Clock;
use oncekey::domain::ids::RequestId;
use oncekey::domain::liveness::Liveness;
use oncekey::domain::record::State;
use oncekey::store::{
    Beat, Claim, ClaimOutcome, CommitOutcome, Counting, ReclaimOutcome, Store, StoreError,
};
use std::time::Duration;

/// Ends every run that nobody owns, as the sweep does.
async fn sweep(store: &Store) -> usize {
    let mut ended = 0;
    for found in store.ownerless_runs(1_000).await.unwrap() {
        ended += usize::from(store.abandon(Arc::new(found), "abandoned").await.unwrap());
    }
    ended
}

/// Numbers that look random and are the same in every run of a test.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % sides
    }
}

const CONVERSATIONS: usize = 14;

/// What the tasks of the contest share.
struct Contest {
    database: TestDatabase,
    /// Keys that were claimed in each conversation.
    keys: Vec<Mutex<Vec<Uuid>>>,
    /// Runs that were given up for dead and are not.
    zombies: Mutex<Vec<Claim>>,
    committed: AtomicUsize,
    takeovers: AtomicUsize,
    fenced: AtomicUsize,
}

impl Contest {
    /// One arrival, and what becomes of its run.
    async fn step(&self, store: &Store, dice: &mut Dice) {
        if dice.roll(20) == 0 {
            sweep(store).await;
        }
        let place = dice.roll(CONVERSATIONS);
        let known = self.keys[place].lock().await.last().copied();
        let key = known.filter(|_| dice.roll(3) == 0).unwrap_or_else(Uuid::new_v4);
        let Some(claim) = self.arrive(store, key, &format!("c{place}")).await else { return };
        self.keys[place].lock().await.push(key);
        self.assert_alone().await;

        let history = store.history(
            claim.at.tenant.clone(),
            arrival(key, &format!("c{place}")).conversation_id.unwrap(),
            claim.head_seq,
            10_000,
        );
        let turns = i64::try_from(history.await.unwrap().len()).unwrap();
        assert_eq!(turns, claim.head_seq, "the prompt holds every earlier turn");
        match dice.roll(10) {
            0..5 => self.commit(store, &claim).await,
            5 => {
                let ended = store.fail(failure(&claim, "transient")).await.unwrap();
                assert_eq!(ended, CommitOutcome::Committed);
            }
            _ => {
                self.database.silence(key).await;
                if dice.roll(3) > 0 {
                    self.zombies.lock().await.push(claim);
                }
            }
        }
        let waking = {
            let mut zombies = self.zombies.lock().await;
            let count = zombies.len();
            (count > 4).then(|| zombies.swap_remove(dice.roll(count)))
        };
        if let Some(zombie) = waking {
            self.commit(store, &zombie).await;
        }
    }

    /// Claims, claims again or takes over, as an arrival would.
    async fn arrive(&self, store: &Store, key: Uuid, conversation: &str) -> Option<Claim> {
        let found = match store.claim(arrival(key, conversation)).await.unwrap() {
            ClaimOutcome::Won(claim) => return Some(claim),
            ClaimOutcome::Exists(record) => *record,
            ClaimOutcome::ConversationBusy(_) => return None,
            ClaimOutcome::ConversationHidden => panic!("nobody has a subject here"),
        };
        let silent = store.liveness_rules().judge(&found.liveness) == Liveness::Silent;
        match found.state {
            State::InProgress if silent => {}
            State::FailedPassing => {}
            _ => return None,
        }
        let request = RequestId(Clock::system().new_id());
        match store.reclaim(Arc::new(found), request, Counting::Counts).await.unwrap() {
            ReclaimOutcome::Won(claim) => {
                self.takeovers.fetch_add(1, Ordering::Relaxed);
                Some(claim)
            }
            ReclaimOutcome::Changed | ReclaimOutcome::ConversationBusy(_) => None,
            ReclaimOutcome::ConversationHidden => panic!("nobody has a subject here"),
        }
    }

    async fn commit(&self, store: &Store, claim: &Claim) {
        match store.commit_chat(chat_commit(claim, "question", "answer")).await {
            Ok(CommitOutcome::Committed) => self.committed.fetch_add(1, Ordering::Relaxed),
            Ok(CommitOutcome::Fenced) => self.fenced.fetch_add(1, Ordering::Relaxed),
            Err(StoreError::LeaseLost) => {
                store.fail(failure(claim, "lease_lost")).await.unwrap();
                self.fenced.fetch_add(1, Ordering::Relaxed)
            }
            Err(error) => panic!("{error}"),
        };
    }

    /// In one snapshot, no conversation has two runs that beat.
    async fn assert_alone(&self) {
        let crowded = "select count(*) from (select conversation_id from request_records
            where state = 'in_progress' and heartbeat_at > clock_timestamp() - interval '1 minute'
            group by conversation_id having count(*) > 1) crowded";
        assert_eq!(self.database.count(crowded).await, 0, "two operations live in a conversation");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contended_conversations_have_one_living_operation_and_lose_no_answer() {
    let database = TestDatabase::new().await;
    let (first, one) = living_store(&database).await;
    let second = store_at(&database, Duration::ZERO);
    let (_, other) = register(&second).await;
    let contest = Arc::new(Contest {
        database,
        keys: (0..CONVERSATIONS).map(|_| Mutex::default()).collect(),
        zombies: Mutex::default(),
        committed: AtomicUsize::new(0),
        takeovers: AtomicUsize::new(0),
        fenced: AtomicUsize::new(0),
    });
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let store = [&first, &second][number % 2].clone();
        let contest = contest.clone();
        tasks.spawn(async move {
            let mut dice = Dice(number as u64);
            for _ in 0..60 {
                contest.step(&store, &mut dice).await;
            }
        });
    }
    tasks.join_all().await;

    let committed = contest.committed.load(Ordering::Relaxed);
    let outcomes = i64::try_from(committed).unwrap();
    assert_eq!(contest.database.outcomes().await, (outcomes, outcomes, outcomes));
    // All that can happen did: else this test would say nothing.
    assert!(committed > 30, "{committed} commits");
    assert!(contest.takeovers.load(Ordering::Relaxed) > 5, "takeovers");
    assert!(contest.fenced.load(Ordering::Relaxed) > 3, "runs that were fenced off");
    let missed = "select count(*) from turns
        where based_on_seq <> seq - case role when 'user' then 1 else 2 end";
    assert_eq!(contest.database.count(missed).await, 0, "a prompt missed an answer");
    sweep(&first).await;
    assert_clean(&first).await;
    drop((one, other));
    assert_eq!(contest.database.deadlocks_once_closed([first, second]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_end_or_take_a_silent_run_at_once_is_one_of_them() {
    const ROUNDS: usize = 60;
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let mut committed = 0;
    for round in 0..ROUNDS {
        let conversation = format!("c{round}");
        let claim = won(&store, arrival(Uuid::new_v4(), &conversation)).await;
        database.silence(claim.at.key).await;
        let found = record(&store, &claim).await;
        let request = RequestId(Clock::system().new_id());
        let runs = [beating(&claim)];
        let (late, stolen, again, _, beat) = tokio::join!(
            store.commit_chat(chat_commit(&claim, "first", "answer")),
            store.claim(arrival(Uuid::new_v4(), &conversation)),
            store.reclaim(Arc::new(found.clone()), request, Counting::Counts),
            async {
                // Where the sweep is never first, its end is never seen.
                if round % 3 == 0 {
                    store.abandon(Arc::new(found), "abandoned").await.unwrap()
                } else {
                    false
                }
            },
            session.beat(&runs),
        );
        let late = match late {
            Ok(outcome) => outcome == CommitOutcome::Committed,
            Err(StoreError::LeaseLost) => false,
            Err(error) => panic!("{error}"),
        };
        let stolen = match stolen.unwrap() {
            ClaimOutcome::Won(claim) => Some(claim),
            ClaimOutcome::ConversationBusy(_) => None,
            other => panic!("{other:?}"),
        };
        let again = match again.unwrap() {
            ReclaimOutcome::Won(claim) => Some(claim),
            ReclaimOutcome::Changed | ReclaimOutcome::ConversationBusy(_) => None,
            other => panic!("{other:?}"),
        };
        assert!(!(late && again.is_some()), "committed and taken over");
        beat.unwrap();
        committed += usize::from(late);
        // Of those that now believe to run, in either order, each commit stands on the one before.
        for claim in [stolen, again].into_iter().flatten() {
            match store.commit_chat(chat_commit(&claim, "next", "answer")).await {
                Ok(CommitOutcome::Committed) => committed += 1,
                Ok(CommitOutcome::Fenced) => panic!("nobody took this run over"),
                Err(StoreError::LeaseLost) => {
                    let ended = store.fail(failure(&claim, "lease_lost")).await.unwrap();
                    assert_eq!(ended, CommitOutcome::Committed);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    database
        .execute("update request_records set heartbeat_at = clock_timestamp() - interval '1 hour' where state = 'in_progress'")
        .await;
    sweep(&store).await;
    let outcomes = i64::try_from(committed).unwrap();
    assert_eq!(database.outcomes().await, (outcomes, outcomes, outcomes));
    assert_clean(&store).await;
    drop(session);
    assert_eq!(database.deadlocks_once_closed([store]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn beats_commits_and_sweeps_never_deadlock() {
    const RUNS: usize = 300;
    let database = TestDatabase::new().await;
    let (store, first) = living_store(&database).await;
    let second = store.open_node_session().await.unwrap();
    let mut runs = Vec::new();
    for number in 0..RUNS {
        runs.push(won(&store, arrival(Uuid::new_v4(), &format!("c{number}"))).await);
    }
    // Two nodes beat for all of them, one of them in the wrong order.
    let beats = |mut session: oncekey::store::NodeSession, backwards: bool| {
        let mut all: Vec<_> = runs.iter().map(beating).collect();
        all.sort_by_key(|run| run.at.key);
        if backwards {
            all.reverse();
        }
        async move {
            for _ in 0..20 {
                let answers = session.beat(&all).await.unwrap();
                assert_eq!(answers.len(), all.len());
            }
            drop(session);
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(beats(first, false));
    tasks.spawn(beats(second, true));
    for part in 0..3 {
        let (store, runs) = (store.clone(), runs.clone());
        tasks.spawn(async move {
            for claim in
                runs.iter().skip(part).step_by(3).filter(|claim| claim.at.key.as_bytes()[0] > 60)
            {
                let ended = match claim.at.key.as_bytes()[1] % 4 {
                    0 => store.fail(failure(claim, "transient")).await,
                    _ => store.commit_chat(chat_commit(claim, "question", "answer")).await,
                };
                // A sweep may have been first.
                ended.unwrap();
            }
        });
    }
    let sweeper = (store.clone(), database.pool.clone());
    tasks.spawn(async move {
        let (store, pool) = sweeper;
        for _ in 0..15 {
            sqlx::query(
                "update request_records set heartbeat_at = clock_timestamp() - interval '1 hour'
                where idempotency_key in (select idempotency_key from request_records
                    where state = 'in_progress' order by random() limit 10 for update skip locked)",
            )
            .execute(&pool)
            .await
            .unwrap();
            sweep(&store).await;
        }
    });
    tasks.join_all().await;
    assert_eq!(database.deadlocks_once_closed([store]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_in_the_middle_of_a_commit_waits_for_it() {
    let database = TestDatabase::new().await;
    let (store, mut session) = living_store(&database).await;
    let claim = won(&store, arrival(Uuid::new_v4(), "c1")).await;
    database.silence(claim.at.key).await;
    let found = record(&store, &claim).await;
    let mut slow = database.pool.begin().await.unwrap();
    sqlx::query("select from request_records for update").execute(&mut *slow).await.unwrap();
    // Nobody is declared lost because its row is being written.
    assert_eq!(session.beat(&[beating(&claim)]).await.unwrap(), [Beat::Passed]);
    let takeover = tokio::spawn({
        let store = store.clone();
        let request = RequestId(Clock::system().new_id());
        async move { store.reclaim(Arc::new(found), request, Counting::Counts).await }
    });
    database.until_waiting(1).await;
    sqlx::query(
        "update request_records set state = 'committed', response_status = 200, response = '',
            completed_at = clock_timestamp()",
    )
    .execute(&mut *slow)
    .await
    .unwrap();
    slow.commit().await.unwrap();
    let outcome = takeover.await.unwrap().unwrap();
    assert!(matches!(outcome, ReclaimOutcome::Changed), "{outcome:?}");
    assert_eq!(session.beat(&[beating(&claim)]).await.unwrap(), [Beat::Lost]);
}

#[tokio::test(flavor = "multi_thread")]
async fn takeovers_of_one_key_at_once_make_a_chain_of_fences() {
    let database = TestDatabase::new().await;
    let (store, _session) = living_store(&database).await;
    let key = Uuid::new_v4();
    let mut claim = won(&store, arrival(key, "c1")).await;
    for fence in 2..=6 {
        database.silence(key).await;
        let found = record(&store, &claim).await;
        let mut takers = JoinSet::new();
        for _ in 0..8 {
            let (store, found) = (store.clone(), Arc::new(found.clone()));
            let request = RequestId(Clock::system().new_id());
            takers.spawn(
                async move { store.reclaim(found, request, Counting::Counts).await.unwrap() },
            );
        }
        let mut winners = takers.join_all().await.into_iter().filter_map(|outcome| match outcome {
            ReclaimOutcome::Won(claim) => Some(claim),
            ReclaimOutcome::Changed => None,
            other => panic!("{other:?}"),
        });
        claim = winners.next().unwrap();
        assert!(winners.next().is_none(), "two runs of one fence");
        assert_eq!((claim.guard.fence.0, i64::from(claim.attempts)), (fence, fence));
    }
    database.silence(key).await;
    let last = taken_over(&store, &claim).await;
    let commit = chat_commit(&last, "question", "answer");
    assert_eq!(store.commit_chat(commit).await.unwrap(), CommitOutcome::Committed);
    assert_clean(&store).await;
}
