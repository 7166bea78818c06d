//! What a log line and the page of metrics hold, whoever reads them.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::Value;

use super::otlp::Spans;
use super::{LogSettings, Metrics, introduce, metrics as collected, recorder};

/// What was written to the log, shared with who writes it.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is logged of some events: the same with traces as without.
fn logged(variables: &[(&str, &str)], events: impl Fn()) -> String {
    let plain = written(variables, None, &events);
    let provider = SdkTracerProvider::builder().build();
    let traced = written(variables, Some(Spans::new(provider.tracer("test"))), &events);
    // But for the times, in either form.
    let timeless = |text: &str| {
        let parts = text.split(|c: char| c.is_whitespace() || c == '"');
        let time = |part: &&str| part.ends_with('Z') && part.contains('T');
        parts.filter(|part| !time(part)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(timeless(&plain), timeless(&traced));
    plain
}

fn written(variables: &[(&str, &str)], spans: Option<Spans>, events: impl Fn()) -> String {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let written = Written::default();
    let writer = written.clone();
    let settings = LogSettings::read(variables).unwrap();
    let subscriber = settings.subscriber(move || writer.clone(), false, spans);
    tracing::subscriber::with_default(subscriber, events);
    let bytes = written.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_json_line_carries_the_fields_of_its_event_and_of_all_spans_side_by_side() {
    let text = logged(&[("ONCEKEY_LOG", "json")], || {
        let outer = tracing::info_span!("arrival", request_id = %"r-1", tenant_id = "t", step = 1);
        let _outer = outer.enter();
        let inner = tracing::info_span!("call", step = 2, later = tracing::field::Empty);
        inner.record("later", "known");
        let _inner = inner.enter();
        tracing::info!(
            event = "claimed",
            fence = 3_i64,
            ratio = 0.5,
            held = true,
            took_ms = 5_u128,
            "a \"line\"\nmore"
        );
        tracing::warn!(event = "retrying", took_ms = 202_u128, step = 9, why = ?Some("x"));
    });

    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [claimed, retrying] = &lines[..] else { panic!("{text}") };
    assert_eq!(claimed["event"], "claimed");
    assert_eq!(claimed["request_id"], "r-1");
    assert_eq!(claimed["tenant_id"], "t");
    assert_eq!(claimed["message"], "a \"line\"\nmore");
    assert_eq!(claimed["level"], "INFO");
    assert_eq!(claimed["target"], module_path!());
    assert_eq!(claimed["step"], 2);
    assert_eq!(claimed["later"], "known");
    assert_eq!(
        (&claimed["fence"], &claimed["ratio"], &claimed["held"]),
        (&3.into(), &0.5.into(), &true.into())
    );
    assert_eq!(claimed["took_ms"], 5);
    let timestamp = claimed["timestamp"].as_str().unwrap();
    assert!(chrono::DateTime::parse_from_rfc3339(timestamp).is_ok(), "{timestamp}");
    assert_eq!(retrying["took_ms"], 202);
    assert_eq!((&retrying["step"], &retrying["why"]), (&9.into(), &"Some(\"x\")".into()));
    assert_eq!((&retrying["request_id"], &retrying["level"]), (&"r-1".into(), &"WARN".into()));
}

#[test]
fn text_is_the_default_and_has_no_colours_off_a_terminal() {
    for variables in [&[][..], &[("ONCEKEY_LOG", "text")], &[("ONCEKEY_LOG", "")]] {
        let text = logged(variables, || {
            let _span = tracing::info_span!("arrival", request_id = "r-1").entered();
            tracing::info!(event = "claimed", "won");
        });
        assert!(
            text.contains("request_id=\"r-1\"") && text.contains("event=\"claimed\""),
            "{text}"
        );
        assert!(!text.contains('\u{1b}') && text.ends_with('\n'), "{text:?}");
    }
}

#[test]
fn the_level_is_info_unless_the_variable_says_otherwise() {
    let events = || {
        tracing::debug!("quiet");
        tracing::info!("plain");
        tracing::error!("loud");
        tracing::debug!(target: "other", "elsewhere");
    };
    for (level, seen) in [
        (None, [false, true, true, false]),
        (Some("error"), [false, false, true, false]),
        (Some("warn,other=debug"), [false, false, true, true]),
        (Some("off"), [false; 4]),
    ] {
        let variables = level.map(|level| ("ONCEKEY_LOG_LEVEL", level));
        let text = logged(variables.as_slice(), events);
        let found = ["quiet", "plain", "loud", "elsewhere"].map(|word| text.contains(word));
        assert_eq!(found, seen, "{level:?}: {text}");
    }
}

#[test]
fn a_log_that_there_is_not_is_an_error_of_one_line() {
    let error = |name: &str, value: &str| {
        let read = LogSettings::read([(name.to_owned(), value.to_owned())]);
        read.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(error("ONCEKEY_LOG", "xml"), "ONCEKEY_LOG: \"xml\" is neither text nor json");
    let level = error("ONCEKEY_LOG_LEVEL", "oncekey=chatty");
    assert!(level.starts_with("ONCEKEY_LOG_LEVEL: \"oncekey=chatty\" is no filter"), "{level}");
}

#[test]
fn the_page_introduces_every_metric_and_counts_it() {
    let recorder = recorder().unwrap();
    let metrics = Metrics(recorder.handle());
    metrics::with_local_recorder(&recorder, introduce);
    let page = metrics.render();
    for line in ["oncekey_takeovers_total 0", "oncekey_fenced_total 0", "oncekey_in_progress 0"] {
        assert!(page.lines().any(|found| found == line), "{line} in:\n{page}");
    }

    metrics::with_local_recorder(&recorder, || {
        metrics::counter!("oncekey_requests_total", "outcome" => "committed").increment(2);
        metrics::counter!("oncekey_runs_total").increment(1);
        metrics::counter!("oncekey_provider_calls_total").increment(1);
        metrics::histogram!("oncekey_run_seconds").record(4.1);
        metrics::histogram!("oncekey_slot_wait_seconds").record(0.05);
        metrics::gauge!("oncekey_outbox_lag_seconds").set(7.0);
        metrics::gauge!("oncekey_partition_runway_days").set(3.0);
    });
    metrics.sum_up();
    let page = metrics.render();
    for line in [
        "oncekey_requests_total{outcome=\"committed\"} 2",
        "oncekey_run_seconds_bucket{le=\"2.5\"} 0",
        "oncekey_run_seconds_bucket{le=\"5\"} 1",
        "oncekey_slot_wait_seconds_bucket{le=\"0.1\"} 1",
        "oncekey_outbox_lag_seconds 7",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in:\n{page}");
    }
    let introduced = |word: &str| page.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!((introduced("# HELP oncekey_"), introduced("# TYPE oncekey_")), (10, 10), "{page}");
}

#[test]
fn several_servers_of_one_process_share_the_metrics() {
    let (first, second) = (collected().unwrap(), collected().unwrap());
    metrics::counter!("oncekey_requests_total", "endpoint" => "shared").increment(1);
    for metrics in [first, second] {
        let page = metrics.render();
        assert!(page.contains("oncekey_requests_total{endpoint=\"shared\"} 1\n"), "{page}");
    }
}
