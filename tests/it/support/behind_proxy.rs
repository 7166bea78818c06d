//! A node whose way to the database leads through a proxy, while its own session (heartbeat and lock)
//! goes straight, and whose faults a test sets.

use std::sync::Arc;

use super::node::{NodeOptions, TestNode};
use super::provider::ScriptedProvider;
use super::proxy::{Proxy, Target};
use super::trap::Trap;
use super::{Client, TestDatabase};

/// What such a test stands on.
pub struct BehindProxy {
    pub database: TestDatabase,
    pub provider: ScriptedProvider,
    pub proxy: Arc<Proxy>,
    pub trap: Trap,
    pub node: TestNode,
    pub client: Client,
}

impl BehindProxy {
    /// With so many connections in the pool. Nothing but arrivals uses them: the sweep is too slow
    /// to come by.
    pub async fn start(pool: u32, options: NodeOptions) -> Self {
        let database = TestDatabase::new().await;
        let provider = ScriptedProvider::start().await;
        let proxy = Arc::new(Proxy::start(Target::Unix(database.socket())).await);
        let trap = Trap::default();
        let mut options = NodeOptions {
            database_url: Some(database.url_through(proxy.address.port())),
            faults: trap.faults(),
            ..options
        };
        let ours = [
            ("ONCEKEY_DATABASE__POOL", pool.to_string()),
            ("ONCEKEY_DATABASE_URL_DIRECT", database.url.clone()),
            ("ONCEKEY_IDEMPOTENCY__STALE_AFTER", "1h".to_owned()),
        ];
        let ours = ours.map(|(name, value)| (name.to_owned(), value));
        options.variables = ours.into_iter().chain(options.variables).collect();
        let node = TestNode::start(&database, &provider, options).await;
        // The keeper's first round takes the pool's connection too, and must not be what a test meets.
        let last = "select count(*) from pg_stat_activity where datname = current_database()
            and state = 'idle' and query like '%parse.forget_chunks%'";
        super::eventually("the keeper's first round is over", || async {
            database.count(last).await > 0
        })
        .await;
        let client = node.client("t1").await;
        Self { database, provider, proxy, trap, node, client }
    }

    /// What the proxy does from when an operation next comes to `point`.
    pub fn at(&self, point: oncekey::faults::Point, act: impl FnOnce(&Proxy) + Send + 'static) {
        let proxy = self.proxy.clone();
        self.trap.set(point, move || act(&proxy));
    }

    /// Ends the node and looks at what it leaves.
    pub async fn end(self) {
        super::node::assert_clean(self.node.store()).await;
        assert!(self.node.shut_down().await, "nothing had to be cut");
    }
}
