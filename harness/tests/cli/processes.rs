//! Programs that fork, hang, flood and leave things behind; faultlab killed, stopped and resumed. No torch is needed.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::containers::{finish, send};
use crate::fixture::{Cli, Ran, faulty, require, wait_for};

/// Python: forks a daemon, twice and in a session of its own, that is another program.
const DAEMON: &str = r#"
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
"#;

#[test]
fn a_deadline_takes_the_whole_tree() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    let tree = r#"
daemon()
for child in range(3):
    if os.fork() == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            daemon()
        time.sleep(1000)
open(f"{HERE}/planted", "w").close()
time.sleep(1000)
"#;
    cli.scenario("demo", &faulty(&format!("import signal\n{DAEMON}{tree}")));
    // How long Python takes to plant the tree is not known: the deadline is one that it surely meets.
    let ran = cli.run_cpu(&["demo", "--timeout", "5"]).expect(1);
    assert!(cli.path("planted").exists(), "{}", ran.stderr);
    cli.nothing_survives();
    let result = cli.result("run", "demo/bare.async");
    assert_eq!(result["outcome"], json!({ "kind": "timed-out", "after_s": 5.0 }));
    assert_eq!(result["process"]["exit"], json!("deadline"));
    assert!(ran.text().contains("timed out (expected: exact)"), "{}", ran.text());
}

#[test]
fn the_tree_of_a_killed_supervisor_is_swept_up() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    // The program kills its own supervisor, as the kernel might when memory is short.
    let kill = "import signal\nopen(f'{HERE}/planted', 'w').close()\nos.kill(os.getppid(), signal.SIGKILL)\n";
    cli.scenario("demo", &faulty(&format!("{DAEMON}\ndaemon()\n{kill}time.sleep(1000)")));
    let ran = cli.run_cpu(&["demo"]).expect(3);
    assert!(cli.path("planted").exists(), "{}", ran.stderr);
    cli.nothing_survives();
    assert!(ran.text().contains("the supervisor gave no account"), "{}", ran.text());
}

#[test]
fn what_a_program_leaves_behind_is_named_and_removed() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    cli.scenario("demo", &faulty(&format!("{DAEMON}\ndaemon()")));
    let ran = cli.run_cpu(&["demo"]).expect(0);
    cli.nothing_survives();
    let result = cli.result("run", "demo/bare.async");
    assert_eq!(result["process"]["left_behind"], json!(["sleep 1000"]), "{result:#}");
    assert!(ran.text().contains("left processes behind, which were killed: sleep 1000"), "{}", ran.text());
}

#[test]
fn forking_faster_than_it_is_killed_does_not_save_a_program() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    // Two that are always about to be another, which no list of processes holds, and 256 that wait.
    let bomb = r#"
def comet():
    while True:
        if os.fork() != 0:
            os._exit(0)

if os.fork() == 0:
    comet()
if os.fork() == 0:
    os.setsid()
    comet()
for level in range(8):
    os.fork()
open(f"{HERE}/lit", "w").close()
time.sleep(1000)
"#;
    cli.scenario("demo", &faulty(bomb));
    // Something that is left holds the output open: faultlab would call that an infrastructure failure.
    cli.run_cpu(&["demo", "--timeout", "4"]).expect(1);
    assert!(cli.path("lit").exists());
    cli.nothing_survives();
    assert_eq!(cli.result("run", "demo/bare.async")["outcome"]["kind"], json!("timed-out"));
}

#[test]
fn a_flood_is_cut_in_the_middle_and_its_end_is_read() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    let flood = r#"
line = "x" * 99 + "\n"
for chunk in range(50):
    sys.stderr.write(line * 10_000)
sys.stderr.flush()
open(f"{HERE}/written", "w").close()
while not os.path.exists(f"{HERE}/go"):
    time.sleep(0.01)
"#;
    cli.scenario("demo", &faulty(flood));
    let child = cli.start_cpu(&["demo", "--output-cap", "65536"]);
    wait_for("50 MB", || cli.path("written").exists());
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a status");
    cli.write("go", "");
    finish(child).expect(0);
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    assert!(peak.is_some_and(|kib| kib < 40 << 10), "faultlab's memory grew with the output: {peak:?} KiB");
    let result = cli.result("run", "demo/bare.async");
    assert_eq!(result["outcome"]["verdict"], json!({ "exact": "fault" }));
    let stderr = &result["process"]["stderr"];
    assert!(stderr["bytes"].as_u64() > Some(50_000_000), "{stderr}");
    let kept = String::from_utf8(cli.read("run/cases/demo/bare.async/stderr")).expect("text");
    assert!(kept.len() < 66_000, "{}", kept.len());
    assert!(kept.contains(&format!("[faultlab: {} bytes cut here]\n", stderr["cut"])), "no mark");
    assert!(kept.starts_with("xxx") && kept.ends_with("RuntimeError: bad value\n"));
}

