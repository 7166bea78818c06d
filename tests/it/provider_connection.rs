//! What holds between us and a provider below the form of the answer: limits, connections,
//! addresses and credentials.

use std::time::Duration;

use oncekey::clock::Clock;
use oncekey::domain::failure::{Cause, FailureKind, TransportFault, classify};
use oncekey::domain::secret::Secret;
use oncekey::domain::usage::Usage;
use oncekey::provider::{self, ProviderKind, ProviderSettings, Route};

use crate::support::provider::calls::{
    KEY, answer, call, connect, failure, failure_on, request, settings,
};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider, Tokens, Wire};

#[tokio::test]
async fn an_answer_beyond_its_limit_is_an_error_and_not_a_cut() {
    let server = ScriptedProvider::start().await;
    let long = "word ".repeat(10);
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let tokens = Tokens { input: 1, cache_read: 0, cache_write: 0, output: 10 };
        for reply in [Reply::text(&long), Reply::whole(&long, tokens)] {
            let mut settings = settings(&server, wire);
            settings.max_answer_bytes = long.len() - 1;
            server.reply(reply);
            let limited = provider::build(settings, Clock::system()).unwrap();
            let (answer, told) = call(&*limited).await;
            let failure = answer.unwrap_err();
            let limit_bytes = long.len() - 1;
            assert_eq!(failure.facts.cause, Cause::AnswerTooLong { limit_bytes });
            assert!(told.len() <= limit_bytes);
            assert_eq!(classify(&failure.facts), FailureKind::Malformed);
        }
        let mut settings = settings(&server, wire);
        settings.max_answer_bytes = long.len();
        server.reply(Reply::text(&long));
        let limited = provider::build(settings, Clock::system()).unwrap();
        assert_eq!(call(&*limited).await.0.unwrap().text, long, "at the limit");
    }
}

#[tokio::test]
async fn connections_that_break_are_told_apart_and_not_repeated() {
    let server = ScriptedProvider::start().await;
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        // On one client, so that the broken connection is one that was used before.
        let provider = connect(&server, wire);
        for (reply, fault, text) in [
            (Reply::reset(), TransportFault::Request, ""),
            (Reply::close(), TransportFault::Request, ""),
            (Reply::text("one two").after(0, Action::Reset), TransportFault::Body, ""),
            (Reply::text("one two").after(1, Action::Close), TransportFault::Body, "one "),
        ] {
            assert!(call(&*provider).await.0.is_ok());
            let before = server.count();
            server.reply(reply);
            let (answer, told) = call(&*provider).await;
            let failure = answer.unwrap_err();
            assert_eq!(failure.facts.cause, Cause::Transport(fault), "{wire:?}");
            assert_eq!(told, text);
            assert_eq!(server.count(), before + 1, "nothing below us repeats");
        }
        server.reply(Reply::text("one two").after(1, Action::End));
        let (answer, told) = call(&*provider).await;
        assert_eq!(answer.unwrap_err().facts.cause, Cause::Cut, "a polite end is no end mark");
        assert_eq!(told, "one ");
    }
}

#[tokio::test]
async fn nobody_there() {
    let server = ScriptedProvider::start().await;
    let mut settings = settings(&server, Wire::Anthropic);
    // Nobody listens on the lowest port, and no listener on a free port can be given it.
    settings.routes[0].base_url = "http://127.0.0.1:1".to_owned();
    let provider = provider::build(settings, Clock::system()).unwrap();
    let failure = call(&*provider).await.0.unwrap_err();
    assert_eq!(failure.facts.cause, Cause::Transport(TransportFault::Connect));
    assert_eq!(failure.facts.status, None);
}

#[tokio::test]
async fn one_connection_serves_call_after_call() {
    let server = ScriptedProvider::start().await;
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let before = server.connections();
        let provider = connect(&server, wire);
        for _ in 0..3 {
            assert!(call(&*provider).await.0.is_ok());
            failure_on(&server, &*provider, Reply::file("529_overloaded.json")).await;
        }
        assert_eq!(server.connections(), before + 1);
    }
}

#[tokio::test]
async fn behind_the_end_mark_nothing_takes_the_answer_back() {
    let server = ScriptedProvider::start().await;
    // Deltas, the reason, and then no usage and no `[DONE]`.
    let reply = Reply::text("one two").after(3, Action::Reset);
    let answer = answer(&server, Wire::OpenAi, reply).await;
    assert_eq!(answer.text, "one two");
    assert_eq!(answer.usage, Usage::default(), "untold is not nothing");
    // The other vendor's end mark is its last event: before it the stream was cut.
    let failed = failure(&server, Wire::Anthropic, Reply::text("one two").after(4, Action::End));
    assert_eq!(failed.await.facts.cause, Cause::Cut);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = ScriptedProvider::start().await;
    let other = ScriptedProvider::start().await;
    let location = format!("{}/v1/messages", other.base_url(Wire::Anthropic));
    for status in [301, 302, 307, 308] {
        let reply = Reply::status(status, &[("location", location.as_str())], "");
        let failed = failure(&server, Wire::Anthropic, reply).await;
        assert_eq!(classify(&failed.facts), FailureKind::Config);
    }
    assert_eq!(other.count(), 0, "the key goes to the configured host alone");
}

