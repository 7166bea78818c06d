//! The store alone, as many at once as a race needs: claims and commits without a provider, with the
//! clock of each on the side of midnight that the test wants.

use std::sync::Arc;
use std::time::Duration;

use oncekey::clock::Clock;
use oncekey::domain::chat::ENDPOINT;
use oncekey::domain::hash::RequestHash;
use oncekey::domain::ids::{
    ConversationId, EventId, NodeId, OperationId, RequestId, Subject, TenantId, TurnId,
};
use oncekey::domain::key::{IdempotencyKey, KeySource};
use oncekey::domain::liveness::LivenessRules;
use oncekey::domain::record::Record;
use oncekey::domain::usage::{Usage, UsageSource};
use oncekey::store::{
    BeatingRun, CallRow, ChatCommit, Claim, ClaimOutcome, Counting, Failure, NewClaim, NodeSession,
    ReclaimOutcome, Registration, Store, StoreSettings,
};
use uuid::Uuid;

use super::database::{TestDatabase, coalesces};

/// The contract's times: nothing in a test grows stale by itself.
pub const LIVENESS: LivenessRules =
    LivenessRules { stale_after: Duration::from_secs(60), grace: Duration::from_secs(12) };

/// A store whose clock is ahead by `offset` where a day is computed.
pub fn store_at(database: &TestDatabase, offset: Duration) -> Store {
    let settings = StoreSettings {
        url: database.url.clone(),
        direct_url: None,
        pool_size: 8,
        coalesce: coalesces(),
        liveness: LIVENESS,
        clock_offset: offset,
    };
    Store::new(settings, Clock::system()).unwrap()
}

/// A store that claims under a registered node, with today's partition, on a database that has been
/// up for long: silence and unknown owners count.
pub async fn living_store(database: &TestDatabase) -> (Store, NodeSession) {
    let store = store_at(database, Duration::ZERO);
    store.ensure_partitions().await.unwrap();
    let session = register(&store).await.1;
    database.age_epoch().await;
    (store, session)
}

/// Registers a new node, under which `store` claims from now on.
pub async fn register(store: &Store) -> (NodeId, NodeSession) {
    let node = store.new_node_id().await.unwrap();
    let mut session = store.open_node_session().await.unwrap();
    let registered = session.register(node, "http://127.0.0.1:1").await.unwrap();
    assert_eq!(registered, Registration::Registered);
    store.set_node(node);
    (node, session)
}

/// An arrival of tenant `t1` at this key and conversation.
pub fn arrival(key: Uuid, conversation: &str) -> NewClaim {
    let clock = Clock::system();
    NewClaim {
        tenant: TenantId::new("t1"),
        key: IdempotencyKey { id: key, source: KeySource::Client, text: None },
        endpoint: ENDPOINT,
        subject: None,
        conversation_id: Some(ConversationId::new(conversation)),
        hash: RequestHash([7; 32]),
        operation_id: OperationId(clock.new_id()),
        request_id: RequestId(clock.new_id()),
    }
}

/// The same arrival on behalf of an end user.
pub fn of_subject(mut arrival: NewClaim, subject: &str) -> NewClaim {
    arrival.subject = Some(Subject::new(subject));
    arrival
}

/// A claim that must be won.
pub async fn won(store: &Store, arrival: NewClaim) -> Claim {
    match store.claim(arrival).await.unwrap() {
        ClaimOutcome::Won(claim) => claim,
        other => panic!("not won: {other:?}"),
    }
}

/// What stands under a claim's key.
pub async fn record(store: &Store, claim: &Claim) -> Record {
    store.record(claim.at.tenant.clone(), claim.at.key).await.unwrap().unwrap()
}

/// Claims again, or takes over, what stands there.
pub async fn reclaimed(store: &Store, found: Record) -> ReclaimOutcome {
    let request_id = RequestId(Clock::system().new_id());
    store.reclaim(Arc::new(found), request_id, Counting::Counts).await.unwrap()
}

/// A takeover that must be won.
pub async fn taken_over(store: &Store, claim: &Claim) -> Claim {
    match reclaimed(store, record(store, claim).await).await {
        ReclaimOutcome::Won(claim) => claim,
        other => panic!("not taken over: {other:?}"),
    }
}

pub fn beating(claim: &Claim) -> BeatingRun {
    BeatingRun { at: claim.at.clone(), guard: claim.guard }
}

/// The good end of a run, with one call that told its tokens.
pub fn chat_commit(claim: &Claim, message: &str, answer: &str) -> Arc<ChatCommit> {
    let clock = Clock::system();
    let usage = Usage { input_tokens: Some(3), output_tokens: Some(5), ..Usage::default() };
    let event_payload = serde_json::json!({
        "operation_id": claim.operation_id, "request_id": claim.guard.request_id,
    });
    Arc::new(ChatCommit {
        at: claim.at.clone(),
        guard: claim.guard,
        based_on_seq: claim.head_seq,
        response: answer.as_bytes().to_vec(),
        user_turn: TurnId(clock.new_id()),
        assistant_turn: TurnId(clock.new_id()),
        message: message.to_owned(),
        answer: answer.to_owned(),
        metadata: None,
        model: "default".to_owned(),
        usage,
        usage_source: UsageSource::Provider,
        cost: None,
        price: None,
        event: EventId(clock.new_id()),
        event_payload: event_payload.to_string(),
        calls: vec![CallRow {
            call_no: 1,
            counted: true,
            provider: "main".to_owned(),
            model: "default".to_owned(),
            route: "direct".to_owned(),
            status: Some(200),
            failure_kind: None,
            changed: None,
            waited: std::time::Duration::ZERO,
            usage,
            cost: None,
            price: None,
            started_at: clock.utc_now(),
            ended_at: clock.utc_now(),
        }],
    })
}

/// The passing end of a run, with one call that came to nothing.
pub fn failure(claim: &Claim, kind: &'static str) -> Failure {
    let calls = chat_commit(claim, "", "").calls.clone();
    let calls =
        calls.into_iter().map(|call| CallRow { counted: false, failure_kind: Some(kind), ..call });
    Failure {
        at: claim.at.clone(),
        guard: claim.guard,
        operation_id: claim.operation_id,
        kind,
        answer: None,
        quota_hit: false,
        refused_by: None,
        calls: calls.collect(),
    }
}