/// Six scenarios. Each program writes its name into `runs`; `c` and all after it then wait for the file `go`.
fn six() -> Cli {
    let cli = Cli::new();
    for id in ["a", "b", "c", "d", "e", "f"] {
        let wait = if id < "c" { "" } else { "while not os.path.exists(f'{HERE}/go'):\n    time.sleep(0.01)" };
        cli.scenario(id, &faulty(&format!("with open(f'{{HERE}}/runs', 'a') as f:\n    f.write('{id}\\n')\n{wait}")));
    }
    cli
}

/// Starts all six and comes back when two have ended and two are in their programs.
fn six_halfway(cli: &Cli) -> Child {
    let child = cli.start_cpu(&["--all", "--jobs", "2"]);
    wait_for("two cases to end and two to start", || {
        let ended = ["a", "b"].iter().all(|id| cli.path(&format!("run/cases/{id}/bare.async/result.json")).exists());
        ended && runs(cli) == "abcd"
    });
    child
}

/// The programs that were run, sorted.
fn runs(cli: &Cli) -> String {
    let mut ids: Vec<char> =
        fs::read_to_string(cli.path("runs")).unwrap_or_default().chars().filter(|c| *c != '\n').collect();
    ids.sort_unstable();
    ids.into_iter().collect()
}