#[tokio::test]
async fn each_route_has_its_own_address() {
    let (first, second) = (ScriptedProvider::start().await, ScriptedProvider::start().await);
    let mut settings = settings(&first, Wire::OpenAi);
    let base_url = second.base_url(Wire::OpenAi);
    settings.routes.push(Route { name: "other".to_owned(), base_url });
    let provider = provider::build(settings, Clock::system()).unwrap();
    assert_eq!(provider.name(), "main");
    assert_eq!(provider.routes().len(), 2);
    for (route, counts) in [(1, (0, 1)), (0, (1, 1)), (7, (1, 2))] {
        provider.call(&request(), route, &mut |_| {}).await.unwrap();
        assert_eq!((first.count(), second.count()), counts);
    }
}

#[tokio::test]
async fn an_endless_refusal_is_read_to_its_bound() {
    let server = ScriptedProvider::start().await;
    let mut page = b"<html>".to_vec();
    page.resize(5_000_000, b'x');
    let html = [("content-type", "text/html")];
    let failed = failure(&server, Wire::Anthropic, Reply::status(502, &html, page)).await;
    assert_eq!(classify(&failed.facts), FailureKind::Transient);
    let Cause::Refused { html: true, error } = failed.facts.cause else { panic!("no page") };
    assert!(error.detail.unwrap().len() <= 64 * 1024);
}

#[tokio::test]
async fn credentials_are_not_shown() {
    let server = ScriptedProvider::start().await;
    let error = format!("{{\"error\": {{\"message\": \"Incorrect key {KEY} for {KEY}\"}}}}");
    let json = [("content-type", "application/json")];
    for status in [200, 401] {
        let reply = Reply::status(status, &json, error.clone());
        let failed = failure(&server, Wire::Anthropic, reply).await;
        let shown = format!("{failed:?} {}", failed.facts.summary());
        assert!(shown.contains("Incorrect key [redacted]") && !shown.contains(KEY), "{shown}");
    }
    let echoed = Reply::status(200, &json, format!("you sent {KEY}"));
    let failed = failure(&server, Wire::OpenAi, echoed).await;
    assert!(!format!("{failed:?}").contains(KEY));

    let mut settings = settings(&server, Wire::Anthropic);
    assert!(!format!("{settings:?}").contains(KEY));
    settings.api_key = Some(Secret::new(format!("{KEY}\n")));
    let refused = provider::build(settings, Clock::system()).err().unwrap();
    assert!(!format!("{refused:?} {refused}").contains(KEY), "{refused}");
}

#[tokio::test]
async fn settings_that_no_call_could_be_made_with_are_refused() {
    let server = ScriptedProvider::start().await;
    let refused = |change: fn(&mut ProviderSettings)| {
        let mut settings = settings(&server, Wire::OpenAi);
        change(&mut settings);
        provider::build(settings, Clock::system()).err().unwrap().to_string()
    };
    assert!(refused(|settings| settings.routes.clear()).contains("at least one route"));
    let bad = refused(|settings| settings.routes[0].base_url = "localhost".to_owned());
    assert!(bad.contains("route direct: base_url is no URL"), "{bad}");
}

#[tokio::test]
async fn a_dropped_call_ends_the_request() {
    let server = ScriptedProvider::start().await;
    let provider = connect(&server, Wire::Anthropic);
    let gate = Gate::closed();
    server.reply(Reply::text("one two three").after(2, Action::Hold(gate.clone())));
    let call = tokio::spawn(async move {
        call(&*provider).await.0.unwrap();
    });
    gate.until_reached(1).await;
    call.abort();
    server.until_client_gone(1).await;
    assert!(server.ledger().is_empty(), "not answered to its end");
}

#[tokio::test]
async fn with_no_account_there_is_a_provider_that_needs_none() {
    let server = ScriptedProvider::start().await;
    let mut settings = settings(&server, Wire::Anthropic);
    settings.kind =
        ProviderKind::Simulated { first_byte_delay: Duration::ZERO, tokens_per_second: 0 };
    settings.routes.clear();
    let simulated = provider::build(settings, Clock::system()).unwrap();
    assert_eq!((simulated.name(), simulated.routes().len()), ("main", 1));
    let (first, second) = (call(&*simulated).await.0.unwrap(), call(&*simulated).await.0.unwrap());
    assert!(first.text.contains("How are you?"), "{first:?}");
    assert_eq!(first, second, "it follows from the prompt alone");
    assert_eq!(server.count(), 0);
}
