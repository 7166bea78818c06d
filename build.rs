//! Makes `sqlx-data.json` the description of the database that the checked SQL macros compile
//! against, so that a build needs no database and a statement nobody described does not compile.
//!
//! sqlx looks for `query-<hash>.json` files in the folder that `SQLX_OFFLINE_DIR` names. One
//! reviewed file is kept instead; here it is split into such a folder under `OUT_DIR`.
//! `SQLX_OFFLINE=true` goes with it, since otherwise a `DATABASE_URL` of the developer's shell, or
//! of an `.env` in any parent folder, would be asked instead.
//!
//! When `SQLX_OFFLINE_DIR` is already set this steps aside: that is how `.ci/sqlx-data` makes the
//! file anew against a live database.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

const DATA_FILE: &str = "sqlx-data.json";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={DATA_FILE}");
    // `sqlx::migrate!` watches the files it found, not the folder that a new one is added to.
    println!("cargo::rerun-if-changed=migrations");
    println!("cargo::rerun-if-env-changed=SQLX_OFFLINE_DIR");

    if env::var_os("SQLX_OFFLINE_DIR").is_some_and(|dir| !dir.is_empty()) {
        return Ok(());
    }
    let out_dir = env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?;
    let dir = PathBuf::from(out_dir).join("sqlx-data");
    let text = fs::read_to_string(DATA_FILE).map_err(|error| format!("{DATA_FILE}: {error}"))?;
    write_queries(&split(&text)?, &dir)?;

    println!("cargo::rustc-env=SQLX_OFFLINE_DIR={}", dir.display());
    println!("cargo::rustc-env=SQLX_OFFLINE=true");
    Ok(())
}

/// The files that sqlx will look for, name to content.
///
/// Refused is what would otherwise show as "no cached data" far from its cause: text that is no
/// object of objects, and an entry filed under another hash than its own.
pub fn split(text: &str) -> Result<BTreeMap<String, String>, String> {
    let queries: BTreeMap<String, Value> = serde_json::from_str(text).map_err(|error| {
        format!("{DATA_FILE}: {error}; run .ci/sqlx-data to make the file anew")
    })?;
    let mut files = BTreeMap::new();
    for (hash, query) in queries {
        if query.get("hash").and_then(Value::as_str) != Some(hash.as_str()) {
            return Err(format!("{DATA_FILE}: the entry {hash} is not the query of that hash"));
        }
        files.insert(format!("query-{hash}.json"), query.to_string());
    }
    Ok(files)
}

/// Replaces the folder: a file left over from a query that is gone would let its text compile.
pub fn write_queries(files: &BTreeMap<String, String>, dir: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(failed)?;
    }
    fs::create_dir_all(dir).map_err(failed)?;
    for (name, content) in files {
        fs::write(dir.join(name), content).map_err(failed)?;
    }
    Ok(())
}
