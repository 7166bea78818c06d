//! The faults of a running process: counted, logged one by one, and taken by whoever is to be hurt.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::plan::{Act, Asked, Plan};
use super::point::Point;
use super::table::{COUNT, Fault};

/// What a hook does at a point; the operation goes on when it is ready.
type Hook = dyn Fn(Point) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// The faults of a process; none by default. Clones are one and the same and count together.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<Source>>);

enum Source {
    /// Set by a test in the process.
    Hook(Box<Hook>),
    /// Asked for by variables.
    Asked { plan: Plan, taken: [AtomicU32; COUNT] },
}

impl fmt::Debug for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => out.write_str("Faults(none)"),
            Some(Source::Hook(_)) => out.write_str("Faults(hook)"),
            Some(Source::Asked { plan, .. }) => write!(out, "Faults({plan})"),
        }
    }
}

impl Faults {
    pub fn none() -> Self {
        Self::default()
    }

    /// Calls `hook` at every point that is reached.
    pub fn hook<F, R>(hook: F) -> Self
    where
        F: Fn(Point) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Self(Some(Arc::new(Source::Hook(Box::new(move |point| Box::pin(hook(point)))))))
    }

    /// From now on does what the plan asks for, and says so.
    pub fn asked(plan: Plan) -> Self {
        if plan.is_empty() {
            return Self::none();
        }
        tracing::warn!(
            event = "faults_on",
            faults = %plan,
            "faults are switched on: this process misbehaves on purpose"
        );
        Self(Some(Arc::new(Source::Asked { plan, taken: Default::default() })))
    }

    /// Whether any of these is asked for, taken or not.
    pub fn asks_any(&self, faults: &[Fault]) -> bool {
        self.plan().is_some_and(|plan| faults.iter().any(|fault| plan.get(*fault).is_some()))
    }

    /// Takes the fault if it is asked for and still left, and logs it. `true`: the caller now does
    /// the harm.
    pub fn take(&self, fault: Fault) -> bool {
        self.taken(fault, None).is_some()
    }

    /// Takes a fault that lasts; how long.
    pub fn take_duration(&self, fault: Fault) -> Option<Duration> {
        match self.taken(fault, None)? {
            Asked::Duration(duration) => Some(duration),
            Asked::Act { .. } | Asked::Times(_) => None,
        }
    }

    /// How long a fault lasts that is asked for, without taking it.
    pub fn duration(&self, fault: Fault) -> Option<Duration> {
        self.plan()?.duration(fault)
    }

    /// An operation has come to `point`.
    pub async fn reach(&self, point: Point) {
        match self.0.as_deref() {
            None => {}
            Some(Source::Hook(hook)) => hook(point).await,
            Some(Source::Asked { .. }) => self.act(point).await,
        }
    }

    async fn act(&self, point: Point) {
        // What a run does from here on it does as a run.
        if point == Point::AfterClaim && self.take(Fault::RunPanic) {
            std::panic::panic_any("the fault that makes a run panic".to_owned());
        }
        match self.taken(point.fault(), Some(point)) {
            Some(Asked::Act { act: Act::Hang, .. }) => pending::<()>().await,
            Some(Asked::Act { act: Act::Panic, .. }) => {
                std::panic::panic_any(format!("fault at {}", point.as_str()));
            }
            Some(Asked::Times(_) | Asked::Duration(_)) | None => {}
        }
    }

    fn plan(&self) -> Option<&Plan> {
        match self.0.as_deref()? {
            Source::Asked { plan, .. } => Some(plan),
            Source::Hook(_) => None,
        }
    }

    fn taken(&self, fault: Fault, point: Option<Point>) -> Option<Asked> {
        let Source::Asked { plan, taken } = self.0.as_deref()? else { return None };
        let asked = plan.get(fault)?;
        let limit = asked.limit().unwrap_or(u32::MAX);
        let next = |taken: u32| (taken < limit).then_some(taken + 1);
        let before =
            taken[fault as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        tracing::warn!(
            event = "fault",
            fault = fault.log_name(),
            point = point.map(Point::as_str),
            %asked,
            count = before + 1,
            "a fault was asked for, and is taken"
        );
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn faults(variables: &[(&str, &str)]) -> Faults {
        let on = ("ONCEKEY_FAULTS", "on");
        let all = variables.iter().chain([&on]);
        let all = all.map(|&(name, text)| (name.to_owned(), text.to_owned()));
        Faults::asked(Plan::read(all).unwrap())
    }

    #[tokio::test]
    async fn without_faults_every_point_is_passed_and_none_is_taken() {
        let none = faults(&[]);
        for point in Point::ALL {
            none.reach(point).await;
        }
        assert!(!none.take(Fault::RunPanic));
        assert_eq!(none.duration(Fault::ProviderSlow), None);
    }

    #[test]
    fn a_counted_fault_is_taken_so_often_by_all_clones_together() {
        let three = faults(&[("ONCEKEY_FAULT_PROVIDER_CUT", "3")]);
        let clone = three.clone();
        assert!(three.take(Fault::ProviderCut) && clone.take(Fault::ProviderCut));
        assert!(three.take(Fault::ProviderCut));
        assert!(!three.take(Fault::ProviderCut) && !clone.take(Fault::ProviderCut));
        assert!(!three.take(Fault::ProviderHang), "another one was not asked for");
    }

    #[test]
    fn one_that_lasts_is_taken_every_time() {
        let slow = faults(&[("ONCEKEY_FAULT_PROVIDER_SLOW", "2s")]);
        for _ in 0..3 {
            let time = Some(Duration::from_secs(2));
            assert_eq!(slow.take_duration(Fault::ProviderSlow), time);
        }
    }

    #[test]
    fn points_hold_or_end_those_who_come_first() {
        let hang = faults(&[("ONCEKEY_FAULT_BEFORE_CALL", "hang:2")]);
        for hangs in [true, true, false] {
            assert_eq!(hang.reach(Point::BeforeCall).now_or_never().is_none(), hangs);
        }
        assert!(hang.reach(Point::AfterCall).now_or_never().is_some());
        let panics = |faults: &Faults, point| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                faults.reach(point).now_or_never()
            }))
            .is_err()
        };
        let always = faults(&[("ONCEKEY_FAULT_AFTER_COMMIT", "panic")]);
        assert!((0..3).all(|_| panics(&always, Point::AfterCommit)));
        let once = faults(&[("ONCEKEY_FAULT_RUN_PANIC", "1")]);
        assert!(!panics(&once, Point::BeforeClaim), "there is no run yet");
        assert!(panics(&once, Point::AfterClaim));
        assert!(!panics(&once, Point::AfterClaim));
    }
}
