//! Nanoseconds of a walk, in every CPython that is found: `cargo bench -p faultlab-recorder --bench python_walk`.

#![expect(clippy::disallowed_methods, reason = "it starts the interpreters, and finds them by the environment")]
#![expect(clippy::print_stderr, reason = "it prints figures")]

mod interpreters;

use interpreters::{FIRST_READABLE, INTERPRETERS, command};

fn main() {
    for interpreter in INTERPRETERS.iter().filter(|i| i.minor >= FIRST_READABLE) {
        let status = command(interpreter, "time_walks.py").status();
        assert!(status.is_ok_and(|s| s.success()), "{}", interpreter.program.display());
    }
}
