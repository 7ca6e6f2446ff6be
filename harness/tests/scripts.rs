//! The scripts that the CUDA tools bring, under a real Python, gdb and shell. No GPU and no torch are needed.

#![expect(clippy::disallowed_methods, reason = "a test of scripts starts their interpreters")]
#![expect(clippy::print_stderr, reason = "a test that was skipped says why")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn python() -> String {
    std::env::var("FAULTLAB_TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}

fn run(folder: &Path, argv: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    let (program, rest) = argv.split_first()?;
    Command::new(program).args(rest).current_dir(folder).envs(env.iter().copied()).output().ok()
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder)).expect("the test's folder can be written");
        std::fs::write(path, text).expect("the test's folder can be written");
    }
}

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    bytes.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn kinds(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|r| r.get("kind")?.as_str()).collect()
}

/// A `torch` that only says whether CUDA was initialised.
const STUB: &str =
    "__version__ = '2.11.0'\nclass cuda:\n    @staticmethod\n    def is_initialized():\n        return INITIALISED\n";

#[test]
fn the_driver_is_asked_at_exit_and_only_if_the_program_used_it() {
    for (initialised, forked) in [("True", "import os\npid = os.fork()\npid and os.waitpid(pid, 0)\n"), ("False", "")] {
        let folder = tempfile::tempdir().unwrap();
        let stub = STUB.replace("INITIALISED", initialised);
        write(
            folder.path(),
            &[
                ("inject/sitecustomize.py", include_str!("../src/tool/inject/sitecustomize.py")),
                ("inject/faultlab_tool.py", include_str!("../src/tool/inject/coredump.py")),
                ("stub/torch/__init__.py", &stub),
                ("program.py", &format!("import torch\n{forked}print('done')\n")),
            ],
        );
        let work = folder.path().display().to_string();
        let path = format!("{work}/inject:{work}/stub");
        let env = [("PYTHONPATH", path.as_str()), ("FAULTLAB_INJECT", work.as_str())];
        let Some(output) = run(folder.path(), &[&python(), "program.py"], &env) else {
            eprintln!("skipped: there is no {}", python());
            return;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stderr, b"");
        assert!(folder.path().join("active.jsonl").exists());
        let reports = std::fs::read(folder.path().join("reports.jsonl")).unwrap_or_default();
        let reports = json_lines(&reports);
        // One report of the program itself, none of the process that it forked.
        assert_eq!(reports.len(), usize::from(initialised == "True"), "{reports:?}");
        for report in reports {
            assert!(report["message"].as_str().is_some_and(|m| m.starts_with("driver: ")), "{report}");
            assert_eq!(report["note"], Value::Bool(true));
        }
    }
}

/// A driver whose context is dead, and which writes the dump for a second longer: in steps, with a pause in between.
const SLOW_DUMP: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int cuCoredumpGetAttributeGlobal(int attribute, void *value, size_t *size) {
  if (attribute == 1) *(char *)value = 1; else snprintf(value, *size, "core.cuda");
  return 0;
}
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = device == 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(long)(100 + device); return 0; }
int cuCtxSetCurrent(void *context) { return context == (void *)101 ? 0 : 201; }
static void *write_dump(void *none) {
  usleep(400000);
  FILE *file = fopen("core.cuda", "w");
  fputs("half", file);
  fflush(file);
  usleep(600000);
  fputs(", whole", file);
  fclose(file);
  return none;
}
int cuCtxSynchronize(void) {
  pthread_t thread;
  if (FAULT) pthread_create(&thread, 0, write_dump, 0);
  return FAULT;
}
"#;

/// The error surfaces before the driver has written the dump, and nothing else would wait for it.
#[test]
fn a_dump_is_finished_before_the_program_ends() {
    for (fault, whole) in [("719", Some("half, whole")), ("0", None)] {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            &[
                ("inject/sitecustomize.py", include_str!("../src/tool/inject/sitecustomize.py")),
                ("inject/faultlab_tool.py", include_str!("../src/tool/inject/coredump.py")),
                ("stub/torch/__init__.py", &STUB.replace("INITIALISED", "True")),
                ("driver.c", SLOW_DUMP),
                ("program.py", "import torch\nraise SystemExit(3)\n"),
            ],
        );
        let define = format!("-DFAULT={fault}");
        let compile = ["cc", "-shared", "-fPIC", "-pthread", &define, "driver.c", "-o", "libcuda.so.1"];
        if run(folder.path(), &compile, &[]).is_none_or(|output| !output.status.success()) {
            eprintln!("skipped: there is no C compiler");
            return;
        }
        let work = folder.path().display().to_string();
        let path = format!("{work}/inject:{work}/stub");
        let env =
            [("PYTHONPATH", path.as_str()), ("FAULTLAB_INJECT", work.as_str()), ("LD_LIBRARY_PATH", work.as_str())];
        let Some(output) = run(folder.path(), &[&python(), "program.py"], &env) else {
            eprintln!("skipped: there is no {}", python());
            return;
        };
        assert_eq!((output.status.code(), output.stderr), (Some(3), Vec::new()));
        assert_eq!(std::fs::read_to_string(folder.path().join("core.cuda")).ok().as_deref(), whole);
        let reports = std::fs::read(folder.path().join("reports.jsonl")).unwrap_or_default();
        assert_eq!(json_lines(&reports)[0]["message"], "driver: core dump on exception is on");
    }
}

