//! `faultlab diagnose` and `faultlab record-env` on real programs. Here a CUDA driver without a GPU (the recorder's
//! `tests/fake`) makes faults and hangs; what real machines did is in `diagnose/`: unpacked bundles, read again.

#![expect(clippy::disallowed_methods, reason = "a test starts a compiler, and the process that is attached to")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use faultlab::capture::Capture;
use faultlab::diagnose::model::{Diagnosis, Place};
use faultlab::diagnose::run::{Kept, reread};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::containers::{finish, send};
use crate::fixture::{Cli, Ran, repository, require, wait_for};

/// Runs a program of the fixture, and reads the diagnosis.
#[track_caller]
fn diagnose(cli: &Cli, args: &[&str], command: &[&str], code: i32) -> (Value, Ran) {
    let args = [&["diagnose", "--format", "json"], args, &["--"], command].concat();
    let ran = cli.run(&args).expect(code);
    (serde_json::from_slice(&ran.stdout).expect("JSON"), ran)
}

/// The line that is named first: `train.py:3`.
fn named(diagnosis: &Value) -> String {
    let place = &diagnosis["places"][0];
    let file = place["file"].as_str().unwrap_or_default();
    format!("{}:{}", file.rsplit('/').next().unwrap_or_default(), place["line"])
}

fn steps(diagnosis: &Value) -> Vec<&str> {
    let steps = diagnosis["steps"].as_array().expect("steps");
    let run = steps.iter().filter(|step| step["skipped"] == false);
    run.filter_map(|step| step["id"].as_str()).collect()
}

#[test]
fn a_command_that_ends_well() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    cli.write("train.py", "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint(repr(sys.stdin.read()))\n");
    let (diagnosis, ran) = diagnose(&cli, &[], &["python3", "train.py"], 0);
    assert_eq!(
        (diagnosis["outcome"]["kind"].as_str(), diagnosis["confidence"].as_str()),
        (Some("clean"), Some("none"))
    );
    // What the program prints is seen, and is not part of the report; its input is empty.
    for text in ["out\n", "err\n", "''\n"] {
        assert!(ran.stderr.contains(text), "{}", ran.stderr);
    }
    assert_eq!(steps(&diagnosis), ["recorder"]);
    let ran = cli.run(&["diagnose", "--", "python3", "train.py"]).expect(0);
    assert!(ran.text().starts_with("The command ended well: there is nothing to diagnose.\n"), "{}", ran.text());
}

#[test]
fn an_error_of_the_host_is_where_its_traceback_says() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    cli.write("model.py", "def forward(rows):\n    wanted = 7\n    return rows[wanted]\n");
    cli.write("train.py", "import model\n\nmodel.forward([1, 2])\n");
    let (diagnosis, _) = diagnose(&cli, &[], &["python3", "train.py"], 1);
    assert_eq!(diagnosis["outcome"]["kind"], "host-error");
    assert_eq!(diagnosis["outcome"]["type_name"], "IndexError");
    assert_eq!((named(&diagnosis).as_str(), diagnosis["confidence"].as_str()), ("model.py:3", Some("exact")));
    assert_eq!(diagnosis["places"][0]["source"][2]["text"], "    return rows[wanted]");
    assert_eq!(diagnosis["places"][0]["related"][0]["text"], "model.forward([1, 2])");
    // Nothing else could tell more: it is run once.
    assert_eq!(steps(&diagnosis), ["recorder"]);
}

#[test]
fn the_error_of_a_child_process_counts() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    let child = "import subprocess, sys\n\nif 'child' in sys.argv:\n    {}['key']\nsys.exit(subprocess.call([sys.executable, __file__, 'child']))\n";
    cli.write("launch.py", child);
    let (diagnosis, _) = diagnose(&cli, &[], &["python3", "launch.py"], 1);
    assert_eq!(
        (named(&diagnosis).as_str(), diagnosis["outcome"]["type_name"].as_str()),
        ("launch.py:4", Some("KeyError"))
    );
    cli.nothing_survives();
}

