//! Behind PgBouncer in transaction mode, with `database_url_direct` past it: all that a pair of nodes does.
//! Only where a program of version 1.21 or newer is named, since Debian 12 has none:
//! `ONCEKEY_TEST_PGBOUNCER=/path/to/pgbouncer cargo test --test it pgbouncer -- --ignored`.

use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::parse::echo;
use crate::support::pgbouncer::PgBouncer;
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, patiently};
use crate::support::{Pair, TestDatabase};

async fn pair() -> (PgBouncer, Pair) {
    let database = TestDatabase::new().await;
    let bouncer = PgBouncer::before(&database).await;
    let direct = database.url.clone();
    let both = [("DATABASE_URL", bouncer.url.as_str()), ("ONCEKEY_DATABASE_URL_DIRECT", &direct)];
    let pair = Pair::on(database, &both, &[]).await;
    (bouncer, pair)
}

fn assert_quiet(node: &ProcessNode) {
    let errors: Vec<_> = node.log().into_iter().filter(|line| line["level"] == "ERROR").collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PgBouncer 1.21 or newer, named in ONCEKEY_TEST_PGBOUNCER"]
async fn chats_parses_replays_and_many_at_once() {
    let (_bouncer, pair) = pair().await;
    let answer = pair.at_a.chat(pair.key, "c1", "hello").await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    let replay = pair.at_b.chat(pair.key, "c1", "hello").await;
    assert!(replay.replayed());
    assert_eq!(replay.bytes, answer.bytes);
    let other = pair.at_b.chat(pair.key, "c1", "something else").await;
    assert_eq!((other.status, other.error().as_str()), (422, "idempotency_key_reuse"));

    // More than there are connections behind the pooler, so that statements of one session hop.
    let mut arrivals = JoinSet::new();
    for number in 0..60 {
        let client = [&pair.at_a, &pair.at_b][number % 2].clone();
        arrivals.spawn(async move {
            client.chat(Uuid::new_v4(), &format!("many{}", number / 2), "hello").await.status
        });
    }
    for status in patiently("60 answers", arrivals.join_all()).await {
        assert!([200, 409].contains(&status), "{status}");
    }
    pair.provider.reply_by(echo);
    let parse = pair.at_a.parse(Uuid::new_v4(), "MARA: Is it boiling?\n").await;
    assert_eq!(parse.status, 200, "{}", String::from_utf8_lossy(&parse.bytes));
    assert_eq!(pair.at_a.get("/readyz").await.status, 200);
    assert_quiet(&pair.a);
    assert_quiet(&pair.b);
    crate::support::node::assert_clean(&pair.store).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PgBouncer 1.21 or newer, named in ONCEKEY_TEST_PGBOUNCER"]
async fn a_killed_node_is_taken_over_by_its_lock() {
    let (_bouncer, mut pair) = pair().await;
    let node = pair.database.node_at(pair.a.address).await;
    let session = pair.database.lock_session(node).await;
    let straight = format!(
        "select count(*) from pg_stat_activity where pid = {session} and application_name = 'oncekey'"
    );
    assert_eq!(pair.database.count(&straight).await, 1, "the lock is held past the pooler");
    let gate = Gate::closed();
    pair.provider.reply(Reply::normal().before_head(Action::Hold(gate.clone())));
    let asked = pair.ask_a();
    gate.until_reached(1).await;
    let alive = pair.ask_b().await;
    assert_eq!((alive.status, alive.error().as_str()), (409, "in_progress"));
    pair.a.kill().await;
    assert!(asked.await.unwrap().is_err());
    let answer = pair.answer_of_b().await;
    assert_eq!(pair.b.events("taken_over")[0]["why"], "OwnerGone");
    assert_eq!(pair.fence_and_attempts().await, (2, 2));
    pair.assert_one_outcome(&answer).await;
    assert_quiet(&pair.b);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PgBouncer 1.21 or newer, named in ONCEKEY_TEST_PGBOUNCER"]
async fn a_pooler_that_is_killed_costs_503_and_no_operation() {
    let (bouncer, pair) = pair().await;
    let answer = pair.at_a.chat(pair.key, "c1", "hello").await;
    assert_eq!(answer.status, 200);
    drop(bouncer);
    let away = pair.at_a.chat(Uuid::new_v4(), "c1", "and now?").await;
    assert_eq!((away.status, away.error().as_str()), (503, "database_unavailable"));
    assert_eq!(pair.database.outcomes().await, (1, 1, 1));
}
