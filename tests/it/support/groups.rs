//! Groups of operations that share a statement: all that waits for the connections of a small pool, while
//! the test keeps those busy.

use std::time::Duration;

use oncekey::clock::{Clock, ManualClock};
use oncekey::domain::ids::TenantId;
use oncekey::store::{Claim, ClaimOutcome, NewClaim, Store, StoreSettings};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::TestDatabase;
use super::direct::{LIVENESS, arrival};

/// A store that groups, on one connection: all that waits for it is one group. Its time stands, so that no
/// lane loses its patience.
pub async fn narrow(database: &TestDatabase) -> Store {
    wide(database, 1).await
}

/// The same on so many connections.
pub async fn wide(database: &TestDatabase, pool_size: u32) -> Store {
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
pub struct Busy {
    session: PgConnection,
    waiting: Vec<JoinHandle<()>>,
}

/// Keeps all `connections` of a store in statements until told otherwise.
pub async fn busy(database: &TestDatabase, store: &Store, connections: usize) -> Busy {
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
    pub async fn over(mut self) {
        sqlx::raw_sql("rollback").execute(&mut self.session).await.unwrap();
        for waiting in self.waiting {
            waiting.await.unwrap();
        }
    }
}

/// Hands claims to the store in this order.
pub async fn claim_all(store: &Store, arrivals: Vec<NewClaim>) -> Vec<JoinHandle<ClaimOutcome>> {
    let mut claims = Vec::new();
    for arrival in arrivals {
        let claiming = store.clone();
        claims.push(tokio::spawn(async move { claiming.claim(arrival).await.unwrap() }));
        // On this runtime of one thread it has handed itself in by then.
        tokio::task::yield_now().await;
    }
    claims
}

/// What became of them, in their order.
pub async fn outcomes(claims: Vec<JoinHandle<ClaimOutcome>>) -> Vec<ClaimOutcome> {
    let mut outcomes = Vec::new();
    for claim in claims {
        outcomes.push(claim.await.unwrap());
    }
    outcomes
}

/// How many transactions wrote these records.
pub async fn transactions(database: &TestDatabase, claims: &[&Claim]) -> i64 {
    let keys: Vec<String> = claims.iter().map(|claim| format!("'{}'", claim.at.key)).collect();
    database
        .count(&format!(
            "select count(distinct xmin::text) from request_records where idempotency_key in ({})",
            keys.join(", ")
        ))
        .await
}

/// The claim, which must be won.
pub fn claim_of(outcome: &ClaimOutcome) -> &Claim {
    match outcome {
        ClaimOutcome::Won(claim) => claim,
        other => panic!("not won: {other:?}"),
    }
}

/// Claims of new keys, in conversations of these names: `apart-0`, `apart-1`, …
pub fn new_claims(count: usize) -> Vec<NewClaim> {
    (0..count).map(|n| arrival(Uuid::new_v4(), &format!("apart-{n}"))).collect()
}

/// The same, in conversations that nobody else has.
pub fn new_claims_apart(count: usize) -> Vec<NewClaim> {
    (0..count).map(|_| arrival(Uuid::new_v4(), &Uuid::new_v4().to_string())).collect()
}
