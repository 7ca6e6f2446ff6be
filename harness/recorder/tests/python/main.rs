//! The frame walker in real interpreters: each test runs a program of `programs/` in every CPython that it finds, with the
//! walker loaded through `ctypes` (`hook.rs`). The programs compare it with what the interpreter itself says.
//!
//! Interpreters: `python3` and `python3.N` on `PATH`, those of pyenv, and those in `FAULTLAB_TEST_PYTHONS` (paths, with
//! colons between). None at all fails the tests only if `FAULTLAB_REQUIRE` contains `python`.

#![expect(
    clippy::disallowed_methods,
    reason = "a test starts the programs under test, and finds them by the environment"
)]
#![expect(clippy::print_stderr, reason = "a test says what it ran, and what it did not")]

mod interpreters;

use std::fs::{self, File};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use interpreters::{FIRST_READABLE, INTERPRETERS, Interpreter, command};

/// Longer than any of the programs takes on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(5);

/// Runs a program to its end, or to that of patience.
fn run(interpreter: &Interpreter, program: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name| File::create(folder.path().join(name)).expect("a file");
    let read = |name: &str| fs::read(folder.path().join(name)).expect("its output");
    let mut command = command(interpreter, program);
    command.args(args).current_dir(folder.path()).stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
    let mut child = command.spawn().expect("it starts");
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if Instant::now() > until {
            child.kill().expect("a child");
            child.wait().expect("a child");
            panic!("{program} hangs in {}\n{}", interpreter.version, String::from_utf8_lossy(&read("stderr")));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: read("stdout"), stderr: read("stderr") }
}

/// Runs a program in all interpreters for which `fit` holds, and gives what each printed.
#[track_caller]
fn everywhere(program: &str, args: &[&str], fit: impl Fn(&Interpreter) -> bool) -> Vec<(u32, String)> {
    let mut printed = Vec::new();
    let mut failures = Vec::new();
    for interpreter in INTERPRETERS.iter().filter(|i| i.minor >= FIRST_READABLE && fit(i)) {
        let output = run(interpreter, program, args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            eprint!("{program}: {out}");
            printed.push((interpreter.minor, out.into_owned()));
        } else {
            let (version, status) = (&interpreter.version, output.status);
            failures.push(format!("{program} in {version} ({}): {status}\n{out}{err}", interpreter.program.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    printed
}

/// One of each minor version is enough for what takes long.
fn first_of_its_minor(interpreter: &Interpreter) -> bool {
    INTERPRETERS.iter().find(|i| i.minor == interpreter.minor).is_some_and(|i| std::ptr::eq(i, interpreter))
}

#[test]
fn the_interpreters_own_lines() {
    for (minor, printed) in everywhere("lines.py", &[], |_| true) {
        let how = if minor < 13 { "frames by table" } else { "frames by published debug offsets" };
        assert!(printed.contains(how), "{printed}");
    }
}

#[test]
fn all_lines_of_the_standard_library() {
    everywhere("stdlib.py", &[], first_of_its_minor);
}

#[test]
fn threads_that_make_and_drop_code() {
    everywhere("threads.py", &["3"], |_| true);
}

#[test]
fn children_that_fork() {
    everywhere("fork.py", &[], |_| true);
}

#[test]
fn an_interpreter_that_ends() {
    for _ in 0..5 {
        for (_, printed) in everywhere("exit.py", &[], |_| true) {
            // The last words are those of the C library's exit function, when there is no interpreter any more.
            let gone =
                printed.lines().filter(|l| l.starts_with("at exit") && l.contains(r#""frames":[],"readable":true"#));
            assert_eq!(gone.count(), 2, "{printed}");
        }
    }
}

#[test]
fn another_interpreter_in_the_process() {
    everywhere("subinterpreter.py", &[], |_| true);
}

#[test]
fn inside_of_pytorch() {
    if everywhere("torch_hooks.py", &[], |i| i.has_torch).is_empty() {
        eprintln!("not run: no interpreter with torch is here");
    }
}

#[test]
fn a_version_that_cannot_be_read() {
    let old = INTERPRETERS.iter().rfind(|i| i.minor < FIRST_READABLE);
    let Some(interpreter) = old else {
        eprintln!("not run: no interpreter older than 3.10 is here");
        return;
    };
    let output = run(interpreter, "unreadable.py", &[]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("3.10 and later can be read, native frames only"), "{out}");
}
