//! `oncekey erase`: an end user's texts go, wherever they are, and nobody else's; receipts stay; it may be
//! broken off and done again.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::support::node::{NodeOptions, TestNode, assert_clean, captures_folder};
use crate::support::parse::echo;
use crate::support::process::{Ended, run};
use crate::support::provider::{Action, Gate, Reply, ScriptedProvider};
use crate::support::{Client, TestDatabase, eventually};

/// What only the end user says, and what is found nowhere afterwards.
const SECRET: &str = "pineapple";

struct Scene {
    database: TestDatabase,
    provider: ScriptedProvider,
    node: TestNode,
    client: Client,
    chatted: Uuid,
    refused: Uuid,
    parsed: Uuid,
}

/// Chats, a refusal and a parse of `u1`; a chat and a parse of `u2`.
async fn lived_in() -> Scene {
    let database = TestDatabase::new().await;
    let provider = ScriptedProvider::start().await;
    let node = TestNode::start(&database, &provider, NodeOptions::default()).await;
    let client = node.client_as("t1", "client", Some("u1")).await;
    let scene = Scene {
        database,
        provider,
        node,
        client,
        chatted: Uuid::new_v4(),
        refused: Uuid::new_v4(),
        parsed: Uuid::new_v4(),
    };
    let client = &scene.client;
    for key in [scene.chatted, Uuid::new_v4()] {
        scene.provider.reply(Reply::text(&format!("a {SECRET} it is")));
        assert_eq!(client.chat(key, "c1", &format!("my {SECRET}")).await.status, 200);
    }
    assert_eq!(client.chat(Uuid::new_v4(), "c2", SECRET).await.status, 200);
    scene.provider.reply(Reply::file("400_context_anthropic.json"));
    assert_eq!(client.chat(scene.refused, "c2", SECRET).await.status, 413);
    scene.provider.reply_by(echo);
    assert_eq!(client.parse(scene.parsed, &format!("MARA: A {SECRET}.\n")).await.status, 200);
    let other = scene.node.client_as("t1", "client", Some("u2")).await;
    assert_eq!(other.parse(Uuid::new_v4(), "MARA: Mine.\n").await.status, 200);
    scene.provider.reply_by(|_| Reply::text("yours"));
    assert_eq!(other.chat(Uuid::new_v4(), "d1", "mine").await.status, 200);
    scene
}

impl Scene {
    async fn erase(&self, subject: &str) -> Ended {
        let variables = [
            ("DATABASE_URL".to_owned(), self.database.url.clone()),
            ("ONCEKEY_CAPTURES__LOCATION".to_owned(), captures_folder()),
        ];
        let arguments = ["erase", "--tenant", "t1", "--subject", subject];
        run(Path::new("/"), &arguments, &variables).await
    }

    /// Rows of any table in which the word stands.
    async fn rows_with_the_word(&self) -> i64 {
        let tables: Vec<String> = sqlx::query_scalar(
            "select relname::text from pg_class where relnamespace = 'public'::regnamespace
                and relkind = 'r'",
        )
        .fetch_all(&self.database.pool)
        .await
        .unwrap();
        let mut rows = 0;
        for table in tables {
            let sql = format!(
                "select count(*) from {table} t where t::text like '%{SECRET}%'
                    or t::text like '%' || encode('{SECRET}', 'hex') || '%'"
            );
            rows += self.database.count(&sql).await;
        }
        rows
    }

    async fn captures_of_u1(&self) -> Vec<PathBuf> {
        let sql = "select location from captures where subject = 'u1'";
        let locations: Vec<String> =
            sqlx::query_scalar(sql).fetch_all(&self.database.pool).await.unwrap();
        locations.iter().map(|it| PathBuf::from(captures_folder()).join(it)).collect()
    }
}

