//! Something that happens once, when an operation comes to a point.

use std::sync::{Arc, Mutex};

use oncekey::faults::{Faults, Point};

type Action = Box<dyn FnOnce() + Send>;

/// Set by a test, sprung by the next operation that comes by; clones are one and the same.
#[derive(Clone, Default)]
pub struct Trap(Arc<Mutex<Vec<(Point, Action)>>>);

impl Trap {
    /// What the node is built with.
    pub fn faults(&self) -> Faults {
        let trap = self.clone();
        Faults::hook(move |point| {
            let mut set = trap.0.lock().unwrap();
            let sprung = set.iter().position(|(at, _)| *at == point).map(|place| set.remove(place));
            drop(set);
            if let Some((_, action)) = sprung {
                action();
            }
            std::future::ready(())
        })
    }

    /// Does this when an operation next comes to `point`.
    pub fn set(&self, point: Point, action: impl FnOnce() + Send + 'static) {
        self.0.lock().unwrap().push((point, Box::new(action)));
    }

    /// Whether everything that was set has happened.
    pub fn sprung(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}
