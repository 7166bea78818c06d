//! Problems against the table that all client libraries share.

use super::*;
use crate::client::vectors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    status: Option<u16>,
    body: String,
    /// The status that is read, where that is another.
    told: Option<u16>,
    error: String,
    detail: String,
    reason: Option<String>,
    request_id: Option<String>,
    retryable: Option<bool>,
    retry_after_ms: Option<u64>,
    said: String,
}

#[test]
fn every_problem_of_the_table() {
    for row in vectors::section::<Vec<Row>>("problems") {
        let read = Problem::read(row.status, row.body.as_bytes());
        let expected = Problem {
            status: row.told.or(row.status).unwrap(),
            error: row.error,
            title: read.title.clone(),
            detail: row.detail,
            reason: row.reason,
            request_id: row.request_id,
            retryable: row.retryable,
            retry_after: row.retry_after_ms.map(Duration::from_millis),
        };
        assert_eq!(read, expected, "{}", row.name);
        assert_eq!(read.to_string(), row.said, "{}", row.name);
    }
}
