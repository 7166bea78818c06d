//! A whole node on a runtime of its own, so that it can vanish like a killed process and stand still
//! like a stopped one.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use oncekey::app::App;
use oncekey::faults::{Faults, Point};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::history::{Line, Place, Way};
use super::journal::Journal;
use crate::support::TestDatabase;
use crate::support::node::{NodeOptions, setup};
use crate::support::proxy::{Mode, Proxy, Target};

/// A start that takes longer has failed.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A place for a node; it may be down.
pub struct Node {
    pub number: usize,
    pub days: i64,
    starts: usize,
    variables: Vec<(String, String)>,
    pool: Proxy,
    beats: Proxy,
    ways: (Way, Way),
    holds: Holds,
    running: Option<Running>,
    /// Where it listens, or last did.
    pub address: SocketAddr,
}

struct Running {
    /// There until it is dropped.
    runtime: Option<Runtime>,
    app: Option<App>,
    /// Dropped, the node goes on.
    frozen: Option<mpsc::Sender<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // First the end, then the thaw: a frozen node that is killed does nothing more.
            runtime.shutdown_background();
        }
    }
}

impl Node {
    pub async fn new(
        number: usize,
        days: i64,
        variables: Vec<(String, String)>,
        database: &TestDatabase,
    ) -> Self {
        Self {
            number,
            days,
            starts: 0,
            variables,
            pool: Proxy::start(Target::Unix(database.socket())).await,
            beats: Proxy::start(Target::Unix(database.socket())).await,
            ways: (Way::Pass, Way::Pass),
            holds: Holds::default(),
            running: None,
            address: ([127, 0, 0, 1], 9).into(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts it; without effect where it runs. The error says why it did not start.
    pub async fn start(
        &mut self,
        days: i64,
        database: &TestDatabase,
        journal: &Journal,
    ) -> Result<(), String> {
        if self.is_running() {
            return Ok(());
        }
        self.starts += 1;
        let mut variables = self.variables.clone();
        let direct = database.url_through(self.beats.address.port());
        variables.push(("ONCEKEY_DATABASE_URL_DIRECT".to_owned(), direct));
        let options = NodeOptions {
            faults: self.holds.faults(),
            clock_offset: Duration::from_secs(u64::try_from(days).unwrap() * 86_400),
            // Every connection says whose it is, for the watch in the database.
            database_url: Some(format!(
                "{}&options=-c%20sim.node%3D{}.{}",
                database.url_through(self.pool.address.port()),
                self.number,
                self.starts
            )),
            ..NodeOptions::default()
        };
        let setup = setup(database, variables, options);
        let logs = journal.of_node(self.number);
        let of_threads = logs.clone();
        let runtime = Builder::new_multi_thread()
            // One: whoever blocks it stops the whole node.
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || {
                std::mem::forget(tracing::dispatcher::set_default(&of_threads));
            })
            .build()
            .unwrap();
        let handle = runtime.handle().clone();
        // A thread of its own: a start may not move between threads.
        let started = tokio::task::spawn_blocking(move || {
            let start = async { tokio::time::timeout(START_LIMIT, App::start(setup)).await };
            tracing::dispatcher::with_default(&logs, || handle.block_on(start))
        });
        let mut running = Running { runtime: Some(runtime), app: None, frozen: None };
        let app = started
            .await
            .unwrap()
            .map_err(|_| "it takes too long".to_owned())?
            .map_err(|error| error.to_string())?;
        (self.address, self.days) = (app.address(), days);
        running.app = Some(app);
        self.running = Some(running);
        Ok(())
    }

    /// Gone, as by SIGKILL.
    pub fn crash(&mut self) {
        self.running = None;
    }

    /// Told to end; `None` where that took longer than `limit`, and it was killed.
    pub async fn drain(&mut self, limit: Duration) -> Option<bool> {
        let mut running = self.running.take()?;
        let (app, runtime) = (running.app.take()?, running.runtime.as_ref()?);
        let ended = runtime.spawn(app.shut_down(std::future::pending()));
        tokio::time::timeout(limit, ended).await.ok().map(|whole| whole.unwrap())
    }

    /// As by SIGSTOP: no task of it moves, no timer fires.
    pub fn freeze(&mut self) {
        let Some(running) = &mut self.running else { return };
        if running.frozen.is_some() {
            return;
        }
        let (sender, until) = mpsc::channel::<()>();
        if let Some(runtime) = &running.runtime {
            runtime.spawn(async move {
                let _ = until.recv();
            });
        }
        running.frozen = Some(sender);
    }

    pub fn thaw(&mut self) {
        if let Some(running) = &mut self.running {
            running.frozen = None;
        }
    }

    /// Operations that are being worked on.
    pub fn runs(&self) -> usize {
        let app = self.running.as_ref().and_then(|running| running.app.as_ref());
        app.map_or(0, |app| app.lifecycle().runs())
    }

    fn line(&self, line: Line) -> &Proxy {
        match line {
            Line::Pool => &self.pool,
            Line::Beats => &self.beats,
        }
    }

    pub fn set_line(&mut self, line: Line, way: Way) {
        let before = match line {
            Line::Pool => std::mem::replace(&mut self.ways.0, way),
            Line::Beats => std::mem::replace(&mut self.ways.1, way),
        };
        self.line(line).set(match way {
            Way::Pass => Mode::Pass,
            Way::Freeze => Mode::Freeze,
            Way::SwallowReplies => Mode::SwallowReplies,
            Way::DelayReplies { ms } => Mode::DelayReplies(Duration::from_millis(ms)),
            Way::Refuse => Mode::Refuse,
        });
        if before == Way::SwallowReplies && way != before {
            // What was swallowed never comes; its connection would wait for it.
            self.cut_line(line);
        }
    }

    pub fn cut_line(&self, line: Line) {
        self.line(line).cut();
    }

    pub fn hold(&self, place: Place) {
        self.holds.change(|state| state.held.push(place.point()));
    }

    pub fn release(&self) {
        self.holds.change(|state| state.held.clear());
    }

    pub fn panic(&self, place: Place) {
        self.holds.change(|state| state.panics.push(place.point()));
    }

    /// Waits until somebody is held who came after this was called last.
    pub async fn until_held(&self) {
        let mut state = self.holds.0.subscribe();
        drop(state.wait_for(|state| state.reached > 0).await);
        self.holds.change(|state| state.reached = 0);
    }
}

/// Where operations of a node wait or panic.
#[derive(Clone, Default)]
struct Holds(Arc<watch::Sender<HoldState>>);

#[derive(Default)]
struct HoldState {
    held: Vec<Point>,
    panics: Vec<Point>,
    reached: usize,
}

impl Holds {
    fn change(&self, change: impl FnOnce(&mut HoldState)) {
        self.0.send_modify(change);
    }

    fn faults(&self) -> Faults {
        let holds = self.clone();
        Faults::hook(move |point| {
            let holds = holds.clone();
            async move { holds.pass(point).await }
        })
    }

    async fn pass(&self, point: Point) {
        let mut panics = false;
        self.change(|state| {
            let at = state.panics.iter().position(|known| *known == point);
            panics = at.map(|at| state.panics.swap_remove(at)).is_some();
            state.reached += usize::from(state.held.contains(&point));
        });
        if panics {
            // Past the hook, which would print it.
            std::panic::resume_unwind(Box::new("a panic of the history"));
        }
        let mut state = self.0.subscribe();
        drop(state.wait_for(|state| !state.held.contains(&point)).await);
    }
}
