//! `oncekey audit` finds every way in which an invariant can be broken, names it, and finds nothing in
//! what the product, the retention and a deletion leave.

use std::collections::BTreeSet;

use oncekey::domain::ids::TenantId;
use oncekey::store::{INVARIANTS, Store};
use uuid::Uuid;

use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, TestNode, assert_clean};
use crate::support::provider::{Reply, ScriptedProvider};

/// What a break is tried on: two tenants, a conversation of two operations, one that failed for good,
/// one that failed in passing and was not asked again, one that took two calls, one that was deleted.
pub async fn lived_in() -> TestDatabase {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let options = NodeOptions::default()
        .set("ONCEKEY_RETRY__MAX_ATTEMPTS", "2")
        .set("ONCEKEY_RETRY__TOTAL_WAIT", "2s");
    let node = TestNode::start(&database, &provider, options).await;
    let (one, two) = (node.client("t1").await, node.client("t2").await);
    let ask = async |conversation: &str, status: u16| {
        assert_eq!(one.chat(Uuid::new_v4(), conversation, "hello").await.status, status);
    };
    ask("c1", 200).await;
    ask("c1", 200).await;
    provider.reply(Reply::file("400_context_anthropic.json"));
    ask("c2", 413).await;
    provider.reply_times(2, &Reply::reset());
    ask("c2", 502).await;
    provider.reply(Reply::reset());
    ask("c2", 200).await;
    ask("gone", 200).await;
    let deleted = one.send(one.request("DELETE", "/v1/conversations/gone")).await.unwrap();
    assert_eq!(deleted.status, 204);
    assert_eq!(two.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert_clean(node.store()).await;
    assert!(node.shut_down().await);
    database
}

/// The names of what is broken.
async fn broken(store: &Store, tenant: Option<&str>) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for invariant in INVARIANTS {
        let findings = store.broken(invariant, tenant.map(TenantId::new)).await.unwrap();
        if !findings.is_empty() {
            names.insert(invariant.name);
        }
    }
    names
}

const TABLES: [&str; 7] = [
    "request_keys",
    "request_records",
    "conversations",
    "turns",
    "usage_receipts",
    "provider_calls",
    "outbox",
];

/// Breaks something, says what is found, and mends it again.
struct Breaker {
    database: TestDatabase,
    store: Store,
}

impl Breaker {
    async fn new() -> Self {
        let database = lived_in().await;
        for table in TABLES {
            database.execute(&format!("create table saved_{table} as table {table}")).await;
        }
        let store = database.store();
        Self { database, store }
    }

    async fn assert_finds(&self, breaking: &str, expected: &[&'static str]) {
        self.database.execute(breaking).await;
        let expected: BTreeSet<&'static str> = expected.iter().copied().collect();
        assert_eq!(broken(&self.store, None).await, expected, "after {breaking}");
        for table in TABLES {
            let mend = format!("truncate {table}; insert into {table} select * from saved_{table}");
            self.database.execute(&mend).await;
        }
        assert_eq!(broken(&self.store, None).await, BTreeSet::new(), "mended after {breaking}");
    }
}

/// The last operation of `t1` in `c1`.
const LAST: &str = "tenant_id = 't1' and operation_id = (select operation_id from turns
    where tenant_id = 't1' and conversation_id = 'c1' order by seq desc limit 1)";
/// The operation of `t1` in `c2` that failed for good.
const FAILED: &str =
    "tenant_id = 't1' and conversation_id = 'c2' and state = 'failed' and failure_final";

/// All columns of a receipt but those that a copy changes.
const RECEIPT: &str = "request_id, idempotency_key, endpoint, subject, model, input_tokens,
    cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, usage_source, cost_usd,
    event_id, record_day, created_at";
const TURN: &str = "turn_id, content, based_on_seq, operation_id, request_id, metadata, created_at";
const EVENT: &str = "tenant_id, aggregatetype, aggregateid, type";

