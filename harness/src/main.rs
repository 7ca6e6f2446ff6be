//! The `faultlab` binary: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    faultlab::cli::main()
}
