//! From arguments to an exit code.

fn main() {}
