//! What an arrival gets that finds a record. The order of questions is fixed: tenant → key → hash →
//! state; whoever asks for the state first replays an answer to another question.

use std::time::Duration;

use super::failure::FailureKind;
use super::hash::RequestHash;
use super::liveness::{Liveness, LivenessRules};
use super::record::{Record, State, StoredAnswer};
use super::retry::{ArrivalFacts, GiveUpReason, RetryRules, give_up};

/// What to do with an arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Another request under the same key; says nothing of the first.
    KeyReused,
    Replay(StoredAnswer),
    Erased,
    /// Alive; `so_far` is what this run has had.
    InProgress {
        so_far: Duration,
    },
    /// In progress, but nobody runs it.
    TakeOver(Liveness),
    /// A passing failure. A run that was released or cancelled is not held against the operation.
    ClaimAgain {
        counts: bool,
    },
    /// Either of the last two, but enough is enough.
    GiveUp(GiveUpReason),
}

/// Decides on facts alone.
pub fn decide(
    record: &Record,
    hash: &RequestHash,
    liveness: &LivenessRules,
    retry: &RetryRules,
) -> Decision {
    if record.request_hash != *hash {
        return Decision::KeyReused;
    }
    if record.erased {
        return Decision::Erased;
    }
    match &record.state {
        State::Committed(Some(answer)) | State::FailedFinal(Some(answer)) => {
            Decision::Replay(answer.clone())
        }
        State::Committed(None) | State::FailedFinal(None) => Decision::Erased,
        State::InProgress => match liveness.judge(&record.liveness) {
            Liveness::Alive => Decision::InProgress {
                so_far: (record.liveness.now - record.claimed_at).to_std().unwrap_or_default(),
            },
            gone @ (Liveness::Silent | Liveness::OwnerGone) => {
                enough(record, retry, true).map_or(Decision::TakeOver(gone), Decision::GiveUp)
            }
        },
        State::FailedPassing => {
            let counts = counts(record.failure_kind.as_deref());
            enough(record, retry, counts).map_or(Decision::ClaimAgain { counts }, Decision::GiveUp)
        }
    }
}

/// A run that ended by our own or somebody's will says nothing of the operation.
fn counts(kind: Option<&str>) -> bool {
    !matches!(
        kind.and_then(FailureKind::parse),
        Some(FailureKind::Released | FailureKind::Cancelled)
    )
}

fn enough(record: &Record, retry: &RetryRules, last_counted: bool) -> Option<GiveUpReason> {
    let facts = ArrivalFacts {
        runs: record.attempts - u32::from(!last_counted && record.attempts > 0),
        first_claimed_at: record.first_claimed_at,
        resume_at: record.liveness.now,
        quota_hits: record.quota_hits,
    };
    give_up(&facts, retry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{Fence, OperationId, RequestId, TenantId};
    use crate::domain::liveness::{LivenessFacts, Owner};
    use crate::domain::record::{Guard, RecordKey};
    use chrono::{DateTime, TimeDelta};
    use uuid::Uuid;

    const HASH: RequestHash = RequestHash([7; 32]);
    const LIVENESS: LivenessRules =
        LivenessRules { stale_after: Duration::from_secs(60), grace: Duration::from_secs(12) };

    fn rules() -> RetryRules {
        RetryRules {
            max_attempts: 4,
            max_corrections: u32::MAX,
            total_wait: Duration::from_secs(8),
            give_up_after: Duration::from_secs(3 * 3_600),
            max_runs: 6,
        }
    }

    fn record(state: State, silent_s: i64) -> Record {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        Record {
            at: RecordKey { tenant: TenantId::new("t1"), key: Uuid::nil(), day: now.date_naive() },
            guard: Guard { fence: Fence(1), request_id: RequestId(Uuid::nil()) },
            operation_id: OperationId(Uuid::nil()),
            endpoint: "chat".into(),
            key_source: "client".into(),
            subject: None,
            conversation_id: None,
            request_hash: HASH,
            state,
            attempts: 1,
            quota_hits: 0,
            failure_kind: None,
            first_claimed_at: now - TimeDelta::seconds(100),
            claimed_at: now - TimeDelta::seconds(100),
            completed_at: None,
            erased: false,
            liveness: LivenessFacts {
                now,
                heartbeat_at: now - TimeDelta::seconds(silent_s),
                owner: Owner::Registered,
                epoch: Some(now - TimeDelta::days(1)),
            },
        }
    }

    fn decision(record: &Record) -> Decision {
        decide(record, &HASH, &LIVENESS, &rules())
    }

    fn failed(kind: &str) -> Record {
        Record { failure_kind: Some(kind.into()), ..record(State::FailedPassing, 1) }
    }

    #[test]
    fn the_hash_is_asked_before_the_state_in_every_state() {
        let answer = StoredAnswer { status: 200, body: b"{}".to_vec() };
        for state in [
            State::InProgress,
            State::Committed(Some(answer.clone())),
            State::FailedFinal(Some(answer)),
            State::Committed(None),
            State::FailedPassing,
        ] {
            let record = record(state, 500);
            let other = RequestHash([8; 32]);
            assert_eq!(decide(&record, &other, &LIVENESS, &rules()), Decision::KeyReused);
        }
    }

    #[test]
    fn a_living_run_is_left_alone_and_a_silent_one_taken_over() {
        let so_far = Duration::from_secs(100);
        assert_eq!(decision(&record(State::InProgress, 9)), Decision::InProgress { so_far });
        assert_eq!(decision(&record(State::InProgress, 61)), Decision::TakeOver(Liveness::Silent));
    }

    #[test]
    fn a_passing_failure_never_stays() {
        assert_eq!(decision(&failed("overloaded")), Decision::ClaimAgain { counts: true });
        assert_eq!(decision(&failed("abandoned")), Decision::ClaimAgain { counts: true });
        assert_eq!(decision(&failed("released")), Decision::ClaimAgain { counts: false });
        assert_eq!(decision(&failed("cancelled")), Decision::ClaimAgain { counts: false });
    }

    #[test]
    fn giving_up_looks_at_runs_and_at_time() {
        let used_up = Record { attempts: 6, ..failed("transient") };
        let reason = GiveUpReason::RunsUsedUp { runs: 6, max_runs: 6 };
        assert_eq!(decision(&used_up), Decision::GiveUp(reason));
        let released = Record { attempts: 6, ..failed("released") };
        assert_eq!(decision(&released), Decision::ClaimAgain { counts: false });
        let dead = Record { attempts: 6, ..record(State::InProgress, 61) };
        assert_eq!(decision(&dead), Decision::GiveUp(reason));
        let mut late = failed("transient");
        late.first_claimed_at = late.liveness.now - TimeDelta::seconds(3 * 3_600 + 1);
        assert!(matches!(decision(&late), Decision::GiveUp(GiveUpReason::TooLate { .. })));
    }
}
