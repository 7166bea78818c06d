//! A process that is killed while it erases an end user, or takes away what is over its time: nothing half
//! deleted is told or breaks an invariant, and whoever comes next finishes. Each has its twin that nobody
//! kills.

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Postgres, Transaction};
use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, captures_folder};
use crate::support::parse::echo;
use crate::support::process::{Ended, ProcessNode, begin, run};
use crate::support::provider::{Reply, ScriptedProvider, patiently};
use crate::support::{Client, TestDatabase, eventually};

const SCENE: &str = "MARA: Is it boiling?\n";

/// Two conversations, of two and one operations, and a parse of `u1`; and the like of `u2`, who stays.
struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    client: Client,
    /// Key, conversation and message of each chat of `u1`.
    chats: Vec<(Uuid, &'static str, &'static str)>,
    parsed: Uuid,
    upload: PathBuf,
}

impl Scene {
    async fn lived_in() -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
        let client = node.client_as("t1", "client", Some("u1")).await;
        let chats = [("c1", "one"), ("c1", "two"), ("c2", "three")];
        let chats = chats.map(|(conversation, message)| (Uuid::new_v4(), conversation, message));
        let parsed = Uuid::new_v4();
        for (key, conversation, message) in chats {
            assert_eq!(client.chat(key, conversation, message).await.status, 200);
        }
        provider.reply_by(echo);
        assert_eq!(client.parse(parsed, SCENE).await.status, 200);
        let location = database.text("select location from captures").await;
        let upload = PathBuf::from(captures_folder()).join(location);
        let other = node.client_as("t1", "client", Some("u2")).await;
        assert_eq!(other.parse(Uuid::new_v4(), "OTTO: Mine.\n").await.status, 200);
        provider.reply_by(|_| Reply::normal());
        assert_eq!(other.chat(Uuid::new_v4(), "d1", "mine").await.status, 200);
        Self { database, provider, node, client, chats: chats.to_vec(), parsed, upload }
    }

    fn variables(&self) -> Vec<(String, String)> {
        let named = [
            ("DATABASE_URL", self.database.url.clone()),
            ("ONCEKEY_CAPTURES__LOCATION", captures_folder()),
        ];
        named.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    async fn command(&self, arguments: &[&str], also: &[(&str, &str)]) -> Ended {
        let mut variables = self.variables();
        variables.extend(also.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        run(Path::new("/"), arguments, &variables).await
    }

    async fn hold(&self, lock: &str) -> Transaction<'static, Postgres> {
        let mut held = self.database.pool.begin().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(lock.to_owned())).execute(&mut *held).await.unwrap();
        held
    }

    async fn waits_in(&self, statement: &str) -> bool {
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = current_database()
                and wait_event_type = 'Lock' and starts_with(query, '/* {statement} */')"
        );
        self.database.count(&sql).await > 0
    }

    /// Every stored answer that is still told has its effect, and the others are said to be erased.
    async fn assert_nothing_half_told(&self) {
        for (key, conversation, message) in &self.chats {
            let answer = self.client.chat(*key, conversation, message).await;
            let turns = format!(
                "select count(*) from turns t join usage_receipts u using (tenant_id, operation_id)
                    where u.idempotency_key = '{key}'"
            );
            match answer.status {
                200 => {
                    assert!(answer.replayed());
                    assert_eq!(self.database.count(&turns).await, 2, "{key} is told in full");
                }
                _ => assert_eq!((answer.status, answer.error().as_str()), (410, "erased")),
            }
        }
        let parse = self.client.parse(self.parsed, SCENE).await;
        assert!(parse.status == 410 || (parse.status == 200 && parse.replayed()));
    }

    async fn assert_audited(&self, also: &[(&str, &str)]) {
        let audit = self.command(&["audit"], also).await;
        assert_eq!(audit.code, Some(0), "{}{}", audit.stdout, audit.stderr);
    }

    /// What is there of either end user: turns, conversations, results, uploads, answers, receipts.
    async fn left(&self) -> String {
        self.database
            .text(
                "select concat_ws(' ', (select count(*) from turns), (select count(*) from conversations),
                    (select count(*) from parse_results), (select count(*) from captures),
                    (select count(*) from request_records where response is not null),
                    (select count(*) from request_records where erased_at is not null),
                    (select count(*) from usage_receipts))",
            )
            .await
    }
}

const ERASE: [&str; 5] = ["erase", "--tenant", "t1", "--subject", "u1"];
/// What an erasure leaves: the other's chat and parse, all records and all receipts.
const ERASED: &str = "2 1 1 1 2 4 6";
const WHOLE: &str = "8 3 2 2 6 0 6";