#[test]
fn a_command_that_never_ends_is_killed_with_its_children() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    let program =
        "import os, time\nif os.fork() == 0:\n    os.setsid()\nopen('planted', 'w').close()\ntime.sleep(1000)\n";
    cli.write("train.py", program);
    let (diagnosis, _) = diagnose(&cli, &["--timeout", "4"], &["python3", "train.py"], 1);
    assert!(cli.path("planted").exists());
    cli.nothing_survives();
    // Both processes were asked before they were killed.
    assert_eq!(
        (diagnosis["outcome"]["kind"].as_str(), diagnosis["confidence"].as_str(), named(&diagnosis).as_str()),
        (Some("hang"), Some("exact"), "train.py:5")
    );
    assert_eq!(diagnosis["steps"][0]["exit"], "deadline");
    // What has no Python is killed unasked.
    let (diagnosis, _) = diagnose(&cli, &["--timeout", "2"], &["sleep", "1000"], 1);
    assert_eq!(diagnosis["confidence"], "unlocated");
}

#[test]
fn who_stops_a_command_by_hand_is_told_what_it_was_doing() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    cli.write("train.py", "import time\ndef wait():\n    open('there', 'w').close()\n    time.sleep(1000)\nwait()\n");
    let stopped = |command: &[&str], ready: &str, code: i32| {
        let child = cli.start(&[&["diagnose", "--format", "json", "--"], command].concat());
        wait_for("the command", || cli.path(ready).exists());
        send(&child, Signal::SIGINT);
        let ran = finish(child).expect(code);
        cli.nothing_survives();
        ran
    };
    let ran = stopped(&["python3", "train.py"], "there", 1);
    let diagnosis: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!((named(&diagnosis).as_str(), diagnosis["confidence"].as_str()), ("train.py:4", Some("exact")));
    let verdict = diagnosis["headline"].as_str().expect("a verdict");
    assert!(verdict.starts_with("it hangs (it was stopped by hand after "), "{verdict}");
    assert_eq!(steps(&diagnosis), ["recorder"]);
    // What cannot answer leaves nothing to tell.
    let ran = stopped(&["sh", "-c", "touch begun; sleep 1000"], "begun", 3);
    assert!(ran.stderr.contains("stopped by the user") && ran.stdout.is_empty(), "{}", ran.stderr);
}

#[test]
fn who_stops_a_later_run_is_told_what_the_first_one_showed() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    let program = "\
import ctypes, os, time
if os.path.exists('first'):
    open('second', 'w').close()
    time.sleep(1000)
open('first', 'w').close()
ctypes.string_at(0)
";
    cli.write("train.py", program);
    let child = cli.start(&["diagnose", "--format", "json", "--bundle", "b.tar", "--", "python3", "train.py"]);
    wait_for("the second run", || cli.path("second").exists());
    send(&child, Signal::SIGINT);
    let ran = finish(child).expect(1);
    cli.nothing_survives();
    let diagnosis: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(diagnosis["headline"], "SIGSEGV ended it");
    assert!(diagnosis["notices"].to_string().contains("stopped by hand in the run with faulthandler"), "{diagnosis}");
    assert!(cli.path("b.tar").exists());
}

#[test]
fn where_there_is_no_recorder_the_report_says_so_and_how_to_name_one() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    std::fs::create_dir(cli.path("alone")).expect("a folder");
    let alone = cli.path("alone/faultlab");
    std::fs::copy(env!("CARGO_BIN_EXE_faultlab"), &alone).expect("a copy");
    cli.write("train.py", "input()\n");
    cli.write("wait.py", "import time\ntime.sleep(1000)\n");
    let diagnosed = |program: &str| -> Value {
        let output = Command::new(&alone)
            .args(["diagnose", "--timeout", "4", "--format", "json", "--", "python3", program])
            .current_dir(cli.path(""))
            .env_remove("FAULTLAB_RECORDER_LIBRARY")
            .output()
            .expect("the copy starts");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    // The Python side is in the program itself.
    assert_eq!(named(&diagnosed("wait.py")), "wait.py:2");
    let diagnosis = diagnosed("train.py");
    let notices = diagnosis["notices"].to_string();
    assert!(notices.contains("no launch recorder") && notices.contains("FAULTLAB_RECORDER_LIBRARY"), "{notices}");
    assert!(diagnosis["next"].to_string().contains("standard input is empty"), "{diagnosis}");
}

