//! The clients of a history, and everything that they were told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
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

/// What a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Own,
    /// The same, and waits for a run that is under way.
    OwnPatiently,
    /// Another one under the same key.
    Other,
}

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
    /// What was asked beside operations, and the statuses of the answers.
    aside: Arc<Mutex<Vec<(&'static str, u16)>>>,
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
            aside: Arc::default(),
            waiting: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Sends, and goes on: whatever comes back is noted when it comes.
    pub fn send(&self, operation: usize, body: Body, address: SocketAddr) {
        let this = self.clone();
        let task = self.tasks.spawn(async move {
            this.ask(operation, body, address, false).await;
        });
        self.waiting.lock().unwrap().push((operation, task.abort_handle()));
    }

    /// Cancels an operation.
    pub fn cancel(&self, operation: usize, address: SocketAddr) {
        let path = format!("/v1/requests/{}/cancel", self.history.key(operation));
        self.send_aside("cancel", "POST", path, operation, address);
    }

    /// Deletes the conversation of an operation.
    pub fn erase(&self, operation: usize, address: SocketAddr) {
        let path = format!("/v1/conversations/{}", self.history.conversation(operation));
        self.send_aside("erase", "DELETE", path, operation, address);
    }

    fn send_aside(
        &self,
        what: &'static str,
        method: &'static str,
        path: String,
        operation: usize,
        address: SocketAddr,
    ) {
        let this = self.clone();
        self.tasks.spawn(async move {
            let client = this.by_tenant[&this.history.tenant(operation)].at(address);
            let sent = client.send(client.request(method, &path));
            if let Ok(Ok(answer)) = tokio::time::timeout(ONE_TRY, sent).await {
                this.journal.note(format!("{what} {operation}: {}", answer.status));
                this.aside.lock().unwrap().push((what, answer.status));
            }
        });
    }

    /// What was asked beside operations, and the statuses of the answers.
    pub fn aside(&self) -> Vec<(&'static str, u16)> {
        self.aside.lock().unwrap().clone()
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
        body: Body,
        address: SocketAddr,
        at_rest: bool,
    ) -> Option<Answer> {
        let other = body == Body::Other;
        let client = self.by_tenant[&self.history.tenant(operation)].at(address);
        let text = json!({
            "conversation_id": self.history.conversation(operation),
            "message": self.history.message(operation, other),
        });
        let mut request = client.chat_request(self.history.key(operation), &text);
        if body == Body::OwnPatiently {
            request = request.header("prefer", "wait=2");
        }
        let answer = tokio::time::timeout(ONE_TRY, client.send(request)).await;
        let what = format!("{body:?}");
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
        body: Body,
        addresses: &[SocketAddr],
    ) -> Result<Answer, String> {
        let tries = async {
            for address in addresses.iter().cycle().skip(operation) {
                let answer = self.ask(operation, body, *address, true).await;
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
