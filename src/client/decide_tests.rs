//! The decisions against the table that all client libraries share.

use serde::Deserialize;

use super::*;
use crate::client::DEFAULT_TIMEOUT;
use crate::client::vectors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    waits: Vec<u64>,
    jitter: f64,
    longest_wait: u64,
    timeout: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    #[serde(default)]
    lost: bool,
    #[serde(default)]
    timed_out: bool,
    status: Option<u16>,
    #[serde(default)]
    body: Body,
    retry_after: Option<String>,
    now: Option<DateTime<Utc>>,
    #[serde(default)]
    repeats: usize,
    left: Option<u64>,
    #[serde(default)]
    chance: f64,
    expect: Expected,
}

#[derive(Default, Deserialize)]
struct Body {
    retryable: Option<bool>,
    retry_after_ms: Option<u64>,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(untagged, deny_unknown_fields)]
enum Expected {
    Again { again: u64, counts: bool },
    Stop { stop: Ending },
    Done(String),
}

impl Vector {
    fn situation(&self) -> Situation {
        match (self.lost, self.timed_out, self.status) {
            (true, false, None) => Situation::Lost,
            (false, true, None) => Situation::TimedOut,
            (false, false, Some(status)) => Situation::Answered {
                status,
                wait: told_wait(
                    self.body.retry_after_ms,
                    self.retry_after.as_deref(),
                    self.now.unwrap_or(DateTime::UNIX_EPOCH),
                ),
                retryable: self.body.retryable,
            },
            _ => panic!("{}: one situation each", self.name),
        }
    }
}

fn file() -> (Policy, RetryPolicy, Vec<Vector>) {
    let policy: Policy = vectors::section("policy");
    let vectors = vectors::section("vectors");
    let ours = RetryPolicy {
        waits: policy.waits.iter().copied().map(Duration::from_millis).collect(),
        jitter: policy.jitter,
        longest_wait: Duration::from_millis(policy.longest_wait),
    };
    (policy, ours, vectors)
}

#[test]
fn the_tables_policy_is_the_default() {
    let (file, policy, _) = file();
    assert_eq!(policy, RetryPolicy::default());
    assert_eq!(Duration::from_millis(file.timeout), DEFAULT_TIMEOUT);
}

#[test]
fn every_situation_of_the_table() {
    let (file, policy, vectors) = file();
    for vector in &vectors {
        let left = Duration::from_millis(vector.left.unwrap_or(file.timeout));
        let so_far = SoFar { repeats: vector.repeats, left };
        let decided = match decide(&policy, vector.situation(), so_far, vector.chance) {
            Decision::Done => Expected::Done("done".to_owned()),
            Decision::Again { after, counts } => {
                Expected::Again { again: after.as_millis().try_into().unwrap(), counts }
            }
            Decision::Stop(stop) => Expected::Stop { stop },
        };
        assert_eq!(decided, vector.expect, "{}", vector.name);
    }
}

#[test]
fn the_table_has_every_status_of_the_contract() {
    let (_, _, vectors) = file();
    for status in [200, 400, 401, 403, 404, 409, 410, 413, 415, 422, 429, 500, 502, 503, 504] {
        assert!(vectors.iter().any(|vector| vector.status == Some(status)), "{status}");
    }
}

#[test]
fn a_policy_without_waits_sends_once() {
    let so_far = SoFar { repeats: 0, left: DEFAULT_TIMEOUT };
    let decided = decide(&RetryPolicy::never(), Situation::Lost, so_far, 0.5);
    assert_eq!(decided, Decision::Stop(Ending::ConnectionLost));
}
