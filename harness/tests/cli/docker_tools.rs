//! What tools bring into containers, and what is seen of containers from outside.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use faultlab::backend::{Backend, Containers, Docker, Job};
use faultlab::case::{CaseId, Device, Mode, Subject};
use faultlab::scenario::Scenario;
use faultlab::tool;
use serde_json::Value;
use tokio::sync::watch;

use crate::containers::{HERE, IMAGE, ready};
use crate::fixture::{Cli, repository, require};
use crate::local::{self, host};

/// What containers of the image have of a program.
#[track_caller]
fn program(cli: &Cli, name: &str) -> Value {
    let ran = cli.run(&["doctor", "--image", IMAGE, "--format", "json"]).expect(0);
    let found: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let programs = found["host"]["programs"].as_array().expect("programs");
    programs.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("{found:#}")).clone()
}

#[test]
fn the_launch_recorder_is_mounted_and_loaded() {
    if !ready() {
        return;
    }
    for (name, file) in
        [("recorder", "libfaultlab_recorder.so"), ("recorder-preload", "libfaultlab_recorder_preload.so")]
    {
        let recorder = program(&HERE.cli(), name);
        let said = recorder["version"]["Ok"].as_str().unwrap_or_else(|| panic!("{recorder:#}"));
        assert_eq!(said, format!("this machine's, which the image can load, at /opt/faultlab/{file}"));
        assert_eq!(recorder["path"], format!("/opt/faultlab/{file}"));
    }

    // What the image cannot load is no recorder.
    let cli = HERE.cli();
    cli.write("libother.so", "not a library");
    let path = cli.path("libother.so").display().to_string();
    let recorder = program(&cli.env("FAULTLAB_RECORDER_LIBRARY", &path), "recorder");
    let why = recorder["version"]["Err"]["why"].as_str().unwrap_or_else(|| panic!("{recorder:#}"));
    assert!(why.starts_with("the image cannot load this machine's launch recorder: ERROR: ld.so: object"), "{why}");
}

#[test]
fn gdb_in_its_image_has_the_lines_of_the_program() {
    if !ready() || !require("gdb-image") {
        return;
    }
    let cli = Cli::copy_of_the_repository();
    let root = repository().display().to_string();
    let args = ["--root", &root, "run", "shape-mismatch", "--device", "cpu", "--image", "gdb", "--tool", "gdb"];
    cli.run(&[&args[..], &["--mode", "async", "--no-twins", "--out", "run"]].concat()).expect(0);
    let capture: Value =
        serde_json::from_slice(&cli.read("run/cases/shape-mismatch/gdb.async/capture.json")).expect("JSON");
    assert!(
        capture["argv"].as_array().is_some_and(|argv| argv.contains(&"/usr/bin/python3-dbg".into())),
        "{capture:#}"
    );
    let log = String::from_utf8(cli.read("run/cases/shape-mismatch/gdb.async/files/gdb.jsonl")).expect("text");
    let throws: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let last = throws.iter().rfind(|record| record["kind"] == "throw").expect("a throw");
    assert_eq!(last["python_by"], "py-bt", "{last:#}");
    let frames = last["python"].as_array().expect("frames");
    assert!(frames.iter().any(|f| f["file"].as_str().is_some_and(|f| f.starts_with("/scenario/"))), "{last:#}");
}

/// Says that the case's process, which it finds by a word of its command line, holds 300 MiB, and that another holds 9000.
const SMI: &str = r#"#!/bin/sh
while :; do
  for process in /proc/[0-9]*; do
    grep -aqs WORD $process/cmdline && echo "GPU-1, ${process#/proc/}, 300"
  done
  echo "GPU-1, 1, 9000"
  sleep 0.1
done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn gpu_memory_of_a_container_is_found_by_its_processes_numbers_outside() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable.clone()).expect("a mode");
    let word = format!("faultlab-word-{}", std::process::id());
    let smi = folder.path().join("nvidia-smi");
    std::fs::write(&smi, SMI.replace("WORD", &word)).expect("a file");
    std::fs::set_permissions(&smi, readable).expect("a mode");
    let machine = host(vec![local::program("nvidia-smi", &smi)]);
    let docker = Docker::open(Containers {
        machine: &machine,
        image: IMAGE,
        python: "python3",
        device: Device::Cpu,
        memory: None,
        supervisor: env!("CARGO_BIN_EXE_faultlab").into(),
        env: BTreeMap::from([("PATH".to_string(), "/usr/bin:/bin".to_string())]),
    })
    .await
    .expect("containers");
    let waits = local::scenario(folder.path(), "import time; time.sleep(2.5)\n");
    let scenario = Scenario { id: "docker-gpu-memory".into(), args: vec![word], ..waits };
    let (_keep, stop) = watch::channel(false);
    let mut job = Job {
        case: CaseId {
            scenario: scenario.id.clone(),
            subject: Subject::Program,
            tool: "bare".into(),
            mode: Mode::Async,
        },
        scenario: &scenario,
        tool: tool::find("bare").expect("a tool"),
        device: Device::Cpu,
        stack: faultlab::host::Stack::default(),
        deadline: Duration::from_mins(1),
        output_cap: 4096,
        work: folder.path().join("work"),
        stop,
    };
    let backend = Backend::Docker(Box::new(docker));
    let on_cpu = backend.capture(&job).await.expect("a capture");
    assert_eq!(on_cpu.meta.peak_gpu_bytes, None, "nothing is sampled for a case on the CPU");
    job.device = Device::Cuda;
    let with_gpu = backend.capture(&job).await.expect("a capture");
    assert_eq!(with_gpu.meta.peak_gpu_bytes, Some(300 << 20), "{}", String::from_utf8_lossy(&with_gpu.stderr));
    backend.clear().await;
}
