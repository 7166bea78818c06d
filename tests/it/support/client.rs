//! A client of the service, as an app would write it, without a retry of its own.

use std::net::SocketAddr;

use serde_json::{Value, json};
use uuid::Uuid;

use super::contract;

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&self.bytes)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The `error` code of a problem.
    pub fn error(&self) -> String {
        let body = self.json();
        assert_eq!(body["status"], self.status, "{body}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        body["error"].as_str().unwrap_or_default().to_owned()
    }

    /// The text of the assistant's answer.
    pub fn content(&self) -> String {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.bytes));
        self.json()["message"]["content"].as_str().unwrap().to_owned()
    }

    pub fn replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }
}

/// Bound to one node and one API key; cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub base: String,
    pub key: String,
    pub http: reqwest::Client,
}

impl Client {
    pub fn new(address: SocketAddr, key: &str) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { base: format!("http://{address}"), key: key.to_owned(), http }
    }

    /// The same client against another node.
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { base: format!("http://{address}"), ..self.clone() }
    }

    /// The same client with another API key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// A request with the API key.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.key)
    }

    /// Sends one; `Err` where the connection broke. Whatever comes back must stand in the document.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Result<Answer, reqwest::Error> {
        let request = request.build()?;
        let (method, path) = (request.method().to_string(), request.url().path().to_owned());
        let response = self.http.execute(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let answer = Answer { status, headers, bytes: response.bytes().await?.to_vec() };
        contract::check(&method, &path, &answer);
        Ok(answer)
    }

    pub fn chat_request(&self, key: Uuid, body: &Value) -> reqwest::RequestBuilder {
        self.request("POST", "/v1/chat")
            .header("content-type", "application/json")
            .header("idempotency-key", key.to_string())
            .body(body.to_string())
    }

    /// A chat that must get some answer.
    pub async fn chat(&self, key: Uuid, conversation: &str, message: &str) -> Answer {
        let body = json!({"conversation_id": conversation, "message": message});
        self.send(self.chat_request(key, &body)).await.unwrap()
    }

    /// A chat whose connection may break.
    pub async fn try_chat(
        &self,
        key: Uuid,
        conversation: &str,
        message: &str,
    ) -> Result<Answer, reqwest::Error> {
        let body = json!({"conversation_id": conversation, "message": message});
        self.send(self.chat_request(key, &body)).await
    }

    /// Sends the same request until it is answered with something that a machine need not repeat,
    /// as long as the answers ask for. Returns the last one.
    pub async fn chat_until_answered(
        &self,
        key: Uuid,
        conversation: &str,
        message: &str,
    ) -> Answer {
        let deadline = tokio::time::Instant::now() + super::PATIENCE;
        loop {
            let answer = self.chat(key, conversation, message).await;
            let again = matches!(answer.status, 409 | 502..=504);
            if !again || tokio::time::Instant::now() > deadline {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path)).await.unwrap()
    }
}
