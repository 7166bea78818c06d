//! What is asked, and the workers that ask it over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::json;
use uuid::{Builder, Uuid};

use super::BenchError;
use super::client::{Answer, Connection};
use super::load::{Step, Worker};
use crate::clock::{BoxFuture, Clock};
use crate::domain::chat::ChatRequest;

/// Whose operations are measured.
pub const TENANT: &str = "bench";
/// The model whose answers take [`DELAY`].
pub const DELAYED: &str = "delayed";
pub const DELAY: Duration = Duration::from_millis(20);
const MESSAGE: &str =
    "What is an idempotency key, and who has to make it up? In one sentence, please.";

/// One operation that a client means.
#[derive(Debug, Clone)]
pub struct Question {
    pub key: Uuid,
    pub conversation: String,
    pub body: Bytes,
}

impl Question {
    /// A new operation in a new conversation.
    pub fn new(clock: &Clock, model: &str) -> Self {
        Self::within(clock, model, random_id(clock).to_string())
    }

    /// A new operation in this conversation.
    pub fn within(clock: &Clock, model: &str, conversation: String) -> Self {
        let body = json!({"conversation_id": conversation, "message": MESSAGE, "model": model});
        Self { key: random_id(clock), conversation, body: body.to_string().into() }
    }

    /// What the service stores as this request's meaning.
    pub fn hash(&self) -> Result<Vec<u8>, BenchError> {
        let text = String::from_utf8_lossy(&self.body);
        let request =
            ChatRequest::read(&text).map_err(|error| BenchError::failed(error.to_string()))?;
        Ok(request.meaning(None).0.to_vec())
    }
}

/// A UUIDv4, as most clients send: a later one does not follow an earlier one in an index.
pub fn random_id(clock: &Clock) -> Uuid {
    let [low @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = clock.secret();
    Builder::from_random_bytes(low).into_uuid()
}

/// Where questions go and what must come back.
#[derive(Debug, Clone)]
pub struct Door {
    pub address: SocketAddr,
    pub path: &'static str,
    /// The value of the `Authorization` header.
    pub authorization: Option<String>,
    pub prefer: Option<&'static str>,
    pub status: u16,
    /// Whether the answer must be told again, or for the first time.
    pub replayed: bool,
}

impl Door {
    /// Asks one question, which must be answered as it should.
    pub async fn ask(
        &self,
        connection: &mut Connection,
        question: &Question,
    ) -> Result<Answer, BenchError> {
        let answer = self.send(connection, question).await?;
        self.check(answer)
    }

    /// Sends one question, whatever is answered.
    pub async fn send(
        &self,
        connection: &mut Connection,
        question: &Question,
    ) -> Result<Answer, BenchError> {
        let mut request = Request::post(self.path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("idempotency-key", question.key.to_string());
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(prefer) = self.prefer {
            request = request.header("prefer", prefer);
        }
        let request = request.body(Full::new(question.body.clone()))?;
        connection.send(request).await
    }

    /// Refuses any other answer than the one that must come.
    pub fn check(&self, answer: Answer) -> Result<Answer, BenchError> {
        let replayed = answer.headers.contains_key("idempotency-replayed");
        if (answer.status.as_u16(), replayed) == (self.status, self.replayed) {
            return Ok(answer);
        }
        Err(BenchError::failed(format!(
            "{} was answered with {}{}: {}",
            self.path,
            answer.status,
            if replayed { " (replayed)" } else { "" },
            String::from_utf8_lossy(&answer.body)
        )))
    }
}

/// Where a worker's next question comes from.
#[derive(Clone)]
pub enum Questions {
    /// Each a new operation in a new conversation.
    New { clock: Clock, model: &'static str },
    /// New operations in a conversation that grows to so many of them.
    Talk { clock: Clock, length: usize },
    /// These, over and over.
    Again(Arc<Vec<Question>>),
    /// These, each once, whoever comes first.
    Once(Arc<Vec<Question>>, Arc<AtomicUsize>),
}

/// A client over HTTP.
pub struct Client {
    connection: Connection,
    door: Arc<Door>,
    questions: Questions,
    asked: usize,
    conversation: String,
}

impl Client {
    /// Opens the connection. `place` is the worker's number among all.
    pub async fn open(
        door: &Arc<Door>,
        questions: &Questions,
        place: usize,
    ) -> Result<Box<dyn Worker>, BenchError> {
        let connection = Connection::open(door.address).await?;
        let (door, questions) = (door.clone(), questions.clone());
        // Not all at the same question at once.
        let asked =
            if let Questions::Again(known) = &questions { place * known.len() / 64 } else { 0 };
        Ok(Box::new(Self { connection, door, questions, asked, conversation: String::new() }))
    }

    fn next(&mut self) -> Option<Question> {
        let asked = self.asked;
        self.asked += 1;
        match &self.questions {
            Questions::New { clock, model } => Some(Question::new(clock, model)),
            Questions::Talk { clock, length } => {
                if asked.is_multiple_of(*length) {
                    self.conversation = random_id(clock).to_string();
                }
                Some(Question::within(clock, "default", self.conversation.clone()))
            }
            Questions::Again(known) => known.get(asked % known.len()).cloned(),
            Questions::Once(known, next) => {
                known.get(next.fetch_add(1, Ordering::Relaxed)).cloned()
            }
        }
    }
}

impl Worker for Client {
    fn operate(&mut self) -> BoxFuture<'_, Result<Step, BenchError>> {
        Box::pin(async {
            let Some(question) = self.next() else { return Ok(Step::Exhausted) };
            self.door.ask(&mut self.connection, &question).await?;
            Ok(Step::Done)
        })
    }
}
