//! What operators see: log lines on standard error, metrics, and traces where a collector is named.
//!
//! Both are process-wide, since that is what their crates offer; setting up twice keeps what is
//! there, so that several servers in one process share it.

mod json;
mod otlp;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
pub use otlp::Traces;
use tracing::Subscriber;
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, filter};

/// `json`, or by default `text`.
const FORMAT: &str = "ONCEKEY_LOG";
/// A level, or what is known from `RUST_LOG`: `info,oncekey::operation=debug`.
const LEVEL: &str = "ONCEKEY_LOG_LEVEL";

/// A variable that asks for a log that there is not.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{FORMAT}: {0:?} is neither text nor json")]
    Format(String),
    #[error("{LEVEL}: {0:?} is no filter: write it like info or info,oncekey::store=debug")]
    Level(String),
}

/// Sets up the log as the variables ask: text or, with `ONCEKEY_LOG=json`, an object a line; from
/// level `info` on, or as `ONCEKEY_LOG_LEVEL` says. Panics are logged as well from then on.
///
/// Traces begin with it where OpenTelemetry's variables name a collector; they are to be ended with
/// the process. Called within the runtime.
pub fn log(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Option<Traces>, LogError> {
    let variables: Vec<_> = variables.into_iter().collect();
    let settings = LogSettings::read(variables.clone())?;
    let traces = otlp::traces(variables);
    let spans = traces.as_ref().ok().and_then(Option::as_ref).map(Traces::layer);
    let subscriber = settings.subscriber(io::stderr, io::stderr().is_terminal(), spans);
    // Refused where there is one already, which stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
    std::panic::set_hook(Box::new(log_panic));
    Ok(traces.unwrap_or_else(|error| {
        tracing::warn!(event = "traces_off", %error, "there are no traces");
        None
    }))
}

/// A panic as a line like any other, with the ids of the arrival that it happened in. Of its text
/// only what stands in the program: what was put together may show what a client sent.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    let text = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or_default();
    let trace = Backtrace::capture();
    let trace =
        (trace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(trace));
    tracing::error!(event = "panic", at, text, trace, "panicked");
}

struct LogSettings {
    json: bool,
    filter: EnvFilter,
}

impl LogSettings {
    fn read(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<LogSettings, LogError> {
        let (mut json, mut level) = (false, "info".to_owned());
        for (name, value) in variables {
            match (name.as_str(), value.as_str()) {
                (FORMAT | LEVEL, "") => {}
                (FORMAT, "text") => json = false,
                (FORMAT, "json") => json = true,
                (FORMAT, _) => return Err(LogError::Format(value)),
                (LEVEL, _) => level = value,
                _ => {}
            }
        }
        let filter = EnvFilter::builder().parse(&level).map_err(|_| LogError::Level(level))?;
        Ok(LogSettings { json, filter })
    }

    fn subscriber<W>(
        self,
        writer: W,
        colours: bool,
        spans: Option<otlp::Spans>,
    ) -> Box<dyn Subscriber + Send + Sync>
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        if let Some(spans) = spans {
            // Two readers with a filter each: what the log leaves out may be a span's.
            let text = layer().with_writer(writer);
            let log: Box<dyn Layer<Registry> + Send + Sync> = if self.json {
                Box::new(text.fmt_fields(json::fields()).event_format(json::Lines))
            } else {
                Box::new(text.with_ansi(colours))
            };
            let spans = spans.with_filter(filter::filter_fn(otlp::is_traced));
            return Box::new(Registry::default().with(log.with_filter(self.filter)).with(spans));
        }
        let text = tracing_subscriber::fmt().with_env_filter(self.filter).with_writer(writer);
        if self.json {
            Box::new(text.fmt_fields(json::fields()).event_format(json::Lines).finish())
        } else {
            Box::new(text.with_ansi(colours).finish())
        }
    }
}

