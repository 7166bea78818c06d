//! Scenes from plays, parsed by the simulated model from end to end: as one piece and as several, pasted
//! and as files, they become what a careful reader finds in them.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::fixture;

const SCENES: [&str; 3] = ["earnest", "hamlet", "dolls_house"];

fn scene(name: &str) -> (Vec<u8>, Value) {
    let expected = fixture(&format!("scenes/{name}.json"));
    (fixture(&format!("scenes/{name}.txt")), serde_json::from_slice(&expected).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn scenes_become_what_a_careful_reader_finds() {
    let database = TestDatabase::new().await;
    // The second cuts each scene in several pieces, none of which is shorter than a speech.
    for (chars, calls) in [("12000", 3), ("600", 4)] {
        let options = NodeOptions::default()
            .set("ONCEKEY_PARSE__CHUNK_CHARS", chars)
            .set("ONCEKEY_PROVIDERS__MAIN__KIND", "simulated")
            .set("ONCEKEY_PROVIDERS__MAIN__TOKENS_PER_SECOND", "4000000")
            .set("ONCEKEY_MODELS__DEFAULT__PROVIDER", "main");
        let node = TestNode::start_with(&database, Vec::new(), options).await;
        let client = node.client(&format!("t{chars}")).await;
        for name in SCENES {
            let (file, expected) = scene(name);
            let raw = client.parse_file(Uuid::new_v4(), &file, "text/plain", "").await;
            assert_eq!(raw.json()["result"], expected, "{name} at {chars}");
            assert_eq!(raw.json()["gaps"], json!([]));
        }
        let made = format!(
            "select sum(provider_calls)::bigint from usage_receipts where tenant_id = 't{chars}'"
        );
        assert!(
            database.count(&made).await >= calls,
            "{} calls at {chars}",
            database.count(&made).await
        );
        let (file, expected) = scene(SCENES[0]);
        let text = String::from_utf8(file).unwrap();
        let pasted = client.parse(Uuid::new_v4(), &text).await;
        assert_eq!(pasted.json()["result"], expected);
        assert_clean(node.store()).await;
        assert!(node.shut_down().await);
    }
}
