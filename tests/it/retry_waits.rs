//! How long a run waits, for what, and when it does not: what a provider asks for, slots that are
//! shared among tenants, the latch, and an account that is out of credit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use oncekey::faults::{Faults, Point};
use serde_json::json;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::clock::TickingClock;
use crate::support::node::{NodeOptions, TestNode, assert_clean, new_key, provider_variables};
use crate::support::process::ProcessNode;
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, Wire};
use crate::support::{Client, TestDatabase};

async fn start(options: NodeOptions) -> (TestDatabase, ScriptedProvider, TestNode, Client) {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    (database, provider, node, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_retry_after_is_waited_for_as_it_means() {
    let clock = TickingClock::start(TimeDelta::zero());
    let database = TestDatabase::new().await;
    let date = clock.clock();
    let provider = ScriptedProvider::start_at(move || date.utc_now()).await;
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let node = TestNode::start(&database, &provider, options).await;
    let client = node.client("t1").await;
    // Milliseconds: what the call after the refusal was waited for, least and most. Without a usable
    // word it is our own back-off, from the floor to a quarter of the total.
    let own = (100, 2_000);
    let cases = [
        ("429_seconds.json", (2_000, 2_000)),
        ("429_ms.json", (1_500, 1_500)),
        ("429_fraction.json", (1_500, 1_500)),
        // A whole second of a date, less what has passed of it.
        ("429_http_date_plus_3s.json", (1_900, 3_100)),
        ("429_zero.json", own),
        ("429_http_date_past.json", own),
        ("429_negative.json", own),
        ("429_garbage.json", own),
        ("429_bad_date.json", own),
        ("429_none.json", own),
    ];
    for (number, (file, (least, most))) in cases.into_iter().enumerate() {
        provider.reply(Reply::file(file));
        let (client, key) = (client.clone(), Uuid::new_v4());
        let conversation = format!("c{number}");
        let task = tokio::spawn(async move { client.chat(key, &conversation, "hello").await });
        provider.until_requests(2 * number + 1).await;
        // A date is read on the clock that it was written on, which must not be put forward between.
        let answer =
            if file.contains("plus") { task.await.unwrap() } else { clock.hurry(task).await };
        assert_eq!(answer.status, 200, "{file}");
        assert_eq!(provider.count(), 2 * number + 2, "{file}");
        let waited = format!(
            "select waited_ms from provider_calls join request_records using (operation_id)
            where call_no = 2 and conversation_id = 'c{number}'"
        );
        let waited = database.count(&waited).await;
        assert!((least..=most).contains(&waited), "{file}: {waited} ms");
    }
    let count = i64::try_from(cases.len()).unwrap();
    assert_eq!(database.outcomes().await, (count, count, count));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_beyond_the_time_left_ends_the_run_at_once_and_is_passed_on() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    for status in [429, 503, 529] {
        provider.reply(Reply::status(status, &[("retry-after", "90")], "{}"));
        let busy = client.chat(Uuid::new_v4(), "c1", "hello").await;
        assert_eq!((busy.status, busy.error().as_str()), (503, "provider_busy"), "{status}");
        assert_eq!(busy.header("retry-after"), Some("90"));
        assert_eq!(busy.json()["retry_after_ms"], 90_000);
    }
    assert_eq!(provider.count(), 3);
    assert_eq!(database.outcomes().await, (0, 0, 0));
    assert!(node.shut_down().await);
}

/// However it fails, and however often the client asks meanwhile, a run makes the configured number of
/// calls: nothing below the one layer repeats anything, and a repeat of the client's joins no queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_always_fails_gets_exactly_the_configured_calls() {
    let quick = || {
        NodeOptions::default()
            .set("ONCEKEY_RETRY__TOTAL_WAIT", "400ms")
            .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "3")
            .set("ONCEKEY_RETRY__MAX_RUNS", "2")
    };
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        for reply in [
            Reply::status(500, &[], "{}"),
            Reply::file("529_overloaded.json"),
            Reply::file("429_none.json"),
            Reply::reset(),
            Reply::close(),
            Reply::status(502, &[("content-type", "text/html")], "<html>bad gateway</html>"),
        ] {
            let database = TestDatabase::new().await;
            let provider = ScriptedProvider::start().await;
            let variables = provider_variables(&provider, wire);
            let node = TestNode::start_with(&database, variables, quick()).await;
            let client = node.client("t1").await;
            provider.reply_by(move |_| reply.clone());
            let key = Uuid::new_v4();
            for run in 1..=2 {
                let all = (0..5).map(|_| client.chat(key, "c1", "hello"));
                let statuses = futures_util::future::join_all(all).await;
                let failed = statuses.iter().filter(|it| (502..=503).contains(&it.status)).count();
                assert!(
                    failed >= 1,
                    "{:?}",
                    statuses.iter().map(|it| it.error()).collect::<Vec<_>>()
                );
                let told = provider.count();
                assert!(told <= 6, "at most both runs: {told}");
                if run == 1 {
                    assert!(told == 3 || told == 6, "whole runs: {told}");
                }
            }
            // Out of runs: the clock of the operation was not started anew by any of them.
            let over = client.chat(key, "c1", "hello").await;
            assert_eq!((over.status, over.error().as_str()), (422, "gave_up"));
            assert_eq!(provider.count(), 6);
            assert_clean(node.store()).await;
            assert!(node.shut_down().await);
        }
    }
}

