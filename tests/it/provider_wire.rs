//! Providers over real HTTP: what every recorded form of an answer or a refusal comes to.

use std::time::Duration;

use oncekey::domain::failure::{Cause, FailureKind, ModerationStage, classify, diagnose};
use oncekey::domain::prompt::{Answer, StopReason};
use oncekey::domain::retry::asked_wait;
use oncekey::domain::usage::Usage;
use serde_json::{Value, json};

use crate::support::provider::calls::{KEY, answer, call, connect, failure, failure_on};
use crate::support::provider::{
    Chunking, End, Reply, ScriptedProvider, Tokens, Wire, default_answer, default_tokens, fixture,
};

fn usage(input: i64, cache_read: i64, cache_write: i64, output: i64) -> Usage {
    Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        cache_read_tokens: Some(cache_read),
        cache_write_tokens: Some(cache_write),
        reasoning_tokens: None,
    }
}

/// Every refusal on file, and what it is.
const REFUSALS: &[(&str, u16, FailureKind)] = &[
    ("200_empty_choices.json", 200, FailureKind::Transient),
    ("200_error_body.json", 200, FailureKind::RateLimited),
    ("200_failed_status.json", 200, FailureKind::Transient),
    ("200_whitespace_dot.json", 200, FailureKind::Transient),
    ("400_context_anthropic.json", 400, FailureKind::TooLarge),
    ("400_context_openai.json", 400, FailureKind::TooLarge),
    ("400_region_other_vendor.json", 400, FailureKind::Region),
    ("400_spend_limit.json", 400, FailureKind::Quota),
    ("400_temperature_deprecated.json", 400, FailureKind::Input),
    ("401_auth.json", 401, FailureKind::Auth),
    ("403_permission.json", 403, FailureKind::Auth),
    ("403_region.json", 403, FailureKind::Region),
    ("413_edge.json", 413, FailureKind::TooLarge),
    ("413_html.json", 413, FailureKind::TooLarge),
    ("429_bad_date.json", 429, FailureKind::RateLimited),
    ("429_fraction.json", 429, FailureKind::RateLimited),
    ("429_garbage.json", 429, FailureKind::RateLimited),
    ("429_http_date_past.json", 429, FailureKind::RateLimited),
    ("429_http_date_plus_3s.json", 429, FailureKind::RateLimited),
    ("429_insufficient_quota.json", 429, FailureKind::Quota),
    ("429_ms.json", 429, FailureKind::RateLimited),
    ("429_negative.json", 429, FailureKind::RateLimited),
    ("429_none.json", 429, FailureKind::RateLimited),
    ("429_seconds.json", 429, FailureKind::RateLimited),
    ("429_zero.json", 429, FailureKind::RateLimited),
    ("500_context_wrapped.json", 500, FailureKind::TooLarge),
    ("529_overloaded.json", 529, FailureKind::Overloaded),
];

#[tokio::test]
async fn every_refusal_on_file_has_its_kind_in_either_form() {
    let server = ScriptedProvider::start().await;
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/provider"));
    assert_eq!(files.unwrap().count(), REFUSALS.len(), "every file is in the table");
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let provider = connect(&server, wire);
        for (file, status, kind) in REFUSALS {
            for chunking in [Chunking::Events, Chunking::OneByte] {
                let reply = Reply::file(file).chunking(chunking);
                let failure = failure_on(&server, &*provider, reply).await;
                let told = diagnose(&failure.facts);
                let seen = failure.facts.summary();
                assert_eq!((told.kind, told.known), (*kind, true), "{file} {wire:?}: {seen}");
                assert_eq!(failure.facts.status, Some(*status), "{file}");
            }
        }
    }
    let dropped = failure(&server, Wire::Anthropic, Reply::file("400_temperature_deprecated.json"));
    let told = diagnose(&dropped.await.facts);
    assert_eq!(told.refused_parameter.map(|it| it.as_str()), Some("temperature"));
}

