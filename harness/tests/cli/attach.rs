//! `faultlab attach`: gdb on a program that hangs.

use std::process::{Command, Stdio};

use crate::fixture::{Cli, require, wait_for};

/// The main thread spins; another one waits for ever.
const HUNG: &str = "\
import pathlib
import threading

never = threading.Event()


def spin():
    pathlib.Path('spinning').touch()
    while not never.is_set():
        pass


threading.Thread(target=never.wait, daemon=True).start()
spin()
";

#[test]
fn a_hung_program_is_looked_at_and_goes_on() {
    if !require("python") || !require("gdb") {
        return;
    }
    let cli = Cli::bare();
    cli.write("hung.py", HUNG);
    #[expect(clippy::disallowed_methods, reason = "what is attached to is not faultlab's own")]
    let mut hung = Command::new("python3")
        .arg("hung.py")
        .current_dir(cli.path(""))
        .stdin(Stdio::null())
        .spawn()
        .expect("python3 starts");
    wait_for("the program spins", || cli.path("spinning").exists());
    let pid = hung.id().to_string();
    let ran = cli.run(&["attach", &pid, "--out", "look"]);
    let goes_on = hung.try_wait().expect("its state").is_none();
    hung.kill().expect("it is killed");
    hung.wait().expect("it ends");
    assert!(goes_on, "the program ended");
    if ran.stderr.contains("Operation not permitted") {
        assert_eq!(ran.code, Some(3));
        assert!(ran.stderr.contains("ptrace_scope"), "{}", ran.stderr);
        return;
    }
    let ran = ran.expect(0);
    let text = ran.text();
    for part in [format!("process {pid}:"), "looked at 2 threads".into(), "C++ stack, innermost first:".into()] {
        assert!(text.contains(&part), "{part:?} in\n{text}");
    }
    // Which Python frames gdb sees depends on the interpreter's support for it.
    if text.contains("Python is at") {
        assert!(text.contains("hung.py:") && text.contains(" in spin"), "{text}");
    } else {
        assert!(text.contains("gdb found no Python stack"), "{text}");
    }
    // The script is kept beside what it wrote.
    assert!(String::from_utf8_lossy(&cli.read("look/gdb_throw.py")).contains("def attached"));
    let log = cli.read("look/gdb.jsonl");
    assert_eq!(log.split(|b| *b == b'\n').filter(|line| line.starts_with(b"{\"kind\": \"attached\"")).count(), 2);
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    let cli = Cli::bare();
    // No process has this number: it is beyond the kernel's largest.
    let ran = cli.run(&["attach", "4194305"]).expect(2);
    assert!(ran.stderr.contains("there is no process 4194305"), "{}", ran.stderr);
    let own = std::process::id().to_string();
    let ran = cli.run(&["attach", &own, "--gdb", "no-such-gdb"]).expect(3);
    assert!(ran.stderr.contains("failed to start no-such-gdb"), "{}", ran.stderr);
}