fn number(ended: &Ended, name: &str) -> u64 {
    let line = ended.stdout.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("{name} in {}{}", ended.stdout, ended.stderr));
    line[name.len()..].split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_texts_of_an_end_user_go_and_receipts_stay() {
    let scene = lived_in().await;
    scene
        .database
        .execute(
            "insert into refused_inputs (tenant_id, endpoint, request_hash, model, failure_kind, until)
                select tenant_id, endpoint, request_hash, 'm', 'too_large', now() + interval '1 day'
                from request_records where state = 'failed' on conflict do nothing;
            insert into parse_chunks (tenant_id, operation_id, asked, request_id, call_no, value)
                select tenant_id, operation_id, request_hash, request_id, 1, '\"pineapple\"'
                from request_records where endpoint = 'parse' and subject = 'u1'",
        )
        .await;
    let files = scene.captures_of_u1().await;
    assert_eq!(files.len(), 1);
    assert!(files[0].exists() && scene.rows_with_the_word().await > 5);

    let erased = scene.erase("u1").await;
    assert_eq!(erased.code, Some(0), "{}", erased.stderr);
    let told = [
        "conversations",
        "turns",
        "stored answers",
        "parse results",
        "captures",
        "kept chunks",
        "refused inputs",
    ]
    .map(|name| number(&erased, name));
    assert_eq!(told, [2, 6, 5, 1, 1, 1, 1], "{}", erased.stdout);
    assert!(erased.stdout.ends_with("4 receipts stay, without text\n"), "{}", erased.stdout);

    assert_eq!(scene.rows_with_the_word().await, 0);
    assert!(!files[0].exists());
    for key in [scene.chatted, scene.refused] {
        let (conversation, message) = if key == scene.chatted {
            ("c1", format!("my {SECRET}"))
        } else {
            ("c2", SECRET.to_owned())
        };
        let answer = scene.client.chat(key, conversation, &message).await;
        assert_eq!((answer.status, &*answer.error()), (410, "erased"));
    }
    let answer = scene.client.parse(scene.parsed, &format!("MARA: A {SECRET}.\n")).await;
    assert_eq!((answer.status, &*answer.error()), (410, "erased"));
    assert_eq!(scene.client.get("/v1/conversations/c1/turns").await.status, 404);
    let counts = "select concat_ws(' ', (select count(*) from usage_receipts),
        (select count(*) from turns), (select count(*) from parse_results),
        (select count(*) from captures), (select count(*) from request_records where erased_at is null))";
    assert_eq!(scene.database.text(counts).await, "6 2 1 1 2");
    assert_clean(scene.node.store()).await;

    let again = scene.erase("u1").await;
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    for name in ["conversations", "turns", "stored answers", "parse results", "captures"] {
        assert_eq!(number(&again, name), 0, "{}", again.stdout);
    }
    // A conversation of the same name begins anew.
    assert_eq!(scene.client.chat(Uuid::new_v4(), "c1", "hello").await.status, 200);
    assert_clean(scene.node.store()).await;
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_something_of_theirs_runs_nothing_is_erased() {
    let scene = lived_in().await;
    let gate = Gate::closed();
    let held = gate.clone();
    scene.provider.reply_by(move |_| Reply::text("late").before_head(Action::Hold(held.clone())));
    let (client, key) = (scene.client.clone(), Uuid::new_v4());
    let running = tokio::spawn(async move { client.chat(key, "c1", "hello").await });
    eventually("the run is at the provider", || async {
        scene
            .database
            .count("select count(*) from request_records where state = 'in_progress'")
            .await
            == 1
    })
    .await;
    let before = scene.rows_with_the_word().await;
    let refused = scene.erase("u1").await;
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("nothing was erased: 1 operation runs (chat {key}")));
    assert_eq!(scene.rows_with_the_word().await, before);
    // Another end user does not wait for it.
    assert_eq!(scene.erase("u2").await.code, Some(0));
    gate.open();
    assert_eq!(running.await.unwrap().status, 200);
    assert_eq!(scene.erase("u1").await.code, Some(0));
    assert_eq!(scene.rows_with_the_word().await, 0);
    assert_clean(scene.node.store()).await;
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_broken_off_is_finished_by_the_next_one() {
    let scene = lived_in().await;
    // A folder in the place of the upload cannot be deleted as a file.
    let file = scene.captures_of_u1().await.remove(0);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("in the way")).unwrap();
    let broken = scene.erase("u1").await;
    assert_eq!(broken.code, Some(1), "{}", broken.stdout);
    assert!(broken.stderr.contains("run this again"), "{}", broken.stderr);
    // Half way, no promise is broken, and what went stays gone.
    assert_clean(scene.node.store()).await;
    let answer = scene.client.chat(scene.chatted, "c1", &format!("my {SECRET}")).await;
    assert_eq!(answer.status, 410);
    assert!(scene.rows_with_the_word().await > 0);
    std::fs::remove_dir_all(&file).unwrap();
    let finished = scene.erase("u1").await;
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!((number(&finished, "conversations"), number(&finished, "captures")), (2, 1));
    assert_eq!(scene.rows_with_the_word().await, 0);
    assert_clean(scene.node.store()).await;
    assert!(scene.node.shut_down().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_was_never_written_down_goes_as_well_and_names_must_be_given() {
    let scene = lived_in().await;
    let file = scene.captures_of_u1().await.remove(0);
    scene.database.execute("delete from captures where subject = 'u1'").await;
    assert_eq!(scene.erase("u1").await.code, Some(0));
    assert!(!file.exists());
    for (arguments, code) in [
        (&["erase", "--tenant", "t1"][..], 2),
        (&["erase", "--subject", "u1"], 2),
        (&["erase", "--tenant", "t1", "--subject", ""], 2),
    ] {
        assert_eq!(run(Path::new("/"), arguments, &[]).await.code, Some(code));
    }
    let nobody = scene.erase("u3").await;
    assert_eq!((nobody.code, number(&nobody, "turns")), (Some(0), 0));
    assert!(scene.node.shut_down().await);
}