#[tokio::test]
async fn what_the_headers_ask_for_comes_through() {
    let now = "2026-10-21T07:28:00.400Z".parse().unwrap();
    let server = ScriptedProvider::start_at(move || now).await;
    for (file, millis) in [
        ("429_seconds.json", Some(2000)),
        ("429_ms.json", Some(1500)),
        ("429_fraction.json", Some(1500)),
        ("429_http_date_plus_3s.json", Some(2600)),
        ("429_http_date_past.json", None),
        ("429_zero.json", None),
        ("429_negative.json", None),
        ("429_garbage.json", None),
        ("429_bad_date.json", None),
        ("429_none.json", None),
    ] {
        let failure = failure(&server, Wire::Anthropic, Reply::file(file)).await;
        let asked = asked_wait(&failure.facts, &[], now);
        assert_eq!(asked, millis.map(Duration::from_millis), "{file}");
    }
}

#[tokio::test]
async fn every_good_stream_on_file_is_read_exactly() {
    let server = ScriptedProvider::start().await;
    let kept =
        Usage { cache_write_tokens: None, reasoning_tokens: Some(30), ..usage(200, 1000, 0, 48) };
    for (file, wire, text, usage) in [
        ("anthropic_ok.sse", Wire::Anthropic, "Hello there", usage(25, 0, 0, 15)),
        ("crlf_nospace.sse", Wire::Anthropic, "naïve café 北京 🫖", usage(25, 0, 0, 7)),
        ("usage_cumulative_two_deltas.sse", Wire::Anthropic, "Hi", usage(27, 100, 40, 15)),
        ("openai_usage_last_no_done.sse", Wire::OpenAi, "Hello you", kept),
    ] {
        for chunking in [Chunking::Events, Chunking::OneByte] {
            let answer = answer(&server, wire, Reply::events_file(file).chunking(chunking)).await;
            assert_eq!(answer, Answer { text: text.to_owned(), stop: StopReason::End, usage });
        }
    }
}

#[tokio::test]
async fn chunks_that_cut_characters_and_line_ends_change_nothing() {
    let server = ScriptedProvider::start().await;
    let reply = Reply::events_file("crlf_nospace.sse").chunking(crlf_chunks());
    assert_eq!(answer(&server, Wire::Anthropic, reply).await.text, "naïve café 北京 🫖");
}

/// The cuts that break a parser by chunks: inside a character, and between CR and LF.
pub fn crlf_chunks() -> Chunking {
    let chunks: Value = serde_json::from_slice(&fixture("sse/crlf_nospace.chunks.json")).unwrap();
    let chunks = chunks["chunks"].as_array().unwrap();
    let size = |chunk: &Value| base64_length(chunk.as_str().unwrap());
    let sizes: Vec<usize> = chunks.iter().map(size).collect();
    assert_eq!(sizes.iter().sum::<usize>(), fixture("sse/crlf_nospace.sse").len());
    Chunking::Sizes(sizes)
}

fn base64_length(text: &str) -> usize {
    text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count()
}

