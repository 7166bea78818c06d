//! Arrivals that look up their bearers and records in one statement. Those that ask the same are one look.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::super::api_keys::{Asked, KnownKey, known};
use super::super::{Store, StoreError, record};
use super::Joint;
use crate::clock::BoxFuture;
use crate::domain::record::Record;

impl Joint for Asked {
    type Outcome = Option<(KnownKey, Option<Record>)>;
    type Same = ();
    const NAME: &'static str = "arrival";

    fn about(&self) -> [Option<u64>; 2] {
        // Reading disturbs nobody.
        [None; 2]
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn together(
        store: Store,
        group: Arc<[Arc<Self>]>,
    ) -> BoxFuture<'static, Result<Vec<Option<Self::Outcome>>, StoreError>> {
        Box::pin(async move {
            let mut places = HashMap::new();
            let mut asked: Vec<Arc<Asked>> = Vec::with_capacity(group.len());
            let place_of: Vec<usize> = group
                .iter()
                .map(|one| {
                    *places.entry(one.clone()).or_insert_with(|| {
                        asked.push(one.clone());
                        asked.len() - 1
                    })
                })
                .collect();
            let asked: Arc<[Arc<Asked>]> = asked.into();
            let found = store
                .database
                .run_once_only("arrivals", move |connection| {
                    let asked = asked.clone();
                    Box::pin(async move {
                        let bearers: Vec<&[u8]> = asked.iter().map(|one| &one.bearer[..]).collect();
                        let keys: Vec<Uuid> = asked.iter().map(|one| one.key).collect();
                        let rows = record::read_with_bearers(connection, &bearers, &keys).await?;
                        if rows.len() != asked.len() {
                            return Err(StoreError::Bug("a look-up has no row".into()));
                        }
                        Ok(rows
                            .into_iter()
                            .zip(asked.iter())
                            // A row that cannot be read is its own arrival's error.
                            .map(|(row, one)| known(row, one.key).ok())
                            .collect::<Vec<_>>())
                    })
                })
                .await?;
            Ok(place_of.into_iter().map(|place| found.get(place).cloned().flatten()).collect())
        })
    }

    fn alone(
        store: Store,
        one: Arc<Self>,
    ) -> BoxFuture<'static, Result<Self::Outcome, StoreError>> {
        Box::pin(async move { store.look_up(one).await })
    }
}
