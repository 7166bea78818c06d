//! Named points of an operation at which something can be made to go wrong. Without faults a point
//! costs nothing. Tests in the process hook them; a process of its own takes them from variables
//! `ONCEKEY_FAULT_<POINT>=hang` or `panic`, and only with `ONCEKEY_FAULTS=on`.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;

/// Where an operation can be interrupted, in the order in which a run passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    BeforeClaim,
    /// The claim is won; no run has begun.
    AfterClaim,
    BeforeCall,
    /// The provider's answer is whole; nothing is written yet.
    AfterCall,
    BeforeCommit,
    /// Committed; nobody has been told.
    AfterCommit,
}

impl Point {
    pub const ALL: [Point; 6] = [
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::BeforeCall,
        Point::AfterCall,
        Point::BeforeCommit,
        Point::AfterCommit,
    ];

    /// The word in the variable's name, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Point::BeforeClaim => "before_claim",
            Point::AfterClaim => "after_claim",
            Point::BeforeCall => "before_call",
            Point::AfterCall => "after_call",
            Point::BeforeCommit => "before_commit",
            Point::AfterCommit => "after_commit",
        }
    }
}

/// What a hook does at a point; the operation goes on when it is ready.
type Hook = dyn Fn(Point) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// The faults of a process; none by default.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<Hook>>);

impl fmt::Debug for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Faults(on)" } else { "Faults(none)" })
    }
}

/// What a variable asks for at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Hang,
    Panic,
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
        Self(Some(Arc::new(move |point| Box::pin(hook(point)))))
    }

    /// Reads the variables. The error, for the operator, says which one is wrong, or that faults are
    /// not switched on.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, String> {
        let mut on = false;
        let mut asked = BTreeMap::new();
        for (name, value) in variables {
            if name == "ONCEKEY_FAULTS" {
                on = value == "on";
                continue;
            }
            let Some(word) = name.strip_prefix("ONCEKEY_FAULT_") else { continue };
            let word = word.to_ascii_lowercase();
            let Some(point) = Point::ALL.into_iter().find(|point| point.as_str() == word) else {
                continue;
            };
            let action = match value.as_str() {
                "hang" => Action::Hang,
                "panic" => Action::Panic,
                _ => return Err(format!("{name}={value}: use hang or panic")),
            };
            asked.insert(point, action);
        }
        if asked.is_empty() {
            return Ok(Self::none());
        }
        if !on {
            return Err(
                "faults are asked for, but not allowed here: set ONCEKEY_FAULTS=on as well".into(),
            );
        }
        tracing::warn!(
            event = "faults_on",
            ?asked,
            "faults are switched on: this process misbehaves on purpose"
        );
        Ok(Self::hook(move |point| {
            let action = asked.get(&point).copied();
            async move {
                let Some(action) = action else { return };
                tracing::warn!(event = "fault", point = point.as_str(), ?action, "fault reached");
                match action {
                    Action::Hang => pending::<()>().await,
                    Action::Panic => std::panic::panic_any(format!("fault at {}", point.as_str())),
                }
            }
        }))
    }

    /// An operation has come to `point`.
    pub async fn reach(&self, point: Point) {
        if let Some(hook) = &self.0 {
            hook(point).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Faults, String> {
        Faults::from_variables(variables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())))
    }

    #[test]
    fn faults_are_refused_unless_switched_on_and_named_right() {
        assert!(read(&[]).unwrap().0.is_none());
        assert!(read(&[("ONCEKEY_FAULTS", "on")]).unwrap().0.is_none());
        assert!(read(&[("ONCEKEY_FAULT_BEFORE_COMMIT", "hang")]).is_err());
        let on = ("ONCEKEY_FAULTS", "on");
        assert!(read(&[("ONCEKEY_FAULT_BEFORE_COMMIT", "explode"), on]).is_err());
        assert!(read(&[("ONCEKEY_FAULT_BEFORE_COMMIT", "hang"), on]).unwrap().0.is_some());
    }

    #[tokio::test]
    async fn without_faults_a_point_is_passed() {
        for point in Point::ALL {
            Faults::none().reach(point).await;
        }
    }
}