#[test]
fn gdbs_script_follows_a_program_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("gdb_throw.py", include_str!("../src/tool/scripts/gdb_throw.py"))]);
    // gdb wants the interpreter itself, as the harness has it, not a shim that finds it.
    let Some(found) = run(folder.path(), &[&python(), "-c", "import sys; print(sys.executable, end='')"], &[]) else {
        eprintln!("skipped: there is no {}", python());
        return;
    };
    let python = String::from_utf8_lossy(&found.stdout).into_owned();
    for (program, code, kinds_of) in [
        ("import sys; sys.exit(3)", 3, vec!["started", "ended"]),
        ("import os; os.abort()", 1, vec!["started", "signal", "ended"]),
    ] {
        let _ = std::fs::remove_file(folder.path().join("gdb.jsonl"));
        let argv = ["gdb", "-batch", "-nx", "-x", "gdb_throw.py", "--args", &python, "-c", program];
        let Some(output) = run(folder.path(), &argv, &[("DEBUGINFOD_URLS", "")]) else {
            eprintln!("skipped: there is no gdb");
            return;
        };
        let Ok(log) = std::fs::read(folder.path().join("gdb.jsonl")) else {
            eprintln!("skipped: this gdb has no Python, or may not trace: {}", String::from_utf8_lossy(&output.stderr));
            return;
        };
        let records = json_lines(&log);
        assert_eq!(kinds(&records), kinds_of, "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code));
    }
}

/// Throws through a function that only carries the throw out, as PyTorch does.
const RAISE: &str = r#"
#include <stdexcept>
#include <vector>
namespace c10::detail {
[[noreturn]] void torchCheckFail(const char *message) { throw std::out_of_range(message); }
}
void look_up(const std::vector<long> &targets, long classes) {
  for (long target : targets) {
    if (target >= classes)
      c10::detail::torchCheckFail("target out of bounds");
    long later = 5;
    (void)later;
  }
}
int main() {
  try { look_up({1, 2, 10}, 10); } catch (const std::exception &) { return 4; }
}
"#;

#[test]
fn gdbs_script_tells_the_line_that_raised_and_its_variables() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("gdb_throw.py", include_str!("../src/tool/scripts/gdb_throw.py")), ("raise.cpp", RAISE)]);
    let compile = ["c++", "-std=c++17", "-O0", "-g", "raise.cpp", "-o", "raise"];
    if run(folder.path(), &compile, &[]).is_none_or(|output| !output.status.success()) {
        eprintln!("skipped: there is no C++ compiler");
        return;
    }
    let argv = ["gdb", "-batch", "-nx", "-x", "gdb_throw.py", "--args", "./raise"];
    let (Some(output), Ok(log)) =
        (run(folder.path(), &argv, &[("DEBUGINFOD_URLS", "")]), std::fs::read(folder.path().join("gdb.jsonl")))
    else {
        eprintln!("skipped: there is no gdb, it has no Python, or may not trace");
        return;
    };
    let records = json_lines(&log);
    assert_eq!(kinds(&records), ["started", "throw", "ended"], "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(4));
    let throw = &records[1];
    assert_eq!(throw["exception"], "std::out_of_range");
    let raised = &throw["raised"];
    assert_eq!((raised["symbol"].as_str(), raised["source"].as_str()), (Some("look_up"), Some("raise.cpp:10")));
    assert!(raised["text"].as_str().is_some_and(|text| text.starts_with("c10::detail::torchCheckFail(")), "{raised}");
    let variables = raised["variables"].as_array().unwrap();
    let value = |name: &str| variables.iter().find(|v| v["name"] == name).map(|v| v["value"].as_str().unwrap());
    assert_eq!((value("target"), value("classes")), (Some("10"), Some("10")));
    assert!(value("targets").is_some());
    // It is declared below the line: what is in its place is not its value.
    assert_eq!(value("later"), None);
}