#[tokio::test]
async fn every_bad_stream_on_file_is_a_failure_with_its_tokens() {
    let server = ScriptedProvider::start().await;
    let none = Usage::default();
    let begun = usage(25, 0, 0, 1);
    let filtered = Usage { input_tokens: Some(1296), output_tokens: Some(0), ..none };
    let limit = |output| Usage { output_tokens: Some(output), ..begun };
    use FailureKind::{Moderation, Overloaded, Transient, Truncated};
    for (file, wire, kind, text, usage) in [
        ("error_first_event.sse", Wire::Anthropic, Overloaded, "", none),
        ("error_after_partial.sse", Wire::Anthropic, Overloaded, "Half an ans", begun),
        ("eof_no_stop.sse", Wire::Anthropic, Transient, "This sentence stops in the mid", begun),
        ("eof_reasoning_only.sse", Wire::Anthropic, Transient, "", begun),
        ("pings_only_prefix.sse", Wire::Anthropic, Transient, "", begun),
        ("refusal_empty.sse", Wire::Anthropic, Moderation, "", usage(19, 0, 0, 0)),
        ("openai_content_filter.sse", Wire::OpenAi, Moderation, "", filtered),
        ("openai_error_chunk_on_200.sse", Wire::OpenAi, Transient, "Par", none),
        // Tools were not asked for: their input is no text of an answer.
        ("anthropic_tool_ok.sse", Wire::Anthropic, Transient, "", limit(60)),
        ("tool_truncated_max_tokens.sse", Wire::Anthropic, Truncated, "", limit(350)),
        ("tool_truncated_valid_json.sse", Wire::Anthropic, Truncated, "", limit(350)),
    ] {
        for chunking in [Chunking::Events, Chunking::OneByte] {
            server.reply(Reply::events_file(file).chunking(chunking));
            let (answer, told) = call(&*connect(&server, wire)).await;
            let failure = answer.unwrap_err();
            let diagnosis = diagnose(&failure.facts);
            assert_eq!((diagnosis.kind, diagnosis.known), (kind, true), "{file}");
            assert_eq!(told, text, "{file}");
            assert_eq!(failure.facts.text_flowed, !text.is_empty(), "{file}");
            assert_eq!(failure.usage, usage, "{file}");
            assert_eq!(failure.facts.status, Some(200), "{file}");
            let stage = (kind == Moderation).then_some(ModerationStage::Input);
            assert_eq!(diagnosis.stage, stage, "{file}");
        }
    }
}

#[tokio::test]
async fn the_request_on_the_wire() {
    let server = ScriptedProvider::start().await;
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let (answer, _) = call(&*connect(&server, wire)).await;
        let said = default_answer(1, "How are you?");
        let prompt = [("user".to_owned(), "How are you?".to_owned())];
        let tokens = default_tokens(&prompt, &said);
        let answer = answer.unwrap();
        assert_eq!(answer.text, said);
        assert_eq!(answer.usage.input_tokens, Some(tokens.input));
        assert_eq!(answer.usage.output_tokens, Some(tokens.output));
        let charge = server.ledger().pop().unwrap();
        assert_eq!((charge.model.as_str(), charge.tokens), ("fake-model-1", tokens));

        let sent = server.requests().pop().unwrap();
        assert_eq!(sent.end, End::Answered);
        assert_eq!(sent.messages(), prompt);
        assert_eq!(sent.body["stream"], json!(true));
        assert_eq!(sent.body["max_tokens"], json!(100));
        assert_eq!(sent.header("content-type"), Some("application/json"));
        match wire {
            Wire::Anthropic => {
                assert_eq!(sent.header("x-api-key"), Some(KEY));
                assert_eq!(sent.header("anthropic-version"), Some("2023-06-01"));
            }
            Wire::OpenAi => {
                let bearer = format!("Bearer {KEY}");
                assert_eq!(sent.header("authorization"), Some(bearer.as_str()));
            }
        }
    }
    assert_eq!(server.ledger().len(), 2);
}

#[tokio::test]
async fn an_answer_that_ran_into_its_limit_is_an_answer() {
    let server = ScriptedProvider::start().await;
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let answer = answer(&server, wire, Reply::cut_by_max_tokens("As far as")).await;
        assert_eq!((answer.text.as_str(), answer.stop), ("As far as", StopReason::MaxTokens));
    }
}

#[tokio::test]
async fn a_whole_answer_from_a_server_that_does_not_stream_is_taken() {
    let server = ScriptedProvider::start().await;
    let tokens = Tokens { input: 5, cache_read: 7, cache_write: 0, output: 3 };
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let answer = answer(&server, wire, Reply::whole("All at once", tokens)).await;
        assert_eq!((answer.text.as_str(), answer.stop), ("All at once", StopReason::End));
        assert_eq!(answer.usage.input_tokens, Some(5), "cached tokens stand apart");
        assert_eq!(answer.usage.cache_read_tokens, Some(7));
    }
}

