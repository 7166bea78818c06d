//! A sink that is down is not the event's fault: nothing is counted, and all is delivered when it is
//! back. What would lead a delivery elsewhere is not followed.

use crate::support::hook::{Hook, Take};
use crate::support::node::NodeOptions;
use crate::support::outbox::{SECRET, assert_in_order, put, relay, relay_to, sink, variables};
use crate::support::process::ProcessNode;
use crate::support::{TestDatabase, eventually};

async fn uncounted(database: &TestDatabase) {
    let counted = "select count(*) from outbox where attempts > 0 or dead_at is not null";
    assert_eq!(database.count(counted).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_connection_costs_no_attempt() {
    let (database, mut hook) = (TestDatabase::new().await, Hook::start().await);
    let mut all = variables(&[sink(&hook)]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    hook.close().await;
    let node = ProcessNode::start(all).await;
    for number in 0..9 {
        put(&database, &format!("c{}", number % 3), number).await;
    }
    node.until_event("sink_down", |_| true).await;
    node.until_event("sink_still_down", |line| line["failures"].as_u64() >= Some(4)).await;
    uncounted(&database).await;
    let up = node.metrics("oncekey_outbox_sink_up{").await;
    assert!(up.iter().any(|(_, up)| *up == 0.0), "{up:?}");
    hook.listen().await;
    database.until_published(9).await;
    node.until_event("sink_up", |_| true).await;
    uncounted(&database).await;
    assert_eq!(hook.taken().len(), 9);
    assert_in_order(&hook.taken());
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_does_one_that_answers_everything_with_an_error() {
    let each = [500, 503, 401, 403, 404, 408, 301].map(|status| async move {
        let database = TestDatabase::new().await;
        let hook = Hook::deciding(move |_| Take::Status(status)).await;
        for number in 0..4 {
            put(&database, &format!("c{number}"), number).await;
        }
        let node = relay_to(&database, &hook).await;
        hook.until("several tries", |all| all.len() >= 7).await;
        uncounted(&database).await;
        hook.decide(|_| Take::Status(200));
        database.until_published(4).await;
        uncounted(&database).await;
        node.shut_down().await;
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_errors_and_then_well_is_one_event_once() {
    let database = TestDatabase::new().await;
    let mut tries = 0;
    let hook = Hook::deciding(move |_| {
        tries += 1;
        Take::Status(if tries <= 3 { 500 } else { 200 })
    })
    .await;
    let node = relay_to(&database, &hook).await;
    let id = put(&database, "c1", 1).await;
    database.until_published(1).await;
    let all = hook.deliveries();
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|one| one.id() == id.to_string() && one.body == all[0].body));
    uncounted(&database).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_asks_for_time_gets_it() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|_| {
        Take::With(429, vec![("retry-after", "3600".into())], "slow down".into())
    })
    .await;
    let mut all = variables(&[sink(&hook)]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    let node = ProcessNode::start(all).await;
    put(&database, "c1", 1).await;
    let line = node.until_event("delivery_failed", |_| true).await;
    assert_eq!(line["for_ms"], 3_600_000);
    assert_eq!(line["why"], "429: slow down");
    put(&database, "c2", 2).await;
    // The lag is told every round, so that these are rounds in which nothing was sent.
    eventually("the lag grows", || async {
        node.metric("oncekey_outbox_lag_seconds ").await.is_some_and(|lag| lag > 1.5)
    })
    .await;
    assert_eq!(hook.deliveries().len(), 1);
    uncounted(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_gone_for_good_is_left_alone_and_told_of() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|_| Take::Status(410)).await;
    let mut all = variables(&[sink(&hook)]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    let node = ProcessNode::start(all).await;
    put(&database, "c1", 1).await;
    let line = node.until_event("delivery_failed", |_| true).await;
    assert_eq!(line["for_ms"], 3_600_000);
    assert!(line["why"].as_str().unwrap().contains("take it out of the configuration"), "{line}");
    uncounted(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let (database, other) = (TestDatabase::new().await, Hook::start().await);
    let to = other.url();
    let hook =
        Hook::deciding(move |_| Take::With(307, vec![("location", to.clone())], String::new()))
            .await;
    let node = relay_to(&database, &hook).await;
    put(&database, "c1", 1).await;
    hook.until("three tries", |all| all.len() >= 3).await;
    assert!(other.deliveries().is_empty());
    uncounted(&database).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_address_is_called_only_where_that_is_allowed() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let port = hook.url().rsplit(':').next().unwrap().to_owned();
    let hosts = ["127.0.0.1", "localhost", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"];
    let named = hosts.iter().enumerate().map(|(number, host)| {
        let url = format!("http://{host}:{port}");
        format!(
            "{{ name = 's{number}', kind = 'webhook', url = '{url}', secret_env = 'TEST_HOOK_SECRET' }}"
        )
    });
    let mut all = variables(&named.collect::<Vec<_>>());
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    let node = ProcessNode::start(all).await;
    put(&database, "c1", 1).await;
    for (number, host) in hosts.iter().enumerate() {
        let name = format!("s{number}");
        let line = node.until_event("delivery_failed", |line| line["sink"] == name).await;
        let why = line["why"].as_str().unwrap();
        assert!(why.contains("is a private address, and allow_private is off"), "{host}: {why}");
    }
    assert!(hook.deliveries().is_empty());
    uncounted(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_not_read_to_its_end() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|_| Take::With(200, Vec::new(), "x".repeat(20 << 20))).await;
    let node = relay_to(&database, &hook).await;
    put(&database, "c1", 1).await;
    database.until_published(1).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_cannot_be_used_is_told_at_the_start() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let wrong = oncekey::app::App::start(crate::support::node::setup(
        &database,
        variables(&[sink(&hook)]),
        NodeOptions::default().set("TEST_HOOK_SECRET", &format!("{SECRET} whsec_AAAA")),
    ))
    .await;
    let error = wrong.err().unwrap().to_string();
    assert!(error.contains("the variable TEST_HOOK_SECRET: secret 2 has 3 bytes"), "{error}");
    let missing = oncekey::app::App::start(crate::support::node::setup(
        &database,
        variables(&[sink(&hook)]),
        NodeOptions::default().set("TEST_HOOK_SECRET", ""),
    ))
    .await;
    assert!(missing.err().unwrap().to_string().contains("TEST_HOOK_SECRET is not set"));
    let node = relay(&database, &[], NodeOptions::default()).await;
    node.shut_down().await;
}
