//! The CloudEvents 1.0 envelope of an event, in structured mode.

use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Event;

/// Where events come from; together with their id it is unique.
const SOURCE: &str = "/oncekey";

#[derive(Serialize)]
struct Envelope<'a> {
    specversion: &'a str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    subject: &'a str,
    time: String,
    datacontenttype: &'a str,
    tenantid: &'a str,
    aggregatetype: &'a str,
    data: &'a RawValue,
}

/// The event as one line of JSON, the same bytes at every delivery.
///
/// # Errors
/// The payload is no JSON, which no column of the type `jsonb` holds.
pub fn cloud_event(event: &Event) -> Result<String, serde_json::Error> {
    let data: &RawValue = serde_json::from_str(&event.payload)?;
    serde_json::to_string(&Envelope {
        specversion: "1.0",
        id: event.id.to_string(),
        source: SOURCE,
        kind: &event.kind,
        subject: &event.aggregate_id,
        time: event.created_at.to_rfc3339_opts(SecondsFormat::Micros, true),
        datacontenttype: "application/json",
        tenantid: event.tenant.as_str(),
        aggregatetype: &event.aggregate_type,
        data,
    })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::ids::{EventId, TenantId};

    fn event(payload: &str) -> Event {
        Event {
            tenant: TenantId::new("acme"),
            id: EventId(Uuid::from_u128(7)),
            aggregate_type: "conversation".into(),
            aggregate_id: "c \"1\"\n".into(),
            kind: "call_completed".into(),
            payload: payload.into(),
            created_at: "2026-08-19T00:36:57.123456Z".parse().unwrap(),
        }
    }

    #[test]
    fn it_has_the_attributes_of_the_standard_and_the_payload_as_it_is() {
        let payload =
            r#"{"cost_usd": 0.000000100, "usage": {"input_tokens": 12345678901234567890}}"#;
        let line = cloud_event(&event(payload)).unwrap();
        assert_eq!(
            line,
            format!(
                "{{\"specversion\":\"1.0\",\"id\":\"{}\",\"source\":\"/oncekey\",\
                 \"type\":\"call_completed\",\"subject\":\"c \\\"1\\\"\\n\",\
                 \"time\":\"2026-08-19T00:36:57.123456Z\",\"datacontenttype\":\"application/json\",\
                 \"tenantid\":\"acme\",\"aggregatetype\":\"conversation\",\"data\":{payload}}}",
                Uuid::from_u128(7)
            )
        );
        assert!(!line.contains('\n'), "one line");
        assert!(cloud_event(&event("{")).is_err());
    }
}
