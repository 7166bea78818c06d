//! What happened, in order: commands, answers, and the logs of the nodes. Shown where a history fails.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tracing::Dispatch;
use tracing_subscriber::fmt::MakeWriter;

/// The lines of one history; clones are one and the same.
#[derive(Clone)]
pub struct Journal {
    lines: Arc<Mutex<Vec<String>>>,
    begun: Instant,
}

impl Journal {
    pub fn new() -> Self {
        Self { lines: Arc::default(), begun: Instant::now() }
    }

    pub fn note(&self, line: impl AsRef<str>) {
        let at = self.begun.elapsed().as_millis();
        self.lines.lock().unwrap().push(format!("{at:>6} {}", line.as_ref().trim_end()));
    }

    pub fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// How often each event stands in the nodes' logs.
    pub fn events(&self) -> BTreeMap<String, usize> {
        let mut events = BTreeMap::new();
        for line in self.lines.lock().unwrap().iter() {
            let event = line.split_once("event=\"").and_then(|(_, rest)| rest.split('"').next());
            if let Some(event) = event {
                *events.entry(event.to_owned()).or_default() += 1;
            }
        }
        events
    }

    /// Takes in the logs of one node.
    pub fn of_node(&self, node: usize) -> Dispatch {
        let writer = NodeWriter { journal: self.clone(), node };
        let subscriber = tracing_subscriber::fmt()
            .with_writer(writer)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_max_level(tracing::Level::INFO)
            .finish();
        Dispatch::new(subscriber)
    }
}

#[derive(Clone)]
struct NodeWriter {
    journal: Journal,
    node: usize,
}

impl Write for NodeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.journal.note(format!("  node {} {}", self.node, String::from_utf8_lossy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for NodeWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
