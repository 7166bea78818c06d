//! Which spans there are. They are made of what stands in the log anyway: the span of each arrival, the
//! two lines around each provider call, and spans of no other use around the claim and the commit. Only
//! fields that are named here go out, so nothing that a user wrote can.

use std::collections::HashMap;
use std::fmt;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer;
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// The room whose spans and lines are about arrivals.
const ROOM: &str = "oncekey::operation";
const ARRIVAL: &str = "arrival";
/// Within an arrival.
const PARTS: [&str; 2] = ["claim", "commit"];
/// The two lines around a provider call.
const CALL_STARTED: &str = "provider_call_started";
const CALL_ENDED: &str = "provider_call_ended";
/// The last line of an arrival, which says what came of it.
const ANSWERED: &str = "answered";

/// Attributes, by the names that they have in the log.
const KNOWN: [&str; 18] = [
    "attempts",
    "call_no",
    "calls",
    "endpoint",
    "fence",
    "key_source",
    "kind",
    "model",
    "outcome",
    "provider",
    "request_id",
    "route",
    "slot_wait_ms",
    "status",
    "stop",
    "tenant_id",
    "took_ms",
    "wait_ms",
];

/// Whether something is looked at here at all.
pub fn is_traced(metadata: &Metadata<'_>) -> bool {
    let name = metadata.name();
    metadata.target().starts_with(ROOM)
        && (metadata.is_event() || name == ARRIVAL || PARTS.contains(&name))
}

/// Makes spans for a collector.
pub struct Spans {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

/// What is kept with a span of the log.
struct Open {
    span: Span,
    /// Provider calls that have not ended, by their numbers.
    calls: Vec<(Option<i64>, Span)>,
}

impl Open {
    fn end(mut self) {
        for (_, mut call) in self.calls.drain(..) {
            call.end();
        }
        self.span.end();
    }
}

impl Spans {
    pub fn new(tracer: SdkTracer) -> Self {
        Self { tracer, propagator: TraceContextPropagator::new() }
    }

    fn start(&self, name: &'static str, kind: SpanKind, within: &Context, known: Known) -> Span {
        SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_attributes(known.attributes)
            .start_with_context(&self.tracer, within)
    }

    /// The span of a client that has told it, or none.
    fn parent_told(&self, told: Option<String>) -> Context {
        let told = told.map(|told| ("traceparent".to_owned(), told));
        let carrier: HashMap<String, String> = told.into_iter().collect();
        self.propagator.extract_with_context(&Context::new(), &carrier)
    }
}

fn within(span: &Span) -> Context {
    Context::new().with_remote_span_context(span.span_context().clone())
}

impl<S> layer::Layer<S> for Spans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: layer::Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut known = Known::default();
        attributes.record(&mut known);
        let outer = span.scope().skip(1).find_map(|outer| {
            let extensions = outer.extensions();
            extensions.get::<Open>().map(|open| within(&open.span))
        });
        let (kind, parent) = match outer {
            Some(outer) => (SpanKind::Internal, outer),
            None => (SpanKind::Server, self.parent_told(known.traceparent.take())),
        };
        let span_out = self.start(attributes.metadata().name(), kind, &parent, known);
        span.extensions_mut().insert(Open { span: span_out, calls: Vec::new() });
    }

    fn on_event(&self, event: &Event<'_>, context: layer::Context<'_, S>) {
        let scope = context.event_scope(event);
        let Some(arrival) = scope.and_then(|mut scope| scope.find(is_arrival)) else { return };
        let mut known = Known::default();
        event.record(&mut known);
        let mut extensions = arrival.extensions_mut();
        let Some(open) = extensions.get_mut::<Open>() else { return };
        match known.event.as_str() {
            "" => {}
            CALL_STARTED => {
                let number = known.number("call_no");
                let call =
                    self.start("provider_call", SpanKind::Client, &within(&open.span), known);
                open.calls.push((number, call));
            }
            CALL_ENDED => {
                let number = known.number("call_no");
                let place = open.calls.iter().position(|(open, _)| *open == number);
                let Some((_, mut call)) = place.map(|place| open.calls.swap_remove(place)) else {
                    return;
                };
                if known.attributes.iter().any(|known| known.key.as_str() == "kind") {
                    call.set_status(Status::error(""));
                }
                call.set_attributes(known.attributes);
                call.end();
            }
            ANSWERED => {
                if known.number("status").is_some_and(|status| status >= 500) {
                    open.span.set_status(Status::error(""));
                }
                open.span.set_attributes(known.attributes);
            }
            _ => open.span.add_event(known.event, known.attributes),
        }
    }

    fn on_close(&self, id: Id, context: layer::Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let open = span.extensions_mut().remove::<Open>();
        if let Some(open) = open {
            open.end();
        }
    }
}

fn is_arrival<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>) -> bool {
    span.name() == ARRIVAL
}

/// The fields that may go out, and those that steer.
#[derive(Default)]
struct Known {
    attributes: Vec<KeyValue>,
    event: String,
    traceparent: Option<String>,
}

impl Known {
    fn take(&mut self, field: &Field, value: impl Into<Value>) {
        if KNOWN.contains(&field.name()) {
            self.attributes.push(KeyValue::new(field.name(), value));
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        let found = self.attributes.iter().find(|known| known.key.as_str() == name)?;
        match found.value {
            Value::I64(number) => Some(number),
            _ => None,
        }
    }
}

impl Visit for Known {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.take(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.take(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => value.clone_into(&mut self.event),
            "traceparent" => self.traceparent = Some(value.to_owned()),
            _ => self.take(field, value.to_owned()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "traceparent" => self.traceparent = Some(format!("{value:?}")),
            name if KNOWN.contains(&name) => self.take(field, format!("{value:?}")),
            _ => {}
        }
    }
}