#[test]
fn a_deadlock_is_shown_with_the_threads_that_are_in_it() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    let program = "\
import queue, signal, threading
lock, rows = threading.Lock(), queue.Queue()
signal.signal(signal.SIGTERM, lambda *_: open('told', 'w').close())
def load():
    with lock:
        rows.get()
threading.Thread(target=load).start()
while not lock.locked():
    pass
with lock:
    rows.put(1)
";
    cli.write("naïve/train.py", program);
    let (diagnosis, _) = diagnose(&cli, &["--timeout", "4"], &["python3", "naïve/train.py"], 1);
    assert_eq!((named(&diagnosis).as_str(), diagnosis["confidence"].as_str()), ("train.py:10", Some("exact")));
    let evidence = diagnosis["evidence"].to_string();
    assert!(evidence.contains("naïve/train.py:6, in load"), "{evidence}");
    // No signal that a program may use was sent.
    assert!(!cli.path("told").exists());
}

#[test]
fn a_crash_is_run_again_with_faulthandler() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    cli.write("train.py", "import os\n\n\ndef native():\n    os.kill(os.getpid(), 11)\n\n\nnative()\n");
    let (diagnosis, _) = diagnose(&cli, &[], &["python3", "train.py"], 1);
    assert_eq!((diagnosis["outcome"]["signal"].as_str(), named(&diagnosis).as_str()), (Some("SIGSEGV"), "train.py:5"));
    assert_eq!(steps(&diagnosis), ["recorder", "faulthandler"]);
    let (diagnosis, _) = diagnose(&cli, &["--quick"], &["python3", "train.py"], 1);
    assert_eq!(steps(&diagnosis), ["recorder"]);
}

#[test]
fn what_cannot_be_started_is_the_users_to_mend() {
    let cli = Cli::bare();
    let ran = cli.run(&["diagnose", "--", "no-such-program"]).expect(2);
    assert!(ran.stderr.contains("failed to start no-such-program"), "{}", ran.stderr);
    assert!(cli.run(&["diagnose"]).expect(2).stderr.contains("-- <CMD>"));
    let ran = cli.run(&["diagnose", "--bundle", "b.zip", "--", "true"]).expect(2);
    assert!(ran.stderr.contains(".tar.gz"), "{}", ran.stderr);
    let ran = cli.run(&["diagnose", "--attach", "4194304"]).expect(2);
    assert!(ran.stderr.contains("no such process"), "{}", ran.stderr);
    let ran = cli.run(&["diagnose", "--recorder", "no.so", "--", "true"]).expect(2);
    assert!(ran.stderr.contains("--recorder no.so"), "{}", ran.stderr);
}

#[test]
fn a_bundle_has_each_run_and_no_secret() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare().env("JOB_TOKEN", "a-very-secret-value").env("OTHER", "kept-to-itself");
    cli.write("train.py", "import os\nraise ValueError(os.environ['JOB_TOKEN'])\n");
    let args = ["--bundle", "report.tar.gz", "--format", "markdown:report.md"];
    diagnose(&cli, &args, &["python3", "train.py"], 1);
    assert!(String::from_utf8_lossy(&cli.read("report.md")).starts_with("# an error of the host, at train.py:2"));
    let list = Command::new("tar").args(["xzf", "report.tar.gz"]).current_dir(cli.path("")).status();
    assert!(list.is_ok_and(|status| status.success()));
    let mut seen = 0;
    let mut open = vec![cli.path("faultlab-diagnosis")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
                continue;
            }
            let text = String::from_utf8_lossy(&std::fs::read(entry.path()).expect("a file")).into_owned();
            assert!(!text.contains("a-very-secret-value") && !text.contains("kept-to-itself"), "{:?}", entry.path());
            seen += 1;
        }
    }
    assert_eq!(seen, 7);
    let stderr = String::from_utf8(cli.read("faultlab-diagnosis/runs/01-recorder/stderr")).expect("text");
    assert!(stderr.ends_with("ValueError: <secret JOB_TOKEN>\n"), "{stderr}");
}

