//! The service needs no superuser: all of it works under a role that owns its database, or that may only
//! make its tables there, whether it may make roles or not.

use std::path::Path;

use chrono::Days;
use oncekey::store::partition_name;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions};
use uuid::Uuid;

use crate::support::node::captures_folder;
use crate::support::parse::echo;
use crate::support::process::{Ended, ProcessNode, run};
use crate::support::provider::ScriptedProvider;
use crate::support::{Client, TestDatabase};

/// A database as one role sees it.
struct Under {
    /// By the administrator.
    database: TestDatabase,
    role: &'static str,
    url: String,
}

impl Under {
    async fn role(database: TestDatabase, role: &'static str, attributes: &str) -> Self {
        database.execute(&format!("create role {role} login {attributes}")).await;
        let options: PgConnectOptions = database.url.parse().unwrap();
        let url = options.username(role).to_url_lossy().to_string();
        Self { database, role, url }
    }

    async fn grant(&self, grant: &str) {
        let Self { database, role, .. } = self;
        database.execute(&format!("{grant} {role}").replace("{database}", &database.name)).await;
    }

    async fn command(&self, arguments: &[&str]) -> Ended {
        let variables = [
            ("DATABASE_URL".to_owned(), self.url.clone()),
            ("ONCEKEY_CAPTURES__LOCATION".to_owned(), captures_folder()),
        ];
        run(Path::new("/"), arguments, &variables).await
    }

    /// The command, which goes well; what it printed.
    async fn done(&self, arguments: &[&str]) -> String {
        let ended = self.command(arguments).await;
        assert_eq!(ended.code, Some(0), "{} {arguments:?}: {}", self.role, ended.stderr);
        ended.stdout
    }

    /// A day that is long over, made by the role itself.
    async fn old_day(&self, days: u64) -> String {
        let day = chrono::Utc::now().date_naive() - Days::new(days);
        let (name, next) = (partition_name(day), day.succ_opt().unwrap());
        let options: PgConnectOptions = self.url.parse().unwrap();
        let mut session = options.connect().await.unwrap();
        let sql = format!(
            "create table {name} partition of request_records for values from ('{day}') to ('{next}')"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.unwrap();
        name
    }

    async fn is_gone(&self, table: &str) -> bool {
        let sql = format!("select count(*) from pg_class where relname = '{table}'");
        self.database.count(&sql).await == 0
    }

    /// What a service does by itself and for its clients, and what the DBA does.
    async fn serves(&self) {
        let provider = ScriptedProvider::start().await;
        let by_keeper = self.old_day(5).await;
        let node =
            ProcessNode::on(&self.database, &provider, &[("DATABASE_URL", self.url.as_str())])
                .await;
        node.until_event("keys_cleared", |_| true).await;
        assert!(self.is_gone(&by_keeper).await, "the keeper of {} drops", self.role);
        let key = self.done(&["key", "create", "--tenant", "t1", "--role", "client"]).await;
        let client = Client::new(node.address, key.trim());
        let chat = Uuid::new_v4();
        let answer = client.chat(chat, "c1", "hello").await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        assert!(client.chat(chat, "c1", "hello").await.replayed());
        provider.reply_by(echo);
        assert_eq!(client.parse(Uuid::new_v4(), "MARA: Is it boiling?\n").await.status, 200);
        assert_eq!(client.get("/readyz").await.status, 200);

        let by_hand = self.old_day(4).await;
        let dropped = self.done(&["partitions", "drop"]).await;
        assert!(dropped.contains(&format!("dropped {by_hand}")), "{dropped}");
        let audit = self.done(&["audit"]).await;
        assert!(audit.lines().all(|line| line.starts_with("ok ")), "{audit}");
        for line in node.log() {
            assert_ne!(line["level"], "ERROR", "{}: {line}", self.role);
            assert!(!line.to_string().contains("permission denied"), "{}: {line}", self.role);
        }
        assert_eq!(self.database.outcomes_of_both().await, (1, 1, 2));
    }

    /// The other commands that touch the database.
    async fn is_asked(&self) {
        let listed = self.done(&["partitions", "list"]).await;
        assert!(listed.contains(&partition_name(chrono::Utc::now().date_naive())), "{listed}");
        self.done(&["partitions", "ensure"]).await;
        let usage = ["usage", "--from", "2026-01-01", "--to", "2199-01-01", "--format", "csv"];
        assert_eq!(self.done(&usage).await.lines().count(), 2);
        self.done(&["outbox", "list"]).await;
        self.done(&["key", "list"]).await;
        self.done(&["erase", "--tenant", "t1", "--subject", "u1"]).await;
    }
}

impl TestDatabase {
    /// Chats, parses and receipts.
    async fn outcomes_of_both(&self) -> (i64, i64, i64) {
        (
            self.count("select count(*) / 2 from turns").await,
            self.count("select count(*) from parse_results").await,
            self.count("select count(*) from usage_receipts").await,
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_a_database_and_a_guest_in_it_can_do_all_without_being_superuser() {
    // Roles belong to a server.
    let (first, server) = TestDatabase::with_fresh_server("roles").await;
    // Owner of its database, and nothing more.
    let plain = Under::role(first, "plain", "nosuperuser nocreaterole nocreatedb").await;
    plain.grant("alter database {database} owner to").await;
    let told = plain.done(&["migrate"]).await;
    let (_, statements) = told.split_once("An administrator says: ").unwrap();
    plain.database.execute(statements).await;
    assert!(!plain.done(&["migrate"]).await.contains("administrator"));
    plain.serves().await;
    plain.is_asked().await;
    plain.database.execute("drop owned by oncekey_finance; drop role oncekey_finance").await;

    // May make roles, so nobody has to help.
    let maker = Under::role(TestDatabase::empty_on(&server).await, "maker", "createrole").await;
    maker.grant("alter database {database} owner to").await;
    assert!(!maker.done(&["migrate"]).await.contains("administrator"));
    let reads = "select has_table_privilege('oncekey_finance', 'finance.receipts', 'select')::text";
    assert_eq!(maker.database.text(reads).await, "true");
    // In another's database, in which it may make a schema and tables; the role of finance is there.
    let guest = Under::role(TestDatabase::empty_on(&server).await, "guest", "nocreaterole").await;
    guest.grant("grant create on database {database} to").await;
    guest.grant("grant create on schema public to").await;
    assert!(!guest.done(&["migrate"]).await.contains("administrator"));
    tokio::join!(maker.serves(), guest.serves());

    for under in [plain, maker, guest] {
        under.database.pool.close().await;
    }
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap().unwrap();
}
