//! An event reaches its sinks in a CloudEvents envelope, signed, and is marked only when they have it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::support::hook::{Delivered, Hook, Take};
use crate::support::node::{NodeOptions, assert_clean, provider_variables};
use crate::support::outbox::{SECRET, put, relay, relay_to, sink, variables};
use crate::support::process::ProcessNode;
use crate::support::provider::{Gate, ScriptedProvider, Wire};
use crate::support::{TestDatabase, eventually};

/// HMAC as RFC 2104 writes it down, not as a library does.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    block[..key.len()].copy_from_slice(key);
    let padded = |pad: u8| block.map(|byte| byte ^ pad);
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

/// Whether a receiver with this secret accepts the delivery.
fn verifies(secret: &str, one: &Delivered) -> bool {
    let key = match secret.strip_prefix("whsec_") {
        Some(encoded) => STANDARD.decode(encoded).unwrap(),
        None => secret.as_bytes().to_vec(),
    };
    let head = format!("{}.{}.", one.header("webhook-id"), one.header("webhook-timestamp"));
    let right = STANDARD.encode(hmac(&key, &[head.as_bytes(), &one.body].concat()));
    one.header("webhook-signature").split(' ').any(|signature| signature == format!("v1,{right}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_chat_is_told_once_and_marked_when_it_was_taken() {
    let (database, provider) = (TestDatabase::new().await, ScriptedProvider::start().await);
    let gate = Gate::closed();
    let held = gate.clone();
    let hook = Hook::deciding(move |_| Take::Held(held.clone())).await;
    let mut all = provider_variables(&provider, Wire::Anthropic);
    all.extend(variables(&[sink(&hook)]));
    let options = NodeOptions { variables: all, ..NodeOptions::default() };
    let node = relay(&database, &[sink(&hook)], options).await;
    let client = node.client("acme").await;
    let key = Uuid::new_v4();
    let answer = client.chat(key, "c1", "hello").await;
    assert_eq!(answer.status, 200);

    gate.until_reached(1).await;
    assert_eq!(database.count("select count(*) from outbox where published_at is null").await, 1);
    gate.open();
    database.until_published(1).await;
    let taken = hook.taken();
    assert_eq!(taken.len(), 1);
    let event = &taken[0].event;
    let id = database.text("select event_id::text from usage_receipts").await;
    for (member, value) in [
        ("specversion", "1.0"),
        ("id", id.as_str()),
        ("source", "/oncekey"),
        ("type", "call_completed"),
        ("subject", "c1"),
        ("datacontenttype", "application/json"),
        ("tenantid", "acme"),
        ("aggregatetype", "conversation"),
    ] {
        assert_eq!(event[member], value, "{member}");
    }
    assert_eq!(event["data"]["idempotency_key"], key.to_string());
    assert_eq!(event["data"]["request_id"], answer.json()["request_id"]);
    event["time"].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    let payload: Value =
        serde_json::from_str(&database.text("select payload::text from outbox").await).unwrap();
    assert_eq!(event["data"], payload);
    assert_eq!(taken[0].header("content-type"), "application/cloudevents+json; charset=utf-8");
    assert_eq!(taken[0].header("webhook-id"), id);
    assert!(verifies(SECRET, &taken[0]) && !verifies("another-secret", &taken[0]));
    assert_clean(node.store()).await;
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_secret_is_replaced_the_old_and_the_new_one_verify() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    let new = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let options = NodeOptions::default().set("TEST_HOOK_SECRET", &format!("{new} {SECRET} plain"));
    let node = relay(&database, &[sink(&hook)], options).await;
    put(&database, "c1", 1).await;
    let taken = hook.until_taken(1).await;
    assert!([new, SECRET, "plain"].iter().all(|secret| verifies(secret, &taken[0])));
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_body_never_ends_is_an_answer() {
    let database = TestDatabase::new().await;
    let hook = Hook::deciding(|_| Take::Endless(200)).await;
    let node = relay_to(&database, &hook).await;
    put(&database, "c1", 1).await;
    database.until_published(1).await;
    assert_eq!(hook.deliveries().len(), 1, "what it took it does not get again");
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_down_keeps_nothing_from_another_and_makes_it_get_nothing_twice() {
    let database = TestDatabase::new().await;
    let (well, ill) = (Hook::start().await, Hook::deciding(|_| Take::Status(500)).await);
    let node = relay(&database, &[sink(&well), sink(&ill)], NodeOptions::default()).await;
    for number in 0..6 {
        put(&database, &format!("c{}", number % 3), number).await;
    }
    well.until_taken(6).await;
    ill.until("four tries", |all| all.len() >= 4).await;
    assert_eq!(
        database.count("select count(*) from outbox where published_at is not null").await,
        0
    );
    ill.decide(|_| Take::Status(200));
    database.until_published(6).await;
    assert_eq!(well.taken().len(), 6);
    assert_eq!(ill.taken().len(), 6);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_only_for_a_sink_that_is_gone_from_the_configuration_is_published() {
    let database = TestDatabase::new().await;
    let (kept, gone) = (Hook::start().await, Hook::deciding(|_| Take::Status(500)).await);
    let node = relay(&database, &[sink(&kept), sink(&gone)], NodeOptions::default()).await;
    put(&database, "c1", 1).await;
    eventually("one sink has it", || async {
        database.count("select count(*) from outbox where cardinality(acked_by) = 1").await == 1
    })
    .await;
    node.shut_down().await;
    let node = relay_to(&database, &kept).await;
    database.until_published(1).await;
    assert_eq!(kept.taken().len(), 1);
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_standard_output_each_event_is_a_line_of_json_and_the_log_is_elsewhere() {
    let database = TestDatabase::new().await;
    let id = put(&database, "c1\nx", 7).await;
    let mut all = variables(&["{ kind = 'stdout' }".to_owned()]);
    all.push(("DATABASE_URL".to_owned(), database.url.clone()));
    let node = ProcessNode::start(all).await;
    let line = node.until_printed("specversion").await;
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (event["id"].as_str(), event["subject"].as_str()),
        (Some(&*id.to_string()), Some("c1\nx"))
    );
    database.until_published(1).await;
    assert!(node.printed().iter().all(|line| !line.contains("\"level\"")));
    assert!(node.raw_log().iter().all(|line| !line.contains("specversion")));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sinks_or_switched_off_nothing_is_relayed() {
    let (database, hook) = (TestDatabase::new().await, Hook::start().await);
    put(&database, "c1", 1).await;
    let off = NodeOptions::default().set("ONCEKEY_OUTBOX__RELAY", "false");
    let nodes = [
        relay(&database, &[], NodeOptions::default()).await,
        relay(&database, &[sink(&hook)], off).await,
    ];
    assert_eq!(database.count("select count(*) from event_relays").await, 0);
    let relaying = relay_to(&database, &hook).await;
    database.until_published(1).await;
    assert_eq!(database.count("select count(*) from event_relays").await, 1);
    relaying.shut_down().await;
    assert_eq!(database.count("select count(*) from event_relays").await, 0, "it left in order");
    assert_eq!(database.count("select count(*) from event_shares").await, 0);
    for node in nodes {
        node.shut_down().await;
    }
}