#[test]
fn json_keeps_to_the_committed_schema() {
    let committed = std::fs::read_to_string(repository().join("docs/diagnosis.schema.json")).expect("the schema");
    let fresh = Cli::bare().run(&["schema", "--diagnosis"]).expect(0).text() == committed;
    assert!(fresh, "docs/diagnosis.schema.json is old: `faultlab schema --diagnosis > docs/diagnosis.schema.json`");
    let schema: Value = serde_json::from_str(&committed).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let cli = Cli::bare();
    let (diagnosis, _) = diagnose(&cli, &[], &["true"], 0);
    assert!(validator.is_valid(&diagnosis), "{:?}", validator.iter_errors(&diagnosis).next().map(|e| e.to_string()));
    assert!(!validator.is_valid(&serde_json::json!({ "schema_version": 1 })));
}

#[test]
fn a_value_that_is_not_finite_is_looked_for_step_by_step() {
    let python = std::env::var("FAULTLAB_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let torch = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !torch.is_ok_and(|status| status.success()) {
        #[expect(clippy::print_stderr, reason = "a test that did not run must say so")]
        {
            eprintln!("not run: {python} has no torch; FAULTLAB_TEST_PYTHON names another");
        }
        return;
    }
    let cli = Cli::bare();
    let program = "\
import torch

w = torch.zeros(4, requires_grad=True)
gap = w * 2
root = gap.sqrt()
loss = (root * 0).sum()
loss.backward()
assert torch.isfinite(w.grad).all()
";
    cli.write("train.py", program);
    let (diagnosis, _) = diagnose(&cli, &[], &[&python, "train.py"], 1);
    assert_eq!(diagnosis["outcome"]["kind"], "not-finite");
    assert_eq!(named(&diagnosis), "train.py:5", "{diagnosis:#}");
    assert_eq!(steps(&diagnosis), ["recorder", "guard", "anomaly"]);
    assert_eq!((&diagnosis["surfaced"]["line"], &diagnosis["surfaced"]["innocent"]), (&8.into(), &true.into()));
}

/// Each folder of `diagnose/` is an unpacked `--bundle`: its runs, read again, must give the verdict that is in it.
#[test]
fn recorded_runs_give_their_verdict_again() {
    let mut checked = 0;
    for folder in std::fs::read_dir(repository().join("harness/tests/cli/diagnose")).expect("the folder").flatten() {
        let folder = folder.path();
        let report = std::fs::read(folder.join("report.json")).expect("a report");
        let report: Diagnosis = serde_json::from_slice(&report).expect("a diagnosis");
        let mut runs: Vec<PathBuf> =
            std::fs::read_dir(folder.join("runs")).expect("runs").flatten().map(|run| run.path()).collect();
        runs.sort();
        let kept = |run: &PathBuf| {
            let name = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let id = name.split_once('-').expect("a number and a step").1.to_string();
            Kept { id, capture: Capture::read(run).expect("a capture") }
        };
        let runs: Vec<Kept> = runs.iter().map(kept).collect();
        let known = reread(&runs).expect("known steps");
        let lines = |places: &[Place]| places.iter().map(Place::short).collect::<Vec<_>>();
        assert_eq!(lines(&known.places), lines(&report.places), "{}", folder.display());
        assert_eq!((known.confidence, &known.outcome), (report.confidence, &report.outcome), "{}", folder.display());
        checked += 1;
    }
    assert!(checked > 0);
}