fn held(gate: &Gate) -> Reply {
    Reply::normal().before_head(Action::Hold(gate.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_import_leaves_the_next_free_slot_to_another_tenant() {
    let two = NodeOptions::default().set("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "2");
    let (database, provider, node, heavy) = start(two).await;
    let light = node.client("t2").await;
    let gates: Vec<Gate> = (0..12).map(|_| Gate::closed()).collect();
    gates.iter().for_each(|gate| provider.reply(held(gate)));
    let import: Vec<_> = (0..10)
        .map(|number| {
            let heavy = heavy.clone();
            tokio::spawn(async move {
                heavy.chat(Uuid::new_v4(), &format!("c{number}"), "import").await
            })
        })
        .collect();
    provider.until_requests(2).await;
    // All ten have claimed; eight wait for a slot.
    let claimed = "select count(*) from request_records where state = 'in_progress'";
    while database.count(claimed).await < 10 {
        tokio::task::yield_now().await;
    }
    let single =
        tokio::spawn(async move { light.chat(Uuid::new_v4(), "mine", "one question").await });
    while database.count(claimed).await < 11 {
        tokio::task::yield_now().await;
    }
    // The waiting ones stand in line once their record does; let two places become free, one by one.
    let mut served = Vec::new();
    for gate in gates.iter().take(4) {
        gate.open();
        provider.until_requests(served.len() + 3).await;
        let last = provider.requests().pop().unwrap();
        served.push(last.messages().last().unwrap().1.clone());
    }
    assert!(served.iter().take(3).any(|message| message == "one question"), "{served:?}");
    gates.iter().for_each(Gate::open);
    assert_eq!(single.await.unwrap().status, 200);
    for call in import {
        assert_eq!(call.await.unwrap().status, 200);
    }
    assert_eq!(database.outcomes().await, (11, 11, 11));
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_wait_of_zero_discards_at_once_and_the_key_is_free() {
    let options = NodeOptions::default()
        .set("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "1")
        .set("ONCEKEY_PROVIDERS__MAIN__SLOT_WAIT", "0s");
    let (database, provider, node, client) = start(options).await;
    let gate = Gate::closed();
    provider.reply(held(&gate));
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.chat(Uuid::new_v4(), "c1", "hello").await }
    });
    provider.until_requests(1).await;
    let key = Uuid::new_v4();
    let none = client.chat(key, "c2", "hello").await;
    assert_eq!((none.status, none.error().as_str()), (503, "slot_timeout"));
    assert_eq!(database.standing(key).await.3.as_deref(), Some("no_slot"));
    assert_eq!(provider.count(), 1);
    gate.open();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(client.chat(key, "c2", "hello").await.status, 200);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

/// A run that panics, is cancelled or loses its client gives its slot back.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_comes_back_on_every_way_out() {
    let one = NodeOptions::default().set("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "1");
    let (database, provider, node, client) = start(one).await;
    let (key, gate) = (Uuid::new_v4(), Gate::closed());
    provider.reply(held(&gate));
    let cancelled = tokio::spawn({
        let client = client.clone();
        async move { client.chat(key, "c1", "hello").await }
    });
    provider.until_requests(1).await;
    let path = format!("/v1/requests/{key}/cancel");
    assert_eq!(client.send(client.request("POST", &path)).await.unwrap().status, 200);
    assert_eq!(cancelled.await.unwrap().error(), "cancelled");
    assert_eq!(client.chat(Uuid::new_v4(), "c1", "next").await.status, 200);
    assert_eq!(client.chat(Uuid::new_v4(), "c2", "next").await.status, 200);
    gate.open();
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert!(node.shut_down().await);
}

/// A run that panics with its slot in hand, at each place where it holds one.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_gives_its_slot_back() {
    let panics = Arc::new(AtomicBool::new(true));
    let once = panics.clone();
    let faults = Faults::hook(move |point| {
        let panics = point == Point::BeforeCall && once.swap(false, Ordering::SeqCst);
        async move { assert!(!panics, "on purpose") }
    });
    let one = NodeOptions::default()
        .set("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "1")
        .set("ONCEKEY_PROVIDERS__MAIN__SLOT_WAIT", "0s")
        .faults(faults);
    let (database, provider, node, client) = start(one).await;
    let key = Uuid::new_v4();
    assert_eq!(client.chat(key, "c1", "hello").await.error(), "internal");
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200, "the only slot is free");
    assert_eq!(provider.count(), 1);
    assert_eq!(database.outcomes().await, (1, 1, 1));
    assert!(node.shut_down().await);
}

/// Each way in which a run ends has its own word, with the numbers that decided it.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_ends_apart() {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let options = [
        ("ONCEKEY_PROVIDERS__MAIN__MAX_CONCURRENCY", "1"),
        ("ONCEKEY_PROVIDERS__MAIN__SLOT_WAIT", "200ms"),
    ];
    let node = ProcessNode::on(&database, &provider, &options).await;
    let client = Client::new(node.address, &new_key(&database.store(), "t1", "client", None).await);
    let end = async |answer: Answer, ending: &str| {
        let id = answer.header("x-request-id").unwrap().to_owned();
        let line = node.until_event("run_failed", |line| line["request_id"] == id.as_str()).await;
        assert_eq!(line["ending"], ending, "{line}");
        line["reason"].as_str().unwrap().to_owned()
    };
    provider.reply(Reply::file("400_context_anthropic.json"));
    end(client.chat(Uuid::new_v4(), "c1", "hello").await, "failed").await;

    provider.reply(Reply::status(529, &[("retry-after", "90")], "{}"));
    let told = end(client.chat(Uuid::new_v4(), "c1", "hello").await, "cut_by_budget").await;
    assert_eq!(told, "the provider asks for 90000 ms, 8000 ms are left");

    let gate = Gate::closed();
    provider.reply(held(&gate));
    let holds = tokio::spawn({
        let client = client.clone();
        async move { client.chat(Uuid::new_v4(), "c2", "hello").await }
    });
    provider.until_requests(3).await;
    let told = end(client.chat(Uuid::new_v4(), "c1", "hello").await, "waited_out").await;
    assert!(told.contains("waited 1") || told.contains("waited 2"), "{told}");
    gate.open();
    assert_eq!(holds.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_credit_is_called_once_until_the_time_it_names() {
    let clock = TickingClock::start(TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..NodeOptions::default() };
    let (database, provider, node, client) = start(options).await;
    assert_eq!(client.chat(Uuid::new_v4(), "c0", "before").await.status, 200);
    let replayed = Uuid::new_v4();
    assert_eq!(client.chat(replayed, "c0", "told before").await.status, 200);
    let until = (Utc::now() + TimeDelta::hours(2)).format("%Y-%m-%d at %H:%M UTC");
    let message = format!(
        "You have reached your specified API usage limits. You will regain access on {until}."
    );
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    provider.reply(Reply::status(400, &[("content-type", "application/json")], error.to_string()));
    let key = Uuid::new_v4();
    let empty = client.chat(key, "c1", "hello").await;
    assert_eq!((empty.status, empty.error().as_str()), (429, "quota_exhausted"));
    assert_eq!(empty.json()["retryable"], false);
    let asked: u64 = empty.header("retry-after").unwrap().parse().unwrap();
    assert!((7_000..=7_200).contains(&asked), "{asked}");
    let first = client.get(&format!("/v1/requests/{key}")).await.json();
    let calls = provider.count();

    // Nobody calls, no run begins, nothing is written; what is known is told.
    for (key, conversation) in [(key, "c1"), (Uuid::new_v4(), "c2"), (Uuid::new_v4(), "c3")] {
        let refused = client.chat(key, conversation, "hello").await;
        assert_eq!((refused.status, refused.error().as_str()), (429, "quota_exhausted"));
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(client.get(&format!("/v1/requests/{key}")).await.json(), first);
    assert_eq!(database.count("select count(*) from request_records").await, 3);
    assert!(client.chat(replayed, "c0", "told before").await.replayed());
    assert_eq!(client.chat(key, "c1", "another").await.error(), "idempotency_key_reuse");
    assert_eq!(provider.count(), calls);

    clock.jump(Duration::from_secs(2 * 3600 + 60));
    assert_eq!(client.chat(key, "c1", "hello").await.status, 200);
    assert_eq!(database.standing(key).await.1, 2, "two runs, whatever was refused between");
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_account_that_names_no_time_gets_one_call_for_each_operation() {
    let (database, provider, node, client) = start(NodeOptions::default()).await;
    for file in ["429_insufficient_quota.json", "400_spend_limit.json"] {
        let (before, key) = (provider.count(), Uuid::new_v4());
        provider.reply(Reply::file(file));
        let empty = client.chat(key, "c1", file).await;
        assert_eq!((empty.status, empty.error().as_str()), (429, "quota_exhausted"), "{file}");
        assert_eq!(provider.count(), before + 1);
        assert_eq!(client.chat(key, "c1", file).await.status, 200, "topped up");
        assert_eq!(provider.count(), before + 2);
    }
    assert_eq!(database.outcomes().await, (2, 2, 2));
    assert!(node.shut_down().await);
}

/// A thousand operations meet a provider that refuses everything: it gets a few calls, everyone an
/// answer that says when to come back, and nothing is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_operations_against_a_provider_that_refuses_are_no_stampede() {
    let options = NodeOptions::default()
        .set("ONCEKEY_PROVIDERS__MAIN__SLOT_WAIT", "2s")
        .set("ONCEKEY_RETRY__TOTAL_WAIT", "1s");
    let clock = TickingClock::start(TimeDelta::zero());
    let options = NodeOptions { clock: clock.clock(), ..options };
    let (database, provider, node, client) = start(options).await;
    provider.reply_by(|_| Reply::file("429_none.json"));
    let all = (0..1_000).map(|number| {
        let client = client.clone();
        async move { client.chat(Uuid::new_v4(), &format!("c{number}"), "hello").await }
    });
    let answers = futures_util::future::join_all(all).await;
    for answer in &answers {
        assert_eq!(answer.status, 503, "{}", answer.error());
        assert!(["provider_busy", "slot_timeout"].contains(&answer.error().as_str()));
    }
    // The first 64 were under way together; every later one is alone, and the latch holds the rest.
    assert!(provider.count() < 64 + 30, "{} calls", provider.count());
    let running = "select count(*) from request_records where state = 'in_progress'";
    assert_eq!(database.count(running).await, 0);
    provider.reply_by(|_| Reply::normal());
    // Eight seconds is the longest that it is left alone.
    clock.jump(Duration::from_secs(8));
    assert_eq!(client.chat(Uuid::new_v4(), "after", "is it better?").await.status, 200);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
}
