//! What becomes of a run whose engine or image fails under it: each on an engine of the test's own.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::containers::{At, IMAGE, finish, ready, send, start};
use crate::engine::SecondEngine;
use crate::fixture::{Cli, faulty};

/// An engine that has the image; `None` where there can be none.
fn second() -> Option<(SecondEngine, At)> {
    if !ready() {
        return None;
    }
    let engine = SecondEngine::start(None)?;
    let at = At(Some(engine.docker_host()));
    at.import();
    Some((engine, at))
}

/// Three scenarios. The second one waits to lose its engine; a file tells it, the second time, that it has.
fn three(at: &At) -> Cli {
    let cli = at.cli();
    cli.scenario("lose-a", &faulty(""));
    cli.scenario("lose-b", &faulty("if not os.path.exists('/scenario/again'):\n    time.sleep(1000)"));
    cli.scenario("lose-c", &faulty(""));
    cli
}

const ALL: [&str; 3] = ["lose-a", "lose-b", "lose-c"];

/// `judged`, or why the machine broke the case.
fn outcome(cli: &Cli, scenario: &str) -> String {
    let outcome = cli.result("run", &format!("{scenario}/bare.async"))["outcome"].clone();
    let said = if outcome["kind"] == "infra" { &outcome["reason"] } else { &outcome["kind"] };
    said.as_str().unwrap_or_default().to_string()
}

/// Nothing of faultlab's is left on this side: no process, no temporary file.
#[track_caller]
fn nothing_here(cli: &Cli) {
    cli.nothing_survives();
    let left: Vec<_> = fs::read_dir(cli.path("tmp")).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, [".keep"]);
    let work: Vec<_> = fs::read_dir(cli.path("run")).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert!(work.iter().all(|name| name != "work"), "{work:?}");
}

/// With its engine again, the run comes to its end: only what was lost is run.
#[track_caller]
fn resume(cli: &Cli, at: &At, lost: &[&str]) {
    cli.write("scenarios/lose-b/again", "");
    let ran = cli.run(&["run", "--resume", "run"]).expect(0);
    for scenario in ALL {
        let result = cli.result("run", &format!("{scenario}/bare.async"));
        assert_eq!(result["outcome"]["verdict"], json!({ "exact": "fault" }), "{result:#}");
        assert_eq!(ran.stderr.contains(&format!("{scenario} bare async")), lost.contains(&scenario), "{}", ran.stderr);
    }
    assert_eq!(at.all(), "", "no container is left");
    assert_eq!(at.docker(&["volume", "ls", "--quiet"]), "", "no volume is left");
    nothing_here(cli);
}

#[test]
fn an_engine_that_ends_loses_what_ran_and_a_resume_completes() {
    let Some((mut engine, at)) = second() else { return };
    for end in [SecondEngine::stop, SecondEngine::kill] {
        let cli = three(&at);
        let child = start(&cli, &ALL);
        at.running("lose-b");
        end(&mut engine);
        let ran = finish(child).expect(3);
        assert_eq!(outcome(&cli, "lose-a"), "judged");
        for scenario in ["lose-b", "lose-c"] {
            let why = outcome(&cli, scenario);
            assert!(why.starts_with("the container engine stopped during the run ("), "{why}");
            assert!(why.ends_with("): start it; then `faultlab run --resume` runs what this run lost"), "{why}");
        }
        assert!(ran.text().contains("the container engine stopped during the run"), "{}", ran.text());
        nothing_here(&cli);
        engine.start_again();
        resume(&cli, &at, &["lose-b", "lose-c"]);
    }
}

#[test]
fn an_engine_that_hangs_is_not_waited_for() {
    let Some((engine, at)) = second() else { return };
    let cli = three(&at);
    let child = start(&cli, &ALL);
    at.running("lose-b");
    engine.signal(Signal::SIGSTOP);
    finish(child).expect(3);
    assert_eq!(outcome(&cli, "lose-a"), "judged");
    for scenario in ["lose-b", "lose-c"] {
        let why = outcome(&cli, scenario);
        assert!(why.starts_with("the container engine hangs (it does not answer within 10 s): restart it; "), "{why}");
    }
    nothing_here(&cli);
    engine.signal(Signal::SIGCONT);
    // The engine sees that its client is gone; the container sees that its input is closed.
    at.gone("lose-b");
    resume(&cli, &at, &["lose-b", "lose-c"]);
}

#[test]
fn an_image_that_is_removed_under_a_run_is_named() {
    let Some((_engine, at)) = second() else { return };
    let cli = three(&at);
    let child = start(&cli, &ALL);
    let id = at.running("lose-b");
    // An engine lets no image go whose container runs: so the run stands still while that container goes first.
    send(&child, Signal::SIGSTOP);
    at.docker(&["rm", "--force", &id]);
    at.docker(&["rmi", "--force", IMAGE]);
    send(&child, Signal::SIGCONT);
    finish(child).expect(3);
    assert_eq!(outcome(&cli, "lose-a"), "judged");
    let why = outcome(&cli, "lose-b");
    assert!(why.starts_with("the container ended before its case did: it was killed from outside"), "{why}");
    let why = outcome(&cli, "lose-c");
    assert!(why.starts_with("the image faultlab-test:python (sha256:"), "{why}");
    assert!(why.contains(") is no longer there: it was removed during the run; build or pull it again"), "{why}");
    nothing_here(&cli);
    let ran = cli.run(&["run", "--resume", "run"]).expect(3);
    assert!(ran.stderr.contains("there is no image faultlab-test:python here"), "{}", ran.stderr);
    at.import();
    resume(&cli, &at, &["lose-b", "lose-c"]);
}
