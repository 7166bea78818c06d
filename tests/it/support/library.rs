//! The client library as a program would use it, with waits that a test can afford, and what it told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::client::{Client, ClientBuilder, Journal, JournalError, Repeat, RetryPolicy, Why};
use tokio::sync::watch;

use super::provider::patiently;

/// As many repeats as by default, at once; a 409 is asked about again almost at once too.
pub fn quick() -> RetryPolicy {
    let wait = Duration::from_millis(20);
    RetryPolicy { waits: vec![wait; 2], jitter: 0.0, longest_wait: wait }
}

/// A library client whose repeats are kept.
#[derive(Clone)]
pub struct Repeats(Arc<watch::Sender<Vec<Repeat>>>);

impl Repeats {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    /// A builder for the server at this address, with quick waits.
    pub fn builder(&self, address: SocketAddr, api_key: &str) -> ClientBuilder {
        let told = self.0.clone();
        Client::builder(&format!("http://{address}"), api_key)
            .retry(quick())
            .on_repeat(move |repeat| told.send_modify(|all| all.push(repeat.clone())))
    }

    pub fn client(&self, address: SocketAddr, api_key: &str) -> Client {
        self.builder(address, api_key).build().unwrap()
    }

    /// Why the requests were sent again so far, equal reasons in a row told once.
    pub fn why(&self) -> Vec<Why> {
        let mut why: Vec<Why> = self.0.borrow().iter().map(|repeat| repeat.why.clone()).collect();
        why.dedup();
        why
    }

    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// Waits until a request was sent again for this reason.
    pub async fn until(&self, why: &Why) {
        let mut all = self.0.subscribe();
        let seen = all.wait_for(|all| all.iter().any(|repeat| repeat.why == *why));
        patiently("a request to be sent again", seen).await.unwrap();
    }
}

/// A journal in memory: operations that were begun and did not end.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Vec<Operation>>>);

/// Its key and its bytes.
pub type Operation = (String, Vec<u8>);

impl Kept {
    pub fn all(&self) -> Vec<Operation> {
        self.0.lock().unwrap().clone()
    }
}

impl Journal for Kept {
    fn begun(&self, key: &str, operation: &[u8]) -> Result<(), JournalError> {
        self.0.lock().unwrap().push((key.to_owned(), operation.to_owned()));
        Ok(())
    }

    fn ended(&self, key: &str) {
        self.0.lock().unwrap().retain(|(known, _)| known != key);
    }
}
