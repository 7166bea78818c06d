//! Arguments to exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    oncekey::cli::main()
}
