//! What the tables say when a history has come to rest.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::support::TestDatabase;

pub type Key = (String, Uuid);
pub type Conversation = (String, String);

#[derive(Debug)]
pub struct Facts {
    pub records: BTreeMap<Key, Record>,
    pub turns: Vec<Turn>,
    pub receipts: Vec<Receipt>,
    /// Conversations with a lease, and the key that has it.
    pub held: Vec<(Conversation, Uuid)>,
    /// How many operations each key has named.
    pub lives: BTreeMap<Key, usize>,
    /// What the watch in the database complained of (`watch.sql`).
    pub complaints: Vec<String>,
}

#[derive(Debug)]
pub struct Record {
    pub state: String,
    pub failure_final: Option<bool>,
    pub fence: i64,
    pub attempts: i64,
    pub request_id: Uuid,
    pub response: Option<String>,
}

#[derive(Debug)]
pub struct Turn {
    pub conversation: Conversation,
    pub seq: i64,
    pub turn_id: Uuid,
    pub role: String,
    pub content: String,
    pub based_on_seq: i64,
    pub request_id: Uuid,
}

#[derive(Debug)]
pub struct Receipt {
    pub key: Key,
    pub request_id: Uuid,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
}

impl Facts {
    pub async fn read(database: &TestDatabase) -> Self {
        let all =
            async |sql: &'static str| sqlx::query(sql).fetch_all(&database.pool).await.unwrap();
        let records = all("select * from request_records").await;
        let turns = all("select * from turns order by tenant_id, conversation_id, seq").await;
        let receipts = all("select * from usage_receipts").await;
        let held = all("select * from conversations where active_key is not null").await;
        let lives =
            all("select tenant_id, idempotency_key, count(distinct operation_id) as lives \
             from sim_births group by 1, 2")
            .await;
        let complaints = all("select what from sim_wrong order by at").await;
        Self {
            lives: lives
                .iter()
                .map(|row| (key(row), row.get::<i64, _>("lives") as usize))
                .collect(),
            complaints: complaints.iter().map(|row| row.get("what")).collect(),
            records: records.iter().map(|row| (key(row), Record::of(row))).collect(),
            turns: turns.iter().map(Turn::of).collect(),
            receipts: receipts.iter().map(Receipt::of).collect(),
            held: held.iter().map(|row| (conversation(row), row.get("active_key"))).collect(),
        }
    }
}

fn key(row: &PgRow) -> Key {
    (row.get("tenant_id"), row.get("idempotency_key"))
}

fn conversation(row: &PgRow) -> Conversation {
    (row.get("tenant_id"), row.get("conversation_id"))
}

impl Record {
    fn of(row: &PgRow) -> Self {
        Self {
            state: row.get("state"),
            failure_final: row.get("failure_final"),
            fence: row.get("fence"),
            attempts: row.get::<i32, _>("attempts").into(),
            request_id: row.get("request_id"),
            response: row
                .get::<Option<Vec<u8>>, _>("response")
                .map(|bytes| String::from_utf8(bytes).unwrap()),
        }
    }
}

impl Turn {
    fn of(row: &PgRow) -> Self {
        Self {
            conversation: conversation(row),
            seq: row.get("seq"),
            turn_id: row.get("turn_id"),
            role: row.get("role"),
            content: row.get("content"),
            based_on_seq: row.get("based_on_seq"),
            request_id: row.get("request_id"),
        }
    }
}

impl Receipt {
    fn of(row: &PgRow) -> Self {
        Self {
            key: key(row),
            request_id: row.get("request_id"),
            input_tokens: row.get("input_tokens"),
            output_tokens: row.get("output_tokens"),
        }
    }
}
