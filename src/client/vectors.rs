//! The table that all client libraries share, for the tests of this one.

use serde::de::DeserializeOwned;
use serde_json::Value;

const FILE: &str = include_str!("../../clients/vectors.json");

/// One section of it.
pub fn section<T: DeserializeOwned>(name: &str) -> T {
    let mut file: Value = serde_json::from_str(FILE).unwrap();
    let section = file.get_mut(name).unwrap_or_else(|| panic!("there is no section {name}"));
    serde_json::from_value(section.take()).unwrap()
}
