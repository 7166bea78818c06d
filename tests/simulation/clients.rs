//! The clients of a history, and everything that they were told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use super::history::History;
use super::journal::Journal;
use crate::support::client::Answer;
use crate::support::{Client, PATIENCE};

/// A client that hears nothing for so long goes away and asks again.
const ONE_TRY: Duration = Duration::from_secs(6);
/// Between two tries of the same request.
const PAUSE: Duration = Duration::from_millis(30);

/// One answer that reached its client.
#[derive(Debug, Clone)]
pub struct Told {
    pub operation: usize,
    /// Whether the other body of the key was sent.
    pub other: bool,
    pub answer: Answer,
    /// After the last fault was over.
    pub at_rest: bool,
}

impl Told {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.answer.bytes).into_owned()
    }
}

/// A client for every tenant.
#[derive(Clone)]
pub struct Clients {
    history: Arc<History>,
    journal: Journal,
    by_tenant: Arc<BTreeMap<String, Client>>,
    told: Arc<Mutex<Vec<Told>>>,
    waiting: Arc<Mutex<Vec<(usize, AbortHandle)>>>,
    tasks: TaskTracker,
}

impl Clients {
    pub fn new(
        history: Arc<History>,
        journal: Journal,
        by_tenant: BTreeMap<String, Client>,
    ) -> Self {
        Self {
            history,
            journal,
            by_tenant: Arc::new(by_tenant),
            told: Arc::default(),
            waiting: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Sends, and goes on: whatever comes back is noted when it comes.
    pub fn send(&self, operation: usize, other: bool, address: std::net::SocketAddr) {
        let this = self.clone();
        let task = self.tasks.spawn(async move {
            this.ask(operation, other, address, false).await;
        });
        self.waiting.lock().unwrap().push((operation, task.abort_handle()));
    }

    /// Whoever waits for this operation goes away.
    pub fn cut(&self, operation: usize) {
        self.waiting.lock().unwrap().retain(|(waiting, task)| {
            if *waiting == operation {
                task.abort();
            }
            *waiting != operation
        });
    }

    /// Waits until nobody waits for an answer any more.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Everything that was told, in order.
    pub fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    async fn ask(
        &self,
        operation: usize,
        other: bool,
        address: std::net::SocketAddr,
        at_rest: bool,
    ) -> Option<Answer> {
        let client = self.by_tenant[&self.history.tenant(operation)].at(address);
        let body = json!({
            "conversation_id": self.history.conversation(operation),
            "message": self.history.message(operation, other),
        });
        let request = client.chat_request(self.history.key(operation), &body);
        let answer = tokio::time::timeout(ONE_TRY, client.send(request)).await;
        let what = if other { "other body" } else { "request" };
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                self.journal.note(format!("{what} of operation {operation}: connection lost"));
                return None;
            }
            Err(_) => {
                self.journal.note(format!("{what} of operation {operation}: client gave up"));
                return None;
            }
        };
        let told = Told { operation, other, answer: answer.clone(), at_rest };
        self.journal.note(format!(
            "{what} of operation {operation}: {} {}",
            answer.status,
            told.text()
        ));
        self.told.lock().unwrap().push(told);
        Some(answer)
    }

    /// Sends the same request, now here and now there, until its answer does not ask for more.
    pub async fn until_answered(
        &self,
        operation: usize,
        other: bool,
        addresses: &[std::net::SocketAddr],
    ) -> Result<Answer, String> {
        let tries = async {
            for address in addresses.iter().cycle().skip(operation) {
                let answer = self.ask(operation, other, *address, true).await;
                match answer {
                    Some(answer) if matches!(answer.status, 200 | 400..=408 | 410..=428) => {
                        return answer;
                    }
                    _ => tokio::time::sleep(PAUSE).await,
                }
            }
            unreachable!("addresses never end")
        };
        tokio::time::timeout(PATIENCE, tries)
            .await
            .map_err(|_| format!("operation {operation} is not answered, however often it is sent"))
    }
}
