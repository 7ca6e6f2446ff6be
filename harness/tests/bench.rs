//! `faultlab bench` from end to end: with a program in place of Python, and on the CPU where there is torch.

#![expect(clippy::disallowed_methods, reason = "the tests start faultlab itself")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says why")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Answers faultlab's question about itself; else it is a training loop that takes 4 ms an iteration, and 10 ms with
/// C++ stack traces.
const PYTHON: &str = r#"#!/bin/sh
if [ "$1" = -c ]; then
  echo '{"python": {"executable": "SELF", "version": "3.12.0", "folders": {"prefix": "/p", "base_prefix": "/p", "stdlib": "/p", "packages": []}}, "torch": {"version": "2.6.0", "cuda": null}, "debugpy": null}'
  exit 0
fi
# faultlab reads the environment of a process that is there.
sleep 0.1
ms=4
[ -n "$TORCH_SHOW_CPP_STACKTRACES" ] && ms=10
case "$1" in
  */transformer.py) echo "RuntimeError: no memory" >&2; exit 1 ;;
esac
echo "{\"faultlab_bench\": 1, \"program\": \"mlp\", \"device\": \"cpu\", \"iters\": 2, \"ms\": [$ms, $ms.5], \"host_bytes\": 1000, \"gpu_reserved_bytes\": null, \"loss\": 1}"
"#;

fn bench(python: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_faultlab"))
        .args(["bench", "--device", "cpu", "--format", "json", "--python"])
        .arg(python)
        .args(args)
        .output()
        .expect("faultlab starts")
}

fn stub(folder: &Path) -> std::path::PathBuf {
    let python = folder.join("python");
    std::fs::write(&python, PYTHON.replace("SELF", &python.display().to_string())).expect("a stub can be written");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("a stub can be made executable");
    python
}

fn row<'a>(bench: &'a Value, program: usize, tool: &str) -> &'a Value {
    let rows = bench["programs"][program]["rows"].as_array().expect("rows");
    rows.iter().find(|r| r["tool"] == tool).expect("a row of the tool")
}

#[test]
fn rounds_are_measured_and_what_fails_has_no_figure() {
    let folder = tempfile::tempdir().unwrap();
    let output = bench(&stub(folder.path()), &["--tool", "cpp-stacktraces,anomaly", "--rounds", "2"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // The transformer has no plain async to compare with.
    assert_eq!(output.status.code(), Some(3), "{text}");
    let bench: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bench["device"], "cpu");
    let samples = row(&bench, 0, "cpp-stacktraces")["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2);
    assert_eq!(samples[1]["ms"][0], 10.0);
    // The stub imports no torch, so that the injected tool never started.
    assert_eq!(row(&bench, 0, "anomaly")["trouble"]["kind"], "inactive");
    assert_eq!(row(&bench, 1, "bare")["trouble"]["reason"], "exit 1: RuntimeError: no memory");
    // What has failed is not tried again: two rounds of two tools on the MLP and on the graph, one of everything else.
    assert_eq!(text.lines().filter(|l| l.starts_with("round 2/2")).count(), 4, "{text}");
}

#[test]
fn a_budget_that_is_spent_leaves_out_rounds_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--tool", "cpp-stacktraces", "--program", "mlp", "--rounds", "1000", "--budget", "1.5"];
    let output = bench(&stub(folder.path()), &args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let bench: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left_out = bench["left_out"].as_array().unwrap();
    assert!(left_out.iter().any(|l| l == "mlp: round 1000 of 1000 (the budget of 1.5 s)"), "{left_out:?}");
}

#[test]
fn on_the_cpu_with_torch() {
    let python = std::env::var_os("FAULTLAB_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let has_torch = Command::new(&python).args(["-c", "import torch"]).output().is_ok_and(|o| o.status.success());
    if !has_torch {
        eprintln!("skipped: {} has no torch; FAULTLAB_TEST_PYTHON names another", python.display());
        return;
    }
    let output = bench(Path::new(&python), &["--tool", "anomaly", "--rounds", "1", "--iters", "1", "--windows", "2"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let bench: Value = serde_json::from_slice(&output.stdout).unwrap();
    for program in 0..3 {
        for tool in ["bare", "anomaly"] {
            assert_eq!(row(&bench, program, tool)["samples"][0]["ms"].as_array().unwrap().len(), 2);
        }
        assert!(row(&bench, program, "anomaly")["activity"].as_str().unwrap().contains("anomaly"));
    }
}