/// An nsys whose importer may not start, as the one inside Nsight Compute.
const NSYS: &str = r#"#!/bin/sh
case "$1" in
profile)
  echo "$*" > profile.args
  touch report.qdstrm
  while [ "$1" != sh ]; do shift; done
  "$@"
  exit 77 ;;
export) cp made.sqlite report.sqlite ;;
esac
"#;
const IMPORTER: &str = r#"#!/bin/sh
if [ -n "$LD_LIBRARY_PATH" ]; then touch report.nsys-rep; exit 0; fi
echo "QdstrmImporter: error while loading shared libraries: libdw.so.1" >&2
exit 127
"#;
/// Two launches after the last good synchronisation; one has its kernel's record, the other is in an NVTX range.
const MAKE: &str = r#"
import sqlite3
db = sqlite3.connect("made.sqlite")
names = ["cudaStreamSynchronize_v3020", "cudaLaunchKernel_v7000", "gemm", "pack"]
db.execute("create table StringIds (id, value)")
db.executemany("insert into StringIds values (?, ?)", list(enumerate(names)))
db.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId, returnValue)")
calls = [(10, 20, 1, 1, 0, 0), (30, 31, 1, 2, 1, 0), (40, 41, 1, 3, 1, 0), (50, 90, 1, 4, 0, 700)]
db.executemany("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?, ?)", calls)
db.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, demangledName)")
db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (32, 35, 7, 2, 2)")
db.execute("create table NVTX_EVENTS (start, end, eventType, text, globalTid, textId)")
db.execute("insert into NVTX_EVENTS values (38, 45, 59, null, 1, 3)")
db.commit()
"#;

#[test]
fn nsys_is_run_imported_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write(
        folder.path(),
        &[
            ("nsys_run.sh", include_str!("../src/tool/scripts/nsys_run.sh")),
            ("nsys_read.py", include_str!("../src/tool/scripts/nsys_read.py")),
            ("host/target-linux-x64/nsys", NSYS),
            ("host/linux-desktop-glibc-x64/QdstrmImporter", IMPORTER),
        ],
    );
    let nsys = at("host/target-linux-x64/nsys").display().to_string();
    let chmod = ["chmod", "+x", &nsys, "host/linux-desktop-glibc-x64/QdstrmImporter"];
    let python = python();
    if run(folder.path(), &chmod, &[]).is_none() || run(folder.path(), &[&python, "-c", MAKE], &[]).is_none() {
        eprintln!("skipped: there is no {python}");
        return;
    }
    // The program's exit status and output, not nsys's.
    let argv = ["sh", "nsys_run.sh", &nsys, &python, "-c", "print('a  b'); raise SystemExit(5)"];
    let output = run(folder.path(), &argv, &[("FAULTLAB_NSYS_CAPTURE_RANGE", "cudaProfilerApi")]).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(5), &b"a  b\n"[..]));
    let given = std::fs::read_to_string(at("profile.args")).unwrap();
    assert!(given.contains("--capture-range=cudaProfilerApi --capture-range-end=stop"), "{given}");

    let argv = [python.as_str(), "nsys_read.py", &nsys];
    let output = run(folder.path(), &argv, &[("LD_LIBRARY_PATH", "")]).unwrap();
    let records = json_lines(&output.stdout);
    assert_eq!(kinds(&records), ["trouble"]);
    assert!(records[0]["message"].as_str().is_some_and(|m| m.contains("libdw.so.1") && m.contains("LD_LIBRARY_PATH")));

    // With its libraries. (The variable only tells the stand-in that they are there.)
    let output = run(folder.path(), &argv, &[("LD_LIBRARY_PATH", "/nowhere")]).unwrap();
    let records = json_lines(&output.stdout);
    assert_eq!(kinds(&records), ["report", "kernel", "fault"], "{}", String::from_utf8_lossy(&output.stderr));
    let by: BTreeMap<_, _> = kinds(&records).into_iter().zip(&records).collect();
    assert_eq!(by["kernel"]["name"], "gemm");
    assert_eq!(by["fault"]["api"], "cudaStreamSynchronize");
    assert_eq!(by["fault"]["unfinished"], 1);
    assert_eq!(by["fault"]["launches"][0]["nvtx"][0], "pack");
    assert!(!at("report.qdstrm").exists());
}