/// Kills the command where it waits for `lock` in this statement, with what came before done and what
/// comes behind not.
async fn erase_killed(lock: &str, statement: &str, left: &str) {
    let scene = Scene::lived_in().await;
    assert_eq!(scene.left().await, WHOLE);
    let held = scene.hold(lock).await;
    // It gives up after 1.5 s, on a busy machine perhaps before it is seen to wait.
    let mut erasing = loop {
        let mut erasing = begin(&ERASE, &scene.variables());
        tokio::select! {
            () = eventually("the command waits", || scene.waits_in(statement)) => break erasing,
            _ = erasing.wait() => {}
        }
    };
    erasing.kill().await.unwrap();
    assert_eq!(scene.left().await, left, "at {statement}");
    scene.assert_nothing_half_told().await;
    scene.assert_audited(&[]).await;
    held.rollback().await.unwrap();

    let again = scene.command(&ERASE, &[]).await;
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(scene.left().await, ERASED, "after {statement}");
    assert!(!scene.upload.exists());
    scene.assert_nothing_half_told().await;
    scene.assert_audited(&[]).await;
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_is_killed_at_the_records_has_begun_nothing() {
    let lock = "select from request_records where endpoint = 'parse' for update";
    erase_killed(lock, "erase.records", WHOLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_is_killed_before_the_results_has_erased_the_answers() {
    erase_killed("select from parse_results for update", "erase.results", "8 3 2 2 2 4 6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_is_killed_between_an_upload_and_its_row_deletes_both() {
    erase_killed("select from captures for update", "retention.capture", "8 3 1 2 2 4 6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_is_killed_between_two_conversations_has_erased_one_as_a_whole() {
    let lock = "select from conversations where conversation_id = 'c2' for update";
    erase_killed(lock, "erase.lock", "4 2 1 1 2 4 6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_nobody_kills_leaves_the_same() {
    let scene = Scene::lived_in().await;
    let erased = scene.command(&ERASE, &[]).await;
    assert_eq!(erased.code, Some(0), "{}", erased.stderr);
    assert_eq!(scene.left().await, ERASED);
    assert!(!scene.upload.exists());
    scene.assert_nothing_half_told().await;
    scene.assert_audited(&[]).await;
    assert!(scene.node.shut_down().await);
}

/// Everything that has a time is over it, and its records are still there.
const MONTH_ON: [(&str, &str); 6] = [
    ("ONCEKEY_FAULTS", "on"),
    ("ONCEKEY_FAULT_CLOCK_OFFSET", "31days"),
    ("ONCEKEY_IDEMPOTENCY__RETENTION", "90d"),
    ("ONCEKEY_RETENTION__TURNS", "30d"),
    ("ONCEKEY_RETENTION__PROVIDER_CALLS", "30d"),
    ("ONCEKEY_RETENTION__CAPTURES", "30d"),
];

/// Calls, turns, parse results and uploads.
async fn kept(database: &TestDatabase) -> String {
    database
        .text(
            "select concat_ws(' ', (select count(*) from provider_calls), (select count(*) from turns),
                (select count(*) from parse_results), (select count(*) from captures))",
        )
        .await
}

/// A node on which a month has passed takes everything away.
async fn take_away(scene: &Scene) {
    let mut node = ProcessNode::on(&scene.database, &scene.provider, &MONTH_ON).await;
    let told = node.until_event("retention", |_| true).await;
    assert_eq!(told["level"], "INFO", "{told}");
    assert_eq!(kept(&scene.database).await, "0 0 0 0");
    assert!(!scene.upload.exists());
    node.kill().await;
    assert_audited_a_month_on(scene).await;
}

/// The audit is at the same moment as the node: what is over its time is not asked for.
async fn assert_audited_a_month_on(scene: &Scene) {
    let aged = "update usage_receipts set created_at = created_at - interval '31 days';
        update request_records set completed_at = completed_at - interval '31 days'";
    let young = "update usage_receipts set created_at = created_at + interval '31 days';
        update request_records set completed_at = completed_at + interval '31 days'";
    scene.database.execute(aged).await;
    scene.assert_audited(&MONTH_ON).await;
    scene.database.execute(young).await;
}

/// Kills a node in the middle of its retention, where it waits for `lock`.
async fn retention_killed(lock: &str, statement: &str, left: &str) {
    let scene = Scene::lived_in().await;
    assert_eq!(kept(&scene.database).await, "6 8 2 2");
    let held = scene.hold(lock).await;
    let mut node = ProcessNode::begin_on(&scene.database, &scene.provider, &MONTH_ON);
    eventually("the retention waits", || scene.waits_in(statement)).await;
    node.kill().await;
    assert_eq!(kept(&scene.database).await, left, "at {statement}");
    assert_audited_a_month_on(&scene).await;
    patiently("the release", held.rollback()).await.unwrap();
    take_away(&scene).await;
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retention_that_is_killed_before_the_turns_goes_on_with_them() {
    retention_killed("lock table turns in share mode", "retention.turns", "0 8 0 2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retention_that_is_killed_between_an_upload_and_its_row_deletes_both() {
    retention_killed("select from captures for update", "retention.capture", "0 0 0 2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retention_that_nobody_kills_leaves_the_same() {
    let scene = Scene::lived_in().await;
    take_away(&scene).await;
    assert!(scene.node.shut_down().await);
}