#[tokio::test(flavor = "multi_thread")]
async fn records_and_receipts_that_do_not_match_are_found() {
    let breaker = Breaker::new().await;
    let receipts = |change: &str| format!("update usage_receipts set {change} where {LAST}");
    for (breaking, found) in [
        (
            format!("delete from usage_receipts where {LAST}"),
            &["one_receipt", "turn_of_a_receipt", "event_of_a_receipt", "tokens_of_calls"][..],
        ),
        (
            receipts("request_id = gen_random_uuid()"),
            &[
                "one_receipt",
                "receipt_of_a_record",
                "turn_of_a_receipt",
                "event_of_a_receipt",
                "tokens_of_calls",
            ],
        ),
        // As if it were of a day that the retention has taken away.
        (receipts("record_day = record_day - 90"), &["one_receipt"]),
        (receipts("idempotency_key = gen_random_uuid()"), &["one_receipt", "receipt_of_a_record"]),
        // A second one under the same key.
        (
            format!(
                "insert into usage_receipts (tenant_id, operation_id, provider_calls, {RECEIPT})
                select tenant_id, gen_random_uuid(), provider_calls, {RECEIPT}
                from usage_receipts where {LAST}"
            ),
            &["receipt_of_a_record", "tokens_of_calls"],
        ),
        // The record says that it failed, or is not there.
        (
            format!(
                "update request_records set state = 'failed', failure_final = false,
                    failure_kind = 'transient', response = null, response_status = null
                where {LAST}"
            ),
            &["receipt_of_a_record"],
        ),
        (
            format!(
                "delete from request_keys where (tenant_id, idempotency_key) in
                    (select tenant_id, idempotency_key from request_records where {LAST});
                delete from request_records where {LAST}"
            ),
            &["receipt_of_a_record"],
        ),
        // An operation that failed has none.
        (
            format!(
                "insert into usage_receipts (tenant_id, operation_id, request_id, idempotency_key,
                    endpoint, model, usage_source, provider_calls, event_id, record_day)
                select tenant_id, operation_id, request_id, idempotency_key, endpoint, 'default',
                    'unknown', 0, gen_random_uuid(), day from request_records where {FAILED}"
            ),
            &["receipt_of_a_record"],
        ),
    ] {
        breaker.assert_finds(&breaking, found).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_do_not_match_are_found() {
    let breaker = Breaker::new().await;
    let of_last = "id = (select event_id from usage_receipts where ";
    let of_last = format!("{of_last}{LAST})");
    let both = &["one_event", "event_of_a_receipt"][..];
    for (breaking, found) in [
        (format!("delete from outbox where {of_last}"), &["one_event"][..]),
        (
            format!(
                "insert into outbox (id, {EVENT}, payload)
                select gen_random_uuid(), {EVENT}, payload from outbox where {of_last}"
            ),
            both,
        ),
        (
            format!(
                "update outbox set payload = jsonb_set(payload, '{{request_id}}',
                    to_jsonb(gen_random_uuid())) where {of_last}"
            ),
            both,
        ),
        (
            format!("update outbox set id = gen_random_uuid() where {of_last}"),
            &["event_of_a_receipt"],
        ),
        // Of an operation that nobody knows.
        (
            format!(
                "insert into outbox (id, {EVENT}, payload)
                select gen_random_uuid(), {EVENT}, payload || jsonb_build_object(
                    'operation_id', gen_random_uuid(), 'request_id', gen_random_uuid())
                from outbox where {of_last}"
            ),
            &["event_of_a_receipt"],
        ),
    ] {
        breaker.assert_finds(&breaking, found).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_that_do_not_match_are_found() {
    let breaker = Breaker::new().await;
    let last_turn = format!("{LAST} and role = 'assistant'");
    for (breaking, found) in [
        (format!("delete from turns where {last_turn}"), &["two_turns", "head_of_turns"][..]),
        (format!("delete from turns where {LAST}"), &["two_turns", "head_of_turns"]),
        (
            format!("update turns set request_id = gen_random_uuid() where {last_turn}"),
            &["two_turns", "turn_of_a_receipt"],
        ),
        (
            format!("update request_records set turn_id = gen_random_uuid() where {LAST}"),
            &["two_turns"],
        ),
        // The answers of two operations change places.
        (
            "update turns t set operation_id = o.operation_id, request_id = o.request_id,
                turn_id = o.turn_id
            from turns o where t.tenant_id = 't1' and o.tenant_id = 't1'
                and t.conversation_id = 'c1' and o.conversation_id = 'c1'
                and (t.seq, o.seq) in ((2, 4), (4, 2))"
                .to_owned(),
            &["two_turns"],
        ),
        // Two more, of an operation that nobody knows.
        (
            format!(
                "insert into turns (tenant_id, conversation_id, seq, role, {TURN})
                select tenant_id, conversation_id, seq + 2, role, gen_random_uuid(), content,
                    based_on_seq + 2, '00000000-0000-4000-8000-000000000001'::uuid,
                    '00000000-0000-4000-8000-000000000002'::uuid, metadata, created_at
                from turns where {LAST};
                update conversations set head_seq = head_seq + 2
                where tenant_id = 't1' and conversation_id = 'c1'"
            ),
            &["turn_of_a_receipt"],
        ),
        // The same operation twice.
        (
            format!(
                "insert into turns (tenant_id, conversation_id, seq, role, {TURN})
                select tenant_id, conversation_id, seq + 2, role, {TURN} from turns where {LAST};
                update conversations set head_seq = head_seq + 2
                where tenant_id = 't1' and conversation_id = 'c1'"
            ),
            &["two_turns"],
        ),
        (
            format!(
                "update turns set seq = seq + 2 where {LAST};
                update conversations set head_seq = head_seq + 2
                where tenant_id = 't1' and conversation_id = 'c1'"
            ),
            &["gapless_turns"],
        ),
        (
            "update turns set role = case role when 'user' then 'assistant' else 'user' end
            where tenant_id = 't1' and conversation_id = 'c2'"
                .to_owned(),
            &["two_turns", "gapless_turns"],
        ),
        // A beginning that nobody took away.
        (
            "update turns set seq = seq + 2 where tenant_id = 't2';
            update conversations set head_seq = head_seq + 2 where tenant_id = 't2'"
                .to_owned(),
            &["gapless_turns"],
        ),
        (
            "update conversations set head_seq = head_seq + 2 where tenant_id = 't2'".to_owned(),
            &["head_of_turns"],
        ),
        ("delete from conversations where tenant_id = 't2'".to_owned(), &["head_of_turns"]),
    ] {
        breaker.assert_finds(&breaking, found).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_do_not_add_up_are_found() {
    let breaker = Breaker::new().await;
    let two_calls = "operation_id = (select operation_id from provider_calls
        where counted and call_no = 2)";
    for breaking in [
        format!("update usage_receipts set output_tokens = output_tokens + 1 where {LAST}"),
        format!("update usage_receipts set input_tokens = null where {LAST}"),
        format!("update usage_receipts set reasoning_tokens = 0 where {LAST}"),
        format!("update usage_receipts set cache_read_tokens = 7 where {LAST}"),
        format!("update usage_receipts set cache_write_tokens = 7 where {LAST}"),
        format!("update usage_receipts set provider_calls = 2 where {LAST}"),
        format!(
            "update usage_receipts set provider_calls = 2, usage_source = 'estimated' where {LAST}"
        ),
        format!("delete from provider_calls where {LAST}"),
        format!("update provider_calls set counted = true where {two_calls}"),
        format!("update provider_calls set counted = false where {two_calls}"),
        // Counted, by a run that did not commit.
        "update provider_calls set counted = true where failure_kind = 'transient'
            and operation_id not in (select operation_id from usage_receipts)"
            .to_owned(),
        format!(
            "insert into provider_calls (tenant_id, operation_id, request_id, call_no, counted,
                provider, model, route, started_at, ended_at)
            select tenant_id, operation_id, gen_random_uuid(), 1, true, provider, model, route,
                started_at, ended_at from provider_calls where {LAST}"
        ),
    ] {
        breaker.assert_finds(&breaking, &["tokens_of_calls"]).await;
    }
    // Tokens that were estimated are nobody's sum.
    let estimated = "update usage_receipts set output_tokens = 99, usage_source = 'estimated'";
    breaker.assert_finds(&format!("{estimated} where {LAST}"), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_keys_and_leases_that_nobody_has_are_found() {
    let breaker = Breaker::new().await;
    let run = |silent: &str| {
        format!(
            "insert into server_epoch (first_seen) values (clock_timestamp() - interval '1 day')
            on conflict (one) do update set first_seen = excluded.first_seen,
                server_start = excluded.server_start;
            update request_records set state = 'in_progress', failure_kind = null,
                failure_final = null, response = null, response_status = null, completed_at = null,
                heartbeat_at = clock_timestamp() - interval '{silent}' where {FAILED};
            update conversations set active_key =
                (select idempotency_key from request_records where state = 'in_progress')
            where tenant_id = 't1' and conversation_id = 'c2'"
        )
    };
    let lease = |key: &str| {
        format!(
            "update conversations set active_key = {key} where tenant_id = 't1' and conversation_id = 'c1'"
        )
    };
    for (breaking, found) in [
        (run("1 hour"), &["owned_runs"][..]),
        (run("1 second"), &[]),
        // After a start of the database silence says nothing yet.
        (run("1 hour") + "; update server_epoch set first_seen = clock_timestamp()", &[]),
        (
            run("1 hour")
                + "; update server_epoch set server_start = server_start - interval '1 h'",
            &[],
        ),
        (lease("gen_random_uuid()"), &["free_conversations"]),
        (
            lease(&format!("(select idempotency_key from request_records where {LAST})")),
            &["free_conversations"],
        ),
        (
            lease(&format!("(select idempotency_key from request_records where {FAILED})")),
            &["free_conversations"],
        ),
        // Held by a run of another conversation.
        (
            run("1 second")
                + ";"
                + &lease(
                    "(select idempotency_key from request_records where state = 'in_progress')",
                ),
            &["free_conversations"],
        ),
        (
            "update request_keys set day = day + 1 where tenant_id = 't2'".to_owned(),
            &["one_record"],
        ),
        ("delete from request_keys where tenant_id = 't2'".to_owned(), &["one_record"]),
    ] {
        breaker.assert_finds(&breaking, found).await;
    }
}