/// A run's JSON report without what differs between any two runs.
fn timeless(ran: &Ran) -> Value {
    fn blank(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    if ["started", "date", "elapsed_s", "peak_rss_bytes"].contains(&key.as_str()) {
                        *value = Value::Null;
                    } else {
                        blank(value);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(blank),
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(&ran.stdout).expect("JSON");
    blank(&mut value);
    value
}

/// The run in `run` was broken off halfway: it can be read, says what is unfinished, and can be gone on with.
fn check_broken_off(cli: &Cli) {
    let report = cli.run(&["report", "run"]).expect(3).text();
    assert!(report.contains("4 not finished"), "{report}");
    for id in ["c", "d", "e", "f"] {
        assert!(report.contains(&format!("{id} bare async")), "{id} is not named as unfinished:\n{report}");
    }
    let junit = cli.run(&["report", "run", "--format", "junit"]).expect(3).text();
    let markdown = cli.run(&["report", "run", "--format", "markdown"]).expect(3).text();
    for id in ["c", "d", "e", "f"] {
        assert!(junit.contains(&format!(r#"<testcase name="{id} bare async" classname="{id}">"#)), "{junit}");
        assert!(markdown.contains(&format!("{id} bare async")), "{markdown}");
    }

    let finished = ["a", "b"].map(|id| cli.read(&format!("run/cases/{id}/bare.async/result.json")));
    cli.write("go", "");
    cli.run(&["run", "--resume", "run"]).expect(0);
    // The two that were killed were run once more, and nothing else was.
    assert_eq!(runs(cli), "abccddef");
    assert_eq!(finished, ["a", "b"].map(|id| cli.read(&format!("run/cases/{id}/bare.async/result.json"))));

    let resumed = cli.run(&["report", "run", "--format", "json"]).expect(0);
    cli.run(&["run", "--device", "cpu", "--tool", "bare", "--mode", "async", "--no-twins", "--all", "--jobs", "2"])
        .expect(0);
    let whole = fs::read_dir(cli.path("faultlab-runs")).expect("runs").flatten().next().expect("a run").path();
    let whole = cli.run(&["report", &whole.display().to_string(), "--format", "json"]).expect(0);
    assert_eq!(timeless(&resumed), timeless(&whole));
}

#[test]
fn a_killed_run_leaves_no_process_and_is_gone_on_with() {
    if !require("python") {
        return;
    }
    let cli = six();
    let mut child = six_halfway(&cli);
    send(&child, Signal::SIGKILL);
    assert_eq!(child.wait().expect("faultlab ends").signal(), Some(9));
    cli.nothing_survives();
    check_broken_off(&cli);
}

#[test]
fn an_interrupted_run_cleans_up_and_is_gone_on_with() {
    if !require("python") {
        return;
    }
    let cli = six();
    let child = six_halfway(&cli);
    send(&child, Signal::SIGINT);
    let ran = finish(child).expect(3);
    assert_eq!(cli.survivors(), Vec::<String>::new(), "faultlab ends after its processes");
    assert!(ran.stderr.contains("stopping: running cases are being killed"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`faultlab run --resume"), "{}", ran.stderr);
    assert!(ran.text().contains("4 not finished"), "{}", ran.text());
    check_broken_off(&cli);
}

#[test]
fn a_second_signal_leaves_nothing_behind_either() {
    if !require("python") {
        return;
    }
    let cli = six();
    let child = six_halfway(&cli);
    send(&child, Signal::SIGTERM);
    send(&child, Signal::SIGINT);
    finish(child).expect(3);
    cli.nothing_survives();
    let report = cli.run(&["report", "run"]).expect(3).text();
    assert!(report.contains("4 not finished"), "{report}");
}

#[test]
fn a_run_whose_program_has_changed_is_not_gone_on_with() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    cli.scenario("demo", &faulty(""));
    cli.run_cpu(&["demo"]).expect(0);
    let again = cli.run_cpu(&["demo"]).expect(2);
    assert!(again.stderr.contains("already holds a run"), "{}", again.stderr);
    cli.scenario("demo", &faulty("\n"));
    let refused = cli.run(&["run", "--resume", "run"]).expect(2);
    assert!(refused.stderr.contains("train.py has changed since this run was begun"), "{}", refused.stderr);
}

#[test]
fn jobs_run_side_by_side() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    // Each waits for all others; one after the other they would wait until the deadline.
    for id in ["a", "b", "c", "d"] {
        let meet = r#"
open(f"{HERE}/here-{os.getppid()}-{os.getpid()}", "w").close()
while len([name for name in os.listdir(HERE) if name.startswith("here-")]) < 4:
    time.sleep(0.01)
"#;
        cli.scenario(id, &faulty(meet));
    }
    let ran = cli.run_cpu(&["--all", "--jobs", "4", "--timeout", "60"]).expect(0);
    assert!(ran.text().contains("4 cases: 4 as expected"), "{}", ran.text());
}

#[test]
fn the_users_debug_variables_do_not_reach_a_program() {
    if !require("python") {
        return;
    }
    let mut cli = Cli::new();
    for variable in faultlab::tool::SCRUBBED {
        // These two must be valid for any process to start at all.
        let value = if *variable == "PYTHONMALLOC" { "malloc" } else { "1" };
        if *variable != "LD_PRELOAD" {
            cli = cli.env(variable, value);
        }
    }
    let names = format!("{:?}", faultlab::tool::SCRUBBED);
    let check = format!("there = [name for name in {names} if name in os.environ]\nassert there == [], there\n");
    cli.scenario("demo", &faulty(&(check + "assert os.environ['CUDA_VISIBLE_DEVICES'] == ''")));
    cli.run_cpu(&["demo"]).expect(0);
}

#[test]
fn a_python_that_does_not_exist_is_named() {
    let cli = Cli::new();
    cli.scenario("demo", &faulty(""));
    let ran = cli.run_cpu(&["demo", "--python", "/nowhere/python3"]).expect(3);
    for text in ["/nowhere/python3 was not found", "name an interpreter with --python", "1 skipped"] {
        assert!(ran.text().contains(text), "{text}:\n{}", ran.text());
    }
}

#[test]
fn exit_codes_say_how_verdicts_stand() {
    if !require("python") {
        return;
    }
    let check = |cli: &Cli, args: &[&str], code: i32, kind: &str| {
        cli.run_cpu(&[&["demo"], args].concat()).expect(code);
        assert_eq!(cli.result("run", "demo/bare.async")["outcome"]["kind"], json!(kind));
        fs::remove_dir_all(cli.path("run")).expect("a run");
    };
    let cli = Cli::new();
    cli.scenario("demo", &faulty(""));
    check(&cli, &[], 0, "judged");
    // Another line than the marked one.
    cli.scenario("demo", "# ROOT\n# FAULT\nraise RuntimeError('bad value')\n");
    check(&cli, &[], 1, "judged");
    // Another error than the scenario's.
    cli.scenario("demo", "# ROOT\nraise KeyError('x')  # FAULT\n");
    check(&cli, &[], 1, "tool-failed");
    // None at all.
    cli.scenario("demo", "# ROOT\npass  # FAULT\n");
    check(&cli, &[], 1, "fault-masked");
    // A module that is not installed says nothing about the tool.
    cli.scenario("demo", "# ROOT\nimport there_is_no_such_module  # FAULT\n");
    check(&cli, &[], 3, "infra");
    // All are skipped: that must not look like success.
    cli.scenario("demo", &faulty(""));
    let yaml = String::from_utf8(cli.read("scenarios/demo/scenario.yaml")).expect("text");
    let (before, after) = (yaml.find("cpu:").expect("cpu"), yaml.find("expect:\n").expect("expect"));
    cli.write("scenarios/demo/scenario.yaml", format!("{}{}", &yaml[..before], &yaml[after..]));
    check(&cli, &[], 3, "skipped");
}

#[test]
fn twins_and_both_modes_belong_to_a_run() {
    if !require("python") {
        return;
    }
    let cli = Cli::new();
    cli.scenario("demo", &faulty(""));
    let ran = cli.run(&["run", "demo", "--device", "cpu", "--tool", "bare", "--jobs", "2", "--out", "run"]).expect(0);
    assert!(ran.text().contains("4 cases: 4 as expected"), "{}", ran.text());
    cli.write("scenarios/demo/train_fixed.py", "raise RuntimeError('not so fixed')\n");
    let ran = cli.run(&["run", "demo", "--device", "cpu", "--tool", "bare", "--mode", "sync"]).expect(1);
    assert!(ran.text().contains("false alarm"), "{}", ran.text());
}