#[tokio::test]
async fn labels_of_bodies_may_lie() {
    let server = ScriptedProvider::start().await;
    let plain = [("content-type", "text/plain")];
    let stream = Reply::status(200, &plain, fixture("sse/anthropic_ok.sse"));
    assert_eq!(answer(&server, Wire::Anthropic, stream).await.text, "Hello there");
    let events = [("content-type", "text/event-stream")];
    let error = "\n {\"error\": {\"code\": 429, \"message\": \"slow down\"}}";
    let failed = failure(&server, Wire::OpenAi, Reply::status(200, &events, error)).await;
    assert_eq!(classify(&failed.facts), FailureKind::RateLimited);
    for (body, label) in [("", events), ("  \n ", plain), ("<html></html>", events)] {
        let failed = failure(&server, Wire::OpenAi, Reply::status(200, &label, body)).await;
        assert_eq!(classify(&failed.facts), FailureKind::Transient, "{body:?}");
    }
}

/// An Anthropic stream with this JSON string, quotes included, as the only text.
fn stream_of(json_text: &str) -> Reply {
    let ok = String::from_utf8(fixture("sse/anthropic_ok.sse")).unwrap();
    let one = ok.replace("\"Hel\"", json_text);
    Reply::events(one.replace("\"lo \"", "\"\"").replace("\"there\"", "\"\""))
}

#[tokio::test]
async fn characters_that_no_database_takes_do_not_break_the_reading() {
    let server = ScriptedProvider::start().await;
    for (sent, read) in [
        (r#""Tea \ud83e and""#, "Tea \u{fffd} and"),
        (r#""\ud83e\udd16""#, "🤖"),
        (r#""nul \u0000 stays""#, "nul \0 stays"),
        (r#""type \\u0000 please""#, r"type \u0000 please"),
        (r#""type \\ud83e please""#, r"type \ud83e please"),
    ] {
        assert_eq!(answer(&server, Wire::Anthropic, stream_of(sent)).await.text, read);
    }
    let failed = failure(&server, Wire::Anthropic, stream_of(r#"" \t ""#)).await;
    assert_eq!(failed.facts.cause, Cause::NothingUsable, "blanks are no answer");
}

#[tokio::test]
async fn unknown_events_are_passed_over() {
    let server = ScriptedProvider::start().await;
    let ok = String::from_utf8(fixture("sse/anthropic_ok.sse")).unwrap();
    let new = "event: message_joy\ndata: {\"type\": \"message_joy\", \"joy\": [1]}\n\n: note\n\n";
    let reply =
        Reply::events(format!("{new}{}", ok.replace("event: ping", &format!("{new}event: ping"))));
    assert_eq!(answer(&server, Wire::Anthropic, reply).await.text, "Hello there");
}

#[tokio::test]
async fn refusals_by_stop_reason_after_some_text_are_of_the_output() {
    let server = ScriptedProvider::start().await;
    let ok = String::from_utf8(fixture("sse/anthropic_ok.sse")).unwrap();
    let refused = Reply::events(ok.replace("end_turn", "refusal"));
    let failed = failure(&server, Wire::Anthropic, refused).await;
    assert_eq!(failed.facts.cause, Cause::Moderated(ModerationStage::Output));
    assert_eq!(failed.usage, usage(25, 0, 0, 15));

    let words = "data: {\"choices\": [{\"delta\": {\"refusal\": \"I can not.\"}}]}\n\n\
                 data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n";
    let failed = failure(&server, Wire::OpenAi, Reply::events(words)).await;
    assert_eq!(failed.facts.cause, Cause::Moderated(ModerationStage::Input));
}