/// Stands for a program that faults on the device and for the recorder in it: it writes what the recorder would, naming
/// the line NAMED, and dies at its last line.
const FAULTING: &str = r#"import json, os
folder = os.environ.get("FAULTLAB_RECORDER_DIR")
frames = [{"file": __file__, "line": NAMED, "function": "f", "user": True}]
culprit = {"seq": 1, "kind": "kernel", "kernel": "gather_rows", "frames": frames}
fault = {"type": "fault", "name": "CUDA_ERROR_ASSERT", "confidence": "exact", "culprits": [culprit]}
if folder:
    with open(f"{folder}/recorder.{os.getpid()}.jsonl", "w") as file:
        file.writelines(json.dumps(r) + "\n" for r in ({"type": "active"}, *FAULTS, {"type": "exit", "bytes": 9}))
"#;

fn cases(folder: &Path, programs: &[(&str, &str)]) -> Option<(Option<i32>, String)> {
    write(folder, programs);
    write(folder, &[("libfaultlab_recorder.so", "")]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../ci/recorder-cases");
    let path = |name: &str| folder.join(name).display().to_string();
    let (library, programs, out) = (path("libfaultlab_recorder.so"), path("programs"), path("out"));
    let argv = [&python(), script, &programs, &out, "--recorder", &library, "--jobs", "2", "--timeout", "30"];
    let output = run(folder, &argv, &[])?;
    Some((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn recorder_cases_holds_each_way_against_the_known_line() {
    let faulting = |named: &str| {
        let dies = "raise RuntimeError('CUDA error: device-side assert triggered')\n# FAULT: line 4\n";
        FAULTING.replace("NAMED", named).replace("*FAULTS", "fault") + dies
    };
    let fixed = FAULTING.replace("NAMED", "4").replace("*FAULTS, ", "");
    let folder = tempfile::tempdir().unwrap();
    let right = faulting("4");
    let programs = [("programs/right.py", right.as_str()), ("programs/right_fixed.py", fixed.as_str())];
    let Some((code, table)) = cases(folder.path(), &programs) else {
        eprintln!("skipped: there is no {}", python());
        return;
    };
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("recorder  exact line in 1 of 1 device faults\n"), "{table}");
    assert!(table.contains("async     exact line in 0 of 1 device faults (1 other)"), "{table}");
    assert!(table.contains("recorder  silent on 1 of 1 programs"), "{table}");
    // A wrong line, and a word about a fixed program, are failures.
    let folder = tempfile::tempdir().unwrap();
    let wrong = faulting("5");
    let (code, table) = cases(folder.path(), &[("programs/wrong.py", wrong.as_str())]).unwrap();
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("exact line in 0 of 1 device faults (1 wrong)"), "{table}");
    let folder = tempfile::tempdir().unwrap();
    let alarm = FAULTING.replace("NAMED", "4").replace("*FAULTS", "fault");
    let (code, table) = cases(folder.path(), &[("programs/alarm_fixed.py", alarm.as_str())]).unwrap();
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("spoke on alarm_fixed"), "{table}");
}

#[test]
fn recorder_soak_counts_what_went_wrong() {
    // Healthy it prints one line. Every place faults, `deaf` without a fault, and `wrong` at another line than is said.
    let program = FAULTING
        .replace("NAMED", "{'here': 12, 'wrong': 1}.get(place, 1)")
        .replace("*FAULTS", "*[fault][: bool(place)]")
        .replacen("import json, os\n", "import json, os\nplace = os.environ.get('FAULT_AT', '').split(':')[0]\n", 1);
    let body = "STEPS = 1\nprint('sum 7')\ndies = place in ('here', 'wrong')\nif dies: raise RuntimeError('CUDA error: device-side assert triggered')  # SITE: here\npass  # SITE: wrong\npass  # SITE: deaf\n";
    let program = program + body;
    let here = program.lines().position(|line| line.ends_with("# SITE: here")).unwrap() + 1;
    let program = program.replace("'here': 12", &format!("'here': {here}"));
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("program.py", &program), ("libfaultlab_recorder.so", "")]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../ci/recorder-soak");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (library, program, out) = (path("libfaultlab_recorder.so"), path("program.py"), path("out"));
    let mut argv = vec![python(), script.into(), out, "--program".into(), program, "--recorder".into(), library];
    argv.extend(["--fresh-every", "1", "--runs", "3", "--faults", "3", "--jobs", "2"].map(String::from));
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let Some(output) = run(folder.path(), &argv, &[]) else {
        eprintln!("skipped: there is no {}", python());
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("| good         | 3      |"), "{text}");
    for (site, what) in [("wrong", ": wrong"), ("deaf", ": did not fault")] {
        assert!(text.lines().any(|line| line.contains(site) && line.contains(what)), "{site}: {text}");
    }
    assert!(!text.lines().any(|line| line.starts_with("fault-") && line.contains("here:")), "{text}");
}