/// The metrics of the process.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// All of them, in Prometheus's text format.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Sums up what histograms were told since. Where nobody asks for the metrics, what they are
    /// told is kept until then, so this is to be called every few seconds.
    pub fn sum_up(&self) {
        self.0.run_upkeep();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// Something else in this process collects metrics already, or a table below is wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the metrics cannot be collected: {0}")]
pub struct MetricsError(String);

/// Collects metrics from the first call on; later calls give the same ones.
pub fn metrics() -> Result<Metrics, MetricsError> {
    static INSTALLED: OnceLock<Result<Metrics, MetricsError>> = OnceLock::new();
    INSTALLED.get_or_init(|| install().map_err(|error| MetricsError(error.to_string()))).clone()
}

fn install() -> Result<Metrics, Box<dyn Error>> {
    let recorder = recorder()?;
    let metrics = Metrics(recorder.handle());
    metrics::set_global_recorder(recorder)?;
    introduce();
    Ok(metrics)
}

fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in [(RUN_SECONDS, RUN_BUCKETS), (SLOT_WAIT_SECONDS, SLOT_WAIT_BUCKETS)] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
    }
    Ok(builder.build_recorder())
}

const TAKEOVERS: &str = "oncekey_takeovers_total";
const FENCED: &str = "oncekey_fenced_total";
const IN_PROGRESS: &str = "oncekey_in_progress";
const RUN_SECONDS: &str = "oncekey_run_seconds";
const SLOT_WAIT_SECONDS: &str = "oncekey_slot_wait_seconds";

/// Seconds: chats take 4 to 34, parses of long plays up to 310, the longest honest run 1,600.
const RUN_BUCKETS: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_600.0];
/// Seconds: mostly none, at most `slot_wait`, by default 30.
const SLOT_WAIT_BUCKETS: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0];

/// Tells the recorder what there will be.
fn introduce() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("oncekey_requests_total", "Arrivals, by where their key is from and outcome");
    describe_counter!("oncekey_runs_total", "Runs that ended, by verdict and kind of failure");
    describe_counter!(
        "oncekey_provider_calls_total",
        "Calls of model providers, by how they ended"
    );
    describe_counter!(
        "oncekey_near_identical_total",
        "Arrivals that ask what was asked under another key less than a minute ago"
    );
    describe_counter!(
        "oncekey_client_retries_total",
        "Arrivals that their client calls a repeat, by outcome"
    );
    describe_counter!(TAKEOVERS, "Runs taken over from an owner that was silent or dead");
    describe_counter!(FENCED, "Runs that found themselves replaced when they wanted to write");
    describe_counter!(
        "oncekey_run_ends_total",
        "Runs that make no further call, by how they came to that"
    );
    describe_counter!(
        "oncekey_refused_from_memory_total",
        "Inputs refused without a call, because they failed before"
    );
    describe_counter!("oncekey_latched_total", "Times a provider was left alone for a while");
    describe_counter!("oncekey_closed_total", "Times a provider was out of credit");
    describe_gauge!("oncekey_slots_allowed", "Calls that a provider gets at once");
    describe_gauge!("oncekey_slots_in_use", "Calls under way at a provider");
    describe_gauge!("oncekey_slots_waiting", "Calls that wait for a slot");
    describe_gauge!(IN_PROGRESS, "Runs in progress in this node");
    describe_histogram!(RUN_SECONDS, "From the claim of a run to its verdict");
    describe_histogram!(SLOT_WAIT_SECONDS, "How long a provider call waited for a slot");
    describe_gauge!(
        "oncekey_outbox_lag_seconds",
        "Age of the oldest event that waits for delivery"
    );
    describe_gauge!("oncekey_outbox_dead", "Events that were given up");
    describe_gauge!("oncekey_outbox_sink_up", "Whether a sink takes events");
    describe_counter!("oncekey_outbox_published_total", "Events that a sink took");
    describe_counter!(
        "oncekey_outbox_failed_total",
        "Deliveries that a sink did not take, by kind"
    );
    describe_gauge!("oncekey_partition_runway_days", "Days ahead of today that have a partition");
    describe_gauge!(
        "oncekey_partition_overdue_days",
        "Days since the oldest partition that is still there could have gone; 0: none could"
    );
    describe_counter!(
        "oncekey_keeper_failures_total",
        "What the keeper of partitions could not do, and arrivals without a partition for today"
    );

    // Those without labels are there from the start: a rate of what does not exist is no alert.
    metrics::counter!(TAKEOVERS).increment(0);
    metrics::counter!(FENCED).increment(0);
    metrics::gauge!(IN_PROGRESS).increment(0.0);
}

#[cfg(test)]
mod tests;
