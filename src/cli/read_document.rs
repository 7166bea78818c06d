//! `oncekey read-document`: the child of a server that reads one upload. Nobody types it.

use std::io::{stdin, stdout};
use std::process::ExitCode;

use crate::documents;

/// Reads a request on standard input, answers on standard output. Without threads of a runtime, whose
/// memory would count as the file's.
pub fn run() -> ExitCode {
    match documents::read_inside(stdin().lock(), stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("oncekey: {error}");
            ExitCode::from(1)
        }
    }
}
