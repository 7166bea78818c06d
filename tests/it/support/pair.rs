//! Two processes on one database and one provider: what one of them leaves undone, the other one's
//! arrivals find.

use oncekey::store::Store;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::client::Answer;
use super::node::{assert_clean, new_key};
use super::process::ProcessNode;
use super::provider::ScriptedProvider;
use super::{Client, TestDatabase};

/// The two nodes, each with a client of the same tenant.
pub struct Pair {
    pub database: TestDatabase,
    pub provider: ScriptedProvider,
    pub store: Store,
    pub a: ProcessNode,
    pub b: ProcessNode,
    pub at_a: Client,
    pub at_b: Client,
    /// The request that [`Pair::ask_a`] sends.
    pub key: Uuid,
}

pub const CONVERSATION: &str = "c1";
pub const MESSAGE: &str = "hello";

impl Pair {
    /// Both with `both`, node A with `only_a` as well, on a database that is old enough for silence
    /// and free locks to count.
    pub async fn start(both: &[(&str, &str)], only_a: &[(&str, &str)]) -> Self {
        Self::on(TestDatabase::new().await, both, only_a).await
    }

    /// The same on this database.
    pub async fn on(
        database: TestDatabase,
        both: &[(&str, &str)],
        only_a: &[(&str, &str)],
    ) -> Self {
        database.age_epoch().await;
        let provider = ScriptedProvider::start().await;
        let variables_of_a = [both, only_a].concat();
        let (a, b) = tokio::join!(
            ProcessNode::on(&database, &provider, &variables_of_a),
            ProcessNode::on(&database, &provider, both)
        );
        let store = database.store();
        let api_key = new_key(&store, "t1", "client", None).await;
        let at_a = Client::new(a.address, &api_key);
        let at_b = at_a.at(b.address);
        Self { database, provider, store, a, b, at_a, at_b, key: Uuid::new_v4() }
    }

    /// Sends the request to node A, which may never answer.
    pub fn ask_a(&self) -> JoinHandle<Result<Answer, reqwest::Error>> {
        let (client, key) = (self.at_a.clone(), self.key);
        tokio::spawn(async move { client.try_chat(key, CONVERSATION, MESSAGE).await })
    }

    /// Sends the same request to node B, once.
    pub async fn ask_b(&self) -> Answer {
        self.at_b.chat(self.key, CONVERSATION, MESSAGE).await
    }

    /// Sends the same request to node B until it is answered well.
    pub async fn answer_of_b(&self) -> Answer {
        let answer = self.at_b.chat_until_answered(self.key, CONVERSATION, MESSAGE).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        answer
    }

    /// Every arrival from now on gets these bytes; there is one outcome, and all invariants hold.
    pub async fn assert_one_outcome(&self, answer: &Answer) {
        let replay = self.ask_b().await;
        assert!(replay.replayed());
        assert_eq!(replay.bytes, answer.bytes);
        assert_eq!(self.database.outcomes().await, (1, 1, 1));
        assert_clean(&self.store).await;
    }

    /// Fence and attempts of the request that [`Pair::ask_a`] sends.
    pub async fn fence_and_attempts(&self) -> (i64, i64) {
        let of = |column: &str| {
            format!(
                "select {column}::bigint from request_records where idempotency_key = '{}'",
                self.key
            )
        };
        (self.database.count(&of("fence")).await, self.database.count(&of("attempts")).await)
    }
}