// ---- On a CUDA driver without a GPU ----

/// The compiled driver and CUPTI.
fn fake() -> &'static Path {
    static FAKE: OnceLock<PathBuf> = OnceLock::new();
    FAKE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("diagnose-fake");
        std::fs::create_dir_all(&folder).expect("a folder");
        for (source, to) in [("libcuda.c", "libcuda.so.1"), ("libcupti.c", "libcupti.so.13")] {
            let compiled = Command::new("cc")
                .args(["-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"])
                .arg(format!("-Wl,-soname,{to}"))
                .arg(repository().join("harness/recorder/tests/fake").join(source))
                .args(["-o".into(), folder.join(to), "-ldl".into()])
                .output()
                .expect("there is a C compiler: Rust links with it");
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        }
        folder
    })
}

/// A folder in whose environment that driver is found, and the recorder, which cargo builds beside the test.
fn on_the_fake_driver() -> Cli {
    let test = std::env::current_exe().expect("a test has a file");
    let recorder = test.with_file_name("libfaultlab_recorder.so");
    assert!(recorder.is_file(), "cargo builds {}", recorder.display());
    let fake = fake().display().to_string();
    Cli::bare()
        .env("FAULTLAB_RECORDER_LIBRARY", &recorder.display().to_string())
        .env("FAULTLAB_RECORDER_CUPTI", &format!("{fake}/libcupti.so.13"))
        .env("LD_LIBRARY_PATH", &fake)
        .env("PYTHONPATH", &repository().join("harness/recorder/tests/fake/site-packages").display().to_string())
}

const TWO_LINES: &str = "\
import fakecuda as cuda

good, bad = cuda.Memory(4), cuda.Memory(4)
good.fill(0)
bad.fill(1)
cuda.launch('gather_fault_assert', microseconds=200, word=good)
cuda.launch('gather_fault_assert', microseconds=50_000, word=bad)
cuda.launch('gather_fault_assert', microseconds=200, word=good)
cuda.synchronize()
";

#[test]
fn a_device_fault_is_named_in_the_first_run() {
    if !require("python") {
        return;
    }
    let cli = on_the_fake_driver();
    cli.write("train.py", TWO_LINES);
    let (diagnosis, _) = diagnose(&cli, &["--quick"], &["python3", "train.py"], 1);
    assert_eq!(diagnosis["outcome"]["kind"], "device-fault");
    assert_eq!((named(&diagnosis).as_str(), diagnosis["confidence"].as_str()), ("train.py:7", Some("exact")));
    assert_eq!((&diagnosis["surfaced"]["line"], &diagnosis["surfaced"]["innocent"]), (&9.into(), &true.into()));
    assert_eq!(diagnosis["kernel"]["name"], "gather_fault_assert");
    let origins: Vec<(&str, u64)> = (diagnosis["origins"].as_array().expect("origins").iter())
        .map(|o| (o["name"].as_str().unwrap_or_default(), o["line"].as_u64().unwrap_or_default()))
        .collect();
    assert_eq!(origins, [("bad", 3)], "{diagnosis:#}");
    assert!(diagnosis["steps"][0]["active"].is_string());
}

#[test]
fn a_fault_that_the_program_swallowed_is_told_all_the_same() {
    if !require("python") {
        return;
    }
    let cli = on_the_fake_driver();
    let program =
        TWO_LINES.replace("cuda.synchronize()\n", "try:\n    cuda.synchronize()\nexcept cuda.Error:\n    pass\n");
    cli.write("train.py", program);
    let (diagnosis, _) = diagnose(&cli, &["--quick"], &["python3", "train.py"], 1);
    assert_eq!((named(&diagnosis).as_str(), diagnosis["steps"][0]["exit"]["code"].as_i64()), ("train.py:7", Some(0)));
    assert!(diagnosis["notices"].to_string().contains("ended with status 0 all the same"), "{diagnosis:#}");
}

