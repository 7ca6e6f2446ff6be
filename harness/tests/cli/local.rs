//! The local backend with a shell in place of Python and programs of the test in place of tools: no GPU is needed.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use faultlab::backend::{Backend, Job, Local};
use faultlab::case::{CaseId, Device, Mode, Subject};
use faultlab::host::{Gpu, Host, Missing, Program, Python, PythonFolders, Torch};
use faultlab::scenario::{self, FaultClass, Place, Scenario, Truth};
use faultlab::tool;
use tokio::sync::watch;

/// Says that the case's process holds 300 MiB and one that is none of ours 9000.
const SMI: &str = r#"#!/bin/sh
echo $$ > FOLDER/smi.pid
echo "$@" > FOLDER/smi.args
while :; do
  [ -s FOLDER/case.pid ] && echo "GPU-1, $(cat FOLDER/case.pid), 300"
  echo "GPU-1, 1, 9000"
  echo "GPU-1, 2, [N/A]"
  sleep 0.1
done
"#;

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a stub can be written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a stub can be made executable");
}

/// A program that this machine has, as a probe would say.
pub(crate) fn program(name: &str, path: &Path) -> Program {
    Program {
        name: name.into(),
        purpose: String::new(),
        path: Some(path.display().to_string()),
        version: Err(Missing { why: "x".into(), mend: "y".into() }),
    }
}

/// A machine with a GPU, a shell for an interpreter, and these programs.
pub(crate) fn host(programs: Vec<Program>) -> Host {
    let missing = || Missing { why: "x".into(), mend: "y".into() };
    Host {
        os: "Linux".into(),
        gpus: Ok(vec![Gpu { index: 0, name: "G".into(), compute_capability: None, memory_bytes: None, trouble: None }]),
        driver: Err(missing()),
        cuda: Err(missing()),
        // A shell runs the "program".
        python: Ok(Python { executable: "/bin/sh".into(), version: "3".into(), folders: PythonFolders::default() }),
        torch: Ok(Torch { version: "2".into(), cuda: None }),
        docker: Err(missing()),
        programs,
    }
}

/// A scenario of one program, which has no fault: nothing judges it.
pub(crate) fn scenario(folder: &Path, source: &str) -> Scenario {
    let place = Place { file: "p.py".into(), line: 1 };
    std::fs::write(folder.join("p.py"), source).expect("the program can be written");
    let program = scenario::Program { file: "p.py".into(), source: source.into() };
    Scenario {
        id: "s".into(),
        title: String::new(),
        story: String::new(),
        class: FaultClass::Shape,
        needs: Vec::new(),
        folder: folder.into(),
        program: program.clone(),
        twin: program,
        files: std::collections::BTreeSet::new(),
        args: Vec::new(),
        truth: Truth { fault: place.clone(), root: place, callers: Vec::new(), kernel: None, error: None },
        cpu: None,
        expect: Vec::new(),
        hints: Vec::new(),
        fix: String::new(),
    }
}

/// A case that keeps 4096 bytes of each stream.
fn job<'a>(scenario: &'a Scenario, tool: &str, work: PathBuf, stop: watch::Receiver<bool>) -> Job<'a> {
    std::fs::create_dir(&work).expect("a folder");
    Job {
        case: CaseId { scenario: "s".into(), subject: Subject::Program, tool: tool.into(), mode: Mode::Async },
        scenario,
        tool: tool::find(tool).expect("a tool"),
        device: Device::Cpu,
        stack: faultlab::host::Stack::default(),
        deadline: Duration::from_mins(1),
        output_cap: 4096,
        work,
        stop,
    }
}

fn local(programs: Vec<Program>) -> Backend {
    let env = BTreeMap::from([("PATH".to_string(), "/usr/bin:/bin".to_string())]);
    Backend::Local(Box::new(Local::new(env!("CARGO_BIN_EXE_faultlab").into(), host(programs), env)))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peak_of_the_cases_tree_is_kept_and_the_sampler_ends_with_the_backend() {
    let folder = tempfile::tempdir().unwrap();
    let smi = folder.path().join("nvidia-smi");
    executable(&smi, &SMI.replace("FOLDER", &folder.path().display().to_string()));
    let backend = local(vec![program("nvidia-smi", &smi)]);
    let scenario = scenario(folder.path(), "echo $$ > ../case.pid; sleep 1.5\n");
    let (_keep, stop) = watch::channel(false);
    let mut job = job(&scenario, "bare", folder.path().join("work"), stop);
    let on_cpu = backend.capture(&job).await.unwrap();
    assert_eq!(on_cpu.meta.peak_gpu_bytes, None);
    assert!(!folder.path().join("smi.pid").exists(), "nothing is sampled for a case on the CPU");

    std::fs::remove_file(folder.path().join("case.pid")).unwrap();
    job.device = Device::Cuda;
    let with_gpu = backend.capture(&job).await.unwrap();
    assert_eq!(with_gpu.meta.peak_gpu_bytes, Some(300 << 20));
    let args = std::fs::read_to_string(folder.path().join("smi.args")).unwrap();
    assert!(args.contains("--loop-ms=500"), "{args}");

    let pid = std::fs::read_to_string(folder.path().join("smi.pid")).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists(), "one process serves the whole run");
    drop(backend);
    assert!(!process.exists(), "nothing outlives the run");
}

/// A record that was cut in its middle would be no record.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_reports_is_not_cut_where_output_is() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libfaultlab_recorder.so");
    executable(&library, "");
    let source = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo a line of fifty bytes or so, as programs print them >&2\n\
                  printf ' a line of fifty bytes or so, as reports have them' >> recorder.7.jsonl; done\n";
    let scenario = scenario(folder.path(), source);
    let (_keep, stop) = watch::channel(false);
    let job = job(&scenario, "recorder", folder.path().join("work"), stop);
    let capture = local(vec![program("recorder", &library)]).capture(&job).await.unwrap();
    assert!(capture.meta.stderr.cut.is_some(), "{:?}", capture.meta.stderr);
    assert_eq!(capture.files["recorder.jsonl"].len(), 100_000);
}
