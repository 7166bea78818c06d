//! Bytes as events, against the table that all client libraries share.

use super::*;
use crate::client::vectors;

#[derive(serde::Deserialize)]
struct Row {
    name: String,
    text: String,
    events: Vec<Expected>,
}

#[derive(serde::Deserialize, Debug, PartialEq)]
struct Expected {
    id: Option<String>,
    event: String,
    data: String,
}

#[tokio::test]
async fn every_stream_of_bytes_of_the_table_however_it_is_cut() {
    for row in vectors::section::<Vec<Row>>("events") {
        for size in [1, 2, 3, 7, row.text.len()] {
            let pieces: Vec<Result<Bytes, std::convert::Infallible>> =
                row.text.as_bytes().chunks(size).map(|it| Ok(Bytes::copy_from_slice(it))).collect();
            let body = reqwest::Body::wrap_stream(stream::iter(pieces));
            let response = Response::from(hyper::Response::new(body));
            let mut events = Events::new(response, Duration::from_secs(45), Clock::system());
            let mut heard = Vec::new();
            while let Some(event) = events.next().await {
                let Event { id, name, data } = event.unwrap_or_else(|Broken(why)| panic!("{why}"));
                heard.push(Expected { id, event: name, data });
            }
            assert_eq!(heard, row.events, "{} in pieces of {size}", row.name);
        }
    }
}