#[test]
fn a_kernel_that_does_not_end_is_named_and_the_command_stopped() {
    if !require("python") {
        return;
    }
    let cli = on_the_fake_driver();
    cli.write(
        "train.py",
        "import fakecuda as cuda\ncuda.launch('warm')\ncuda.launch('spin')\ncuda.launch('later')\ncuda.synchronize()\n",
    );
    let (diagnosis, _) = diagnose(&cli, &["--hang", "1"], &["python3", "train.py"], 1);
    assert_eq!((diagnosis["outcome"]["kind"].as_str(), named(&diagnosis).as_str()), (Some("hang"), "train.py:3"));
    assert_eq!(diagnosis["surfaced"]["line"], 5);
    cli.nothing_survives();
}

#[test]
fn a_process_with_the_recorder_is_asked_by_a_signal_and_goes_on() {
    if !require("python") {
        return;
    }
    let cli = on_the_fake_driver();
    let program = "\
import os, sys
sys.path.insert(0, os.environ['FAKE_SITE'])
import fakecuda as cuda
cuda.launch('spin')
open('launched', 'w').close()
cuda.synchronize()
";
    cli.write("train.py", program);
    std::fs::create_dir(cli.path("records")).expect("a folder");
    let mut child = Command::new("python3")
        .args(["train.py"])
        .current_dir(cli.path(""))
        .env("LD_LIBRARY_PATH", fake())
        .env("FAKE_SITE", repository().join("harness/recorder/tests/fake/site-packages"))
        .env(
            "CUDA_INJECTION64_PATH",
            std::env::current_exe().expect("a test").with_file_name("libfaultlab_recorder.so"),
        )
        .env("FAULTLAB_RECORDER_CUPTI", fake().join("libcupti.so.13"))
        .env("FAULTLAB_RECORDER_DIR", cli.path("records"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("python3 starts");
    wait_for("the launch", || cli.path("launched").exists());
    // `python3` may be a wrapper that starts the interpreter: the one that has the recorder writes the report.
    let report = || std::fs::read_dir(cli.path("records")).ok()?.flatten().next()?.file_name().into_string().ok();
    wait_for("the report", || report().is_some());
    let pid = report().and_then(|name| name.split('.').nth(1).map(String::from)).expect("a process id");
    let ran = cli.run(&["diagnose", "--attach", &pid, "--format", "json"]);
    let alive = child.try_wait().expect("a status").is_none();
    let _ = child.kill();
    let _ = child.wait();
    let diagnosis: Value = serde_json::from_slice(&ran.expect(1).stdout).expect("JSON");
    assert!(alive, "it goes on");
    assert_eq!((named(&diagnosis).as_str(), steps(&diagnosis)), ("train.py:4", vec!["recorder"]), "{diagnosis:#}");
    assert_eq!(diagnosis["surfaced"]["line"], 6);
}

// ---- record-env ----

#[test]
fn what_record_env_prints_turns_the_recorder_on() {
    if !require("python") {
        return;
    }
    let cli = on_the_fake_driver();
    let recorder = std::env::current_exe().expect("a test").with_file_name("libfaultlab_recorder.so");
    // As on another machine: a folder with the library.
    std::fs::create_dir_all(cli.path("at/shim")).expect("a folder");
    std::fs::copy(recorder, cli.path("at/libfaultlab_recorder.so")).expect("a copy");
    std::fs::create_dir(cli.path("records")).expect("a folder");
    let at = cli.path("at").display().to_string();
    let ran = cli.run(&["record-env", "--at", &at, "--dir", "records", "--", "python3", "train.py"]).expect(0);
    let lines: Vec<String> = ran.text().lines().map(String::from).collect();
    assert!(lines.iter().all(|line| line.starts_with("export ")), "{lines:?}");
    cli.write("train.py", TWO_LINES);
    let site = repository().join("harness/recorder/tests/fake/site-packages");
    let script = format!("{}\nexec python3 train.py", ran.text());
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(cli.path(""))
        .env("LD_LIBRARY_PATH", fake())
        .env("FAULTLAB_RECORDER_CUPTI", fake().join("libcupti.so.13"))
        .env("PYTHONPATH", site)
        .output()
        .expect("sh starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("train.py:7"), "{stderr}");
    assert!(std::fs::read_dir(cli.path("records")).is_ok_and(|mut files| files.next().is_some()));
    let json = cli.run(&["record-env", "--at", &at, "--json", "--", "./a.out"]).expect(0);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["prepend"], serde_json::json!({}), "a program without Python needs no Python side");
}

/// The recorder for `LD_PRELOAD`, which nothing builds beside the test: it is nothing except a `cdylib`.
#[cfg(target_arch = "x86_64")]
fn preload() -> &'static Path {
    static PRELOAD: OnceLock<PathBuf> = OnceLock::new();
    PRELOAD.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a file");
        let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
        let name = profile.file_name().expect("target/PROFILE").to_string_lossy();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "faultlab-recorder-preload", "--profile"])
            .arg(if name == "debug" { "dev" } else { &name })
            .arg("--target-dir")
            .arg(profile.parent().expect("target"))
            .current_dir(repository())
            .output()
            .expect("cargo built this test");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        profile.join("libfaultlab_recorder_preload.so")
    })
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_record_env_prints_for_preload_needs_no_cupti() {
    if !require("python") {
        return;
    }
    let cli = Cli::bare();
    std::fs::create_dir_all(cli.path("at/shim")).expect("a folder");
    std::fs::copy(preload(), cli.path("at/libfaultlab_recorder_preload.so")).expect("a copy");
    std::fs::create_dir(cli.path("records")).expect("a folder");
    let at = cli.path("at").display().to_string();
    let args = ["record-env", "--preload", "--at", &at, "--dir", "records", "--", "python3", "train.py"];
    let printed = cli.run(&args).expect(0).text();
    cli.write("train.py", TWO_LINES);
    // A shell that was set up for the other way in before.
    let before = "export CUDA_INJECTION64_PATH=/nowhere/libfaultlab_recorder.so";
    let script = format!("set -eu\n{before}\n{printed}\necho \"[${{CUDA_INJECTION64_PATH-}}]\"\nexec python3 train.py");
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(cli.path(""))
        .env("LD_LIBRARY_PATH", fake())
        .env("FAKE_CUPTI", "busy")
        .env("PYTHONPATH", repository().join("harness/recorder/tests/fake/site-packages"))
        .output()
        .expect("sh starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("train.py:7"), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "[]\n");
    let mut records = std::fs::read_dir(cli.path("records")).expect("the folder").flatten();
    let records = std::fs::read_to_string(records.next().expect("a report").path()).expect("text");
    assert!(records.contains(r#""backend":"interposed""#), "{records}");
}

#[test]
fn a_recorder_that_cannot_be_preloaded_is_said() {
    let cli = Cli::bare();
    let ran = cli.run(&["record-env", "--preload", "--at", "/opt/fault lab"]).expect(2);
    assert!(ran.stderr.contains("--preload: LD_PRELOAD cannot name /opt/fault lab/"), "{}", ran.stderr);
    // A copy of the program that has nothing beside it.
    let copy = cli.path("faultlab");
    std::fs::copy(env!("CARGO_BIN_EXE_faultlab"), &copy).expect("a copy");
    let output = Command::new(&copy)
        .args(["record-env", "--preload"])
        .current_dir(cli.path(""))
        .output()
        .expect("the copy starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let why = if cfg!(target_arch = "x86_64") { "cargo build" } else { "x86-64 only" };
    assert!(stderr.contains("--preload: ") && stderr.contains(why) && stderr.contains("--at"), "{stderr}");
}

// ---- A command that needs CUPTI itself ----

/// A folder with both libraries of the recorder, or the first alone, and PyTorch's profiler without PyTorch.
#[cfg(target_arch = "x86_64")]
fn beside_each_other(both: bool) -> Cli {
    let cli = on_the_fake_driver();
    let test = std::env::current_exe().expect("a test has a file");
    let one = test.with_file_name("libfaultlab_recorder.so");
    let libraries = [Some(one.as_path()), both.then(preload)];
    for library in libraries.into_iter().flatten() {
        let name = library.file_name().expect("a file has a name").to_string_lossy();
        cli.write(&format!("recorder/{name}"), std::fs::read(library).expect("a library"));
    }
    let named = cli.path("recorder/libfaultlab_recorder.so").display().to_string();
    let fake = repository().join("harness/recorder/tests/fake");
    let path = ["profiler/site-packages", "site-packages"].map(|folder| fake.join(folder).display().to_string());
    cli.env("FAULTLAB_RECORDER_LIBRARY", &named).env("PYTHONPATH", &path.join(":"))
}

#[cfg(target_arch = "x86_64")]
const PROFILED: &str = "\
import fakecuda as cuda
from torch.profiler import ProfilerActivity, profile

with profile(activities=[ProfilerActivity.CUDA]) as measured:
    cuda.launch('scale')
    cuda.synchronize()
print('events:', measured.events, flush=True)
cuda.launch('gather_fault_assert')
cuda.launch('scale')
cuda.synchronize()
";

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_with_a_profiler_is_left_its_events_and_recorded_by_preload() {
    if !require("python") {
        return;
    }
    let cli = beside_each_other(true);
    cli.write("train.py", PROFILED);
    let (diagnosis, ran) = diagnose(&cli, &["--verbose"], &["python3", "train.py"], 1);
    // In both runs.
    assert_eq!(ran.stderr.matches("events: 1\n").count(), 2, "{}", ran.stderr);
    assert_eq!(steps(&diagnosis)[..2], ["recorder", "recorder-preload"], "{diagnosis:#}");
    assert_eq!((named(&diagnosis).as_str(), diagnosis["confidence"].as_str()), ("train.py:8", Some("exact")));
    assert_eq!(diagnosis["places"][0]["named_by"], "recorder-preload");
    let notices = diagnosis["notices"].to_string();
    assert!(notices.contains("torch.profiler at ") && notices.contains("train.py:4:"), "{notices}");
    let step = &diagnosis["steps"][1];
    assert!(step["active"].as_str().is_some_and(|words| words.contains("saw launches")), "{step}");
    let validator = jsonschema::validator_for(
        &serde_json::from_slice(&cli.run(&["schema", "--diagnosis"]).expect(0).stdout).expect("JSON"),
    );
    assert!(validator.expect("a schema").is_valid(&diagnosis));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn where_cupti_is_taken_or_missing_the_recorder_comes_by_preload() {
    if !require("python") {
        return;
    }
    for (refusal, says) in [("busy", "another tool had CUPTI"), ("error", "could not use CUPTI")] {
        let cli = beside_each_other(true).env("FAKE_CUPTI", refusal);
        cli.write("train.py", TWO_LINES);
        let (diagnosis, ran) = diagnose(&cli, &[], &["python3", "train.py"], 1);
        assert_eq!(steps(&diagnosis)[..2], ["recorder", "recorder-preload"], "{diagnosis:#}");
        assert_eq!((named(&diagnosis).as_str(), diagnosis["confidence"].as_str()), ("train.py:7", Some("exact")));
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
    // Without its library the step is left out, and why is said.
    let cli = beside_each_other(false).env("FAKE_CUPTI", "busy");
    cli.write("train.py", TWO_LINES);
    let (diagnosis, ran) = diagnose(&cli, &[], &["python3", "train.py"], 1);
    assert!(!steps(&diagnosis).contains(&"recorder-preload"));
    assert!(ran.stderr.contains("recorder-preload is left out: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("libfaultlab_recorder_preload.so is not there"), "{}", ran.stderr);
}
