//! Log lines as objects for machines: the fields of an event and of every span around it side by
//! side, so that `request_id` is found in one place whoever logs.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// How spans keep their fields until an event needs them.
pub(super) fn fields() -> JsonFields {
    JsonFields::new()
}

/// Writes an event as one line.
pub(super) struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Fields::default();
        // From the outermost span inwards: the nearest one that names a field has the last word.
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let Some(fields) = extensions.get::<FormattedFields<N>>() else { continue };
            if let Ok(Value::Object(fields)) = serde_json::from_str(&fields.fields) {
                line.0.extend(fields);
            }
        }
        event.record(&mut line);

        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let metadata = event.metadata();
        line.put("timestamp", timestamp);
        line.put("level", metadata.level().as_str());
        line.put("target", metadata.target());
        writeln!(writer, "{}", Value::Object(line.0))
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    /// `Duration::as_millis` gives these; beyond 64 bits no reader of JSON follows.
    fn record_u128(&mut self, field: &Field, value: u128) {
        match u64::try_from(value) {
            Ok(value) => self.put(field.name(), value),
            Err(_) => self.put(field.name(), value.to_string()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}
